"""Engines of a `FakePrometheus` that go through a recording, under whatever labels."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from kvpressure.engines.recordings import TraceLine, read_trace
from kvpressure.prometheus.answers import labels_of
from kvpressure.prometheus.names import quoted
from tests.support.fake_prometheus import NAMES, Answer, Behaviour, Request, success
from tests.support.tools import FIXTURES

START = 1_700_000_000.0
END = START + 3600.0
SPAN = ("--since", f"{START - 600:.0f}", "--until", f"{END:.0f}", "--workers", "1")
_LINE = re.compile(r"^(vllm:[\w:]*)(?:\{(.*)\})? (\S+)", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
Samples = list[tuple[float, str]]


@cache
def _recorded(trace: str) -> Mapping[tuple[str, tuple[tuple[str, str], ...]], Samples]:
    """Every series of a recording, scraped every 15 s, without the engine's own labels."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], Samples] = {}
    due = origin = 0.0
    for line in read_trace(FIXTURES / "traces" / f"{trace}.jsonl.xz"):
        assert isinstance(line, TraceLine)
        if line.t < due:
            continue
        origin, due = origin or line.t, line.t + 14.9
        for name, inner, value in _LINE.findall(line.page.decode()):
            labels = tuple(pair for pair in _LABEL.findall(inner or "") if pair[0] not in ("model_name", "engine"))
            if not name.endswith("_bucket"):
                found.setdefault((name, labels), []).append((START + line.t - origin, value))
    return found


def fleet(*engines: Mapping[str, str], trace: str = "ramp-into-pressure") -> Behaviour:
    """Engines that are all in the trouble of one recording at the same time."""
    everywhere: Sequence[list[Any]] = [[START + 60.0 * number, "1"] for number in range(30)]

    def behaviour(request: Request) -> Answer | None:
        query = request.query.get("query", "")
        if request.path.endswith("/label/__name__/values"):
            return success([*NAMES, *sorted({name for name, _ in _recorded(trace)})])
        if request.path.endswith("/series"):
            return success([{"__name__": NAMES[0], **labels} for labels in engines])
        if query.startswith(("max by", "kvpressure_")):
            return None
        if request.path.endswith("/query_range"):
            values = [[START, "40"]] if query.startswith("count_over_time") else everywhere
            return success({"resultType": "matrix", "result": [{"metric": one, "values": values} for one in engines]})
        # A half of a character is nothing that a client can send.
        chosen = [one for one in engines if f"pod={quoted(labels_of(one)['pod'])}" in query]
        rows = [row for one in chosen for row in _rows(one, request, trace)]
        return success({"resultType": "matrix", "result": rows})

    return behaviour


def _rows(labels: Mapping[str, str], request: Request, trace: str) -> list[dict[str, Any]]:
    end = float(request.query["time"])
    seconds = int(request.query["query"].rpartition("[")[2].removesuffix("ms]")) / 1000
    rows = []
    for (name, own), samples in _recorded(trace).items():
        values = [[t, value] for t, value in samples if end - seconds <= t <= end]
        if values:
            rows.append({"metric": {"__name__": name, **dict(own), **labels}, "values": values})
    return rows

"""Row 1 of "Numbers to hold": one full vLLM page into samples, against prometheus_client's parser.

Both read the same successive pages of one recorded trace, in turns and in one run, so that the ratio does not
depend on how busy the machine is. A turn's time is the mean over the trace; of several turns the fastest counts.
"""

from __future__ import annotations

import json
import lzma
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from kvpressure.engines.reader import PageReader
from kvpressure.promtext.scanner import PageScanner
from kvpressure.runtimes.vllm.metrics import ALL_NAMES, VLLM

TRACES = Path(__file__).parents[1] / "tests" / "fixtures" / "traces"
TRACE = "ramp-into-pressure"
PAGES = 60
TURNS = 7
BAR = 50.0

_Reading = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def pages() -> list[bytes]:
    """Successive pages from the middle of the trace, where load rises and most values change."""
    with lzma.open(TRACES / f"{TRACE}.jsonl.xz", "rt") as lines:
        found = [json.loads(line)["page"].encode() for line in lines]
    return found[len(found) // 2 - PAGES // 2 :][:PAGES]


def oracle(page: bytes) -> _Reading:
    """prometheus_client's parser, the wanted names picked afterwards."""
    wanted = set(ALL_NAMES)
    families = text_string_to_metric_families(page.decode())
    samples = (sample for family in families for sample in family.samples if sample.name in wanted)
    return {(sample.name, tuple(sorted(sample.labels.items()))): float(sample.value) for sample in samples}


def seconds_per_page(read: Callable[[bytes], Any], shown: Sequence[bytes]) -> float:
    """Mean CPU time of one page."""
    start = time.process_time()
    for page in shown:
        read(page)
    return (time.process_time() - start) / len(shown)


def same_values(shown: Sequence[bytes]) -> bool:
    """Whether the remembering scanner reads from each page what prometheus_client does."""
    scanner = PageScanner(VLLM.wanted(), lambda found: found)
    readings = []
    for page in shown:
        series, values = scanner.scan(page)
        readings.append({(one.name, one.labels): value for one, value in zip(series, values, strict=True)})
    return readings == [oracle(page) for page in shown]


def rows() -> list[dict[str, Any]]:
    """The measured rows: name, value, unit, bar and whether it is met (None where the row is for comparison only)."""
    shown = pages()
    equal = same_values(shown)
    reader = PageReader()
    reader.read(shown[0], 0.0)
    readers: dict[str, tuple[Callable[[bytes], Any], Sequence[bytes]]] = {
        "oracle": (oracle, shown[:6]),
        "ours": (lambda page: reader.read(page, 0.0), shown),
    }
    turns = [{name: seconds_per_page(*one) for name, one in readers.items()} for _ in range(TURNS)]
    best = {name: min(turn[name] for turn in turns) for name in readers}
    ratio = best["oracle"] / best["ours"]
    return [
        _row("page reading, times faster than prometheus_client", ratio, "x", BAR, ok=ratio >= BAR and equal),
        _row("page reading, one 51 KB page into an EnginePage", best["ours"] * 1e6, "us"),
        _row("page reading, prometheus_client's parser", best["oracle"] * 1e6, "us"),
    ]


def _row(name: str, value: float, unit: str, bar: float | None = None, *, ok: bool | None = None) -> dict[str, Any]:
    return {"name": name, "value": round(value, 1), "unit": unit, "bar": bar, "pass": ok}


if __name__ == "__main__":
    for row in rows():
        print(f"{row['name']:<56}{row['value']:>10} {row['unit']:<4}bar {row['bar']}  pass {row['pass']}")

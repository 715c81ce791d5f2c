"""What a poll costs after its page is read: function calls, and CPU time over that of reading the page.

A long recording goes through the pipeline as `replay` does it. Calls are counted in a run of their own, those of
functions in C included, as cProfile counts them; times are of the fastest of several runs, reading and the rest side by
side in each, so that their ratio does not depend on how busy the machine is.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from kvpressure.cli.replay import ReplayTarget
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engine_state import Pipeline, PipelineSettings
from kvpressure.engines.reader import PageReader
from kvpressure.engines.recordings import TraceError, TraceLine, read_trace, stem

TRACES: Final = Path(__file__).parents[1] / "tests" / "fixtures" / "traces"
RECORDINGS: Final = ("ramp-into-pressure", "two-ranks")
"""The longest of a real vLLM: one with trouble, one of two ranks."""
RUNS: Final = 5
CALLS_BAR: Final = 2500.0
TIME_BAR: Final = 4.0


@dataclass
class Cost:
    """Of one run, for each engine and poll: seconds that reading took and that the rest took, and calls of the rest."""

    read_seconds: float = 0.0
    rest_seconds: float = 0.0
    calls: float = 0.0

    @property
    def ratio(self) -> float:
        """Time of the rest over that of reading."""
        return self.rest_seconds / self.read_seconds


def run(path: Path, *, count_calls: bool = False) -> Cost:
    """Return what a recording costs; times mean nothing while calls are counted."""
    target, reader, cost, engines = ReplayTarget(stem(path)), PageReader(), Cost(), 0
    pipeline = Pipeline(PipelineSettings(), load_thresholds())

    def count(_: FrameType, event: str, __: object) -> None:
        cost.calls += event in ("call", "c_call")

    for line in lines(path):
        if line.gpus is not None:
            pipeline.on_gpus("trace", line.gpus)
        began = time.process_time()
        page = reader.read(line.page, line.t)
        was_read = time.process_time()
        if count_calls:
            sys.setprofile(count)
        pipeline.on_page(target, page)
        pipeline.expire(line.t)
        sys.setprofile(None)
        cost.rest_seconds += time.process_time() - was_read
        cost.read_seconds += was_read - began
        engines += len(page.engines)
    return Cost(cost.read_seconds / engines, cost.rest_seconds / engines, cost.calls / engines)


def lines(path: Path) -> list[TraceLine]:
    """Return the lines of a recording that can be read."""
    return [line for line in read_trace(path) if not isinstance(line, TraceError)]


def rows() -> list[dict[str, Any]]:
    """The measured rows, as in `bench_page`."""
    found: list[dict[str, Any]] = []
    for name in RECORDINGS:
        path = TRACES / f"{name}.jsonl.xz"
        calls = run(path, count_calls=True).calls
        best = min((run(path) for _ in range(RUNS)), key=lambda cost: cost.rest_seconds)
        found += [
            _row(f"calls for each poll after its page is read, {name}", calls, "calls", CALLS_BAR),
            _row(f"time for each poll over that of reading its page, {name}", best.ratio, "x", TIME_BAR),
            _row(f"time for each poll after its page is read, {name}", 1e6 * best.rest_seconds, "us"),
        ]
    return found


def _row(name: str, value: float, unit: str, bar: float | None = None) -> dict[str, Any]:
    text = None if bar is None else f"<= {bar:g}"
    return {
        "name": name,
        "value": round(value, 2),
        "unit": unit,
        "bar": text,
        "pass": None if bar is None else value <= bar,
    }


if __name__ == "__main__":
    for row in rows():
        print(f"{row['name']:<76}{row['value']:>10} {row['unit']:<6}bar {row['bar']}  pass {row['pass']}")

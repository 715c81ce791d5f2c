"""The simulator against the recordings of a real vLLM: same client load, same means within 25 %."""

from __future__ import annotations

import json
import lzma
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache

import pytest

from bench.simulator.clients import ClosedLoop, Lengths, Phase, Traffic
from bench.simulator.config import TINY_CPU, TINY_CPU_0_12, EngineConfig
from bench.simulator.service import Scenario, SimulatedServer, frames
from tests.support.tools import FIXTURES

TRACES = FIXTURES / "traces"
TOLERANCE = 0.25
SEEDS = (1, 2, 3)

SPREAD = 0.2
"""Deviation of the lengths over their mean. The recorded histograms of all recordings agree on a normal distribution:
light-load's outputs of 100 tokens have 3 of 431 at or below 50 (normal: 2.7), full-batch's prompts of 40 tokens 123 of
1489 above 50 (157), and its outputs of 120 tokens 321 at or below 100 and 4 at or below 50 (302 and 3)."""


@dataclass(frozen=True)
class Stretch:
    """`clients` sending prompts and outputs of those mean lengths for that many seconds."""

    seconds: float
    clients: int = 0
    prompt: int = 1
    output: int = 1

    def phase(self) -> Phase:
        traffic = Traffic(Lengths(self.prompt, "normal", SPREAD), Lengths(self.output, "normal", SPREAD))
        return Phase("healthy", self.seconds, (ClosedLoop(traffic, self.clients),) if self.clients else ())


@dataclass(frozen=True)
class Case:
    """A recording, the engine it was made with, and its load; frames outside [first, last) are not compared."""

    trace: str
    engine: EngineConfig
    load: tuple[Stretch, ...]
    first: int = 0
    last: int | None = None


TWO_RANKS = replace(TINY_CPU, ranks=2, api_servers=2, max_num_seqs=16, gpu_memory_utilization=0.3)

RAMP = (
    *(Stretch(30.2, 6, 50, 100), Stretch(30.1, 12, 200, 300), Stretch(0.8)),
    *(Stretch(30.4, 20, 400, 500), Stretch(2.2), Stretch(40, 30, 600, 800), Stretch(10.8), Stretch(60, 30, 1500, 1200)),
)
"""Client counts and lengths are read from the recorded pages: running + waiting, and the sums of what finished.

The README gives no load for this recording and for short-bursts. Their frames were left out of the fit of the step
time, so only their loads come from them: docs/internals/methods/simulator.md."""

CASES = (
    Case("light-load", TINY_CPU, (Stretch(20, 4, 50, 100), Stretch(5))),
    Case("full-batch", TINY_CPU, (Stretch(25, 28, 40, 120), Stretch(5))),
    Case("sequence-cap-queue", TINY_CPU, (Stretch(25, 64, 30, 60), Stretch(5))),
    Case("preemption-thrash", TINY_CPU, (Stretch(40, 32, 600, 800), Stretch(5))),
    Case("long-context-collapse", TINY_CPU, (Stretch(60, 12, 3000, 1000), Stretch(5))),
    Case("two-ranks", TWO_RANKS, (Stretch(40, 6, 50, 100), Stretch(300, 24, 900, 900)), last=40),
    Case("two-ranks", TWO_RANKS, (Stretch(40, 6, 50, 100), Stretch(300, 24, 900, 900)), first=40, last=154),
    Case("v0.12-preemption", TINY_CPU_0_12, (Stretch(45, 12, 900, 700), Stretch(5))),
    Case(
        "short-bursts",
        TINY_CPU,
        (Stretch(20.2, 4, 50, 100), Stretch(6.1, 60, 300, 400), Stretch(30)),
        first=20,
        last=33,
    ),
    *(
        Case("ramp-into-pressure", TINY_CPU, RAMP, *window)
        for window in ((0, 30), (32, 60), (63, 91), (96, 133), (147, 189))
    ),
)
NAMES = [f"{case.trace}[{case.first}:{case.last or ''}]" for case in CASES]


@dataclass(frozen=True)
class Means:
    """What is compared: the mean over frames and ranks, the batch per step that an API process counted."""

    batch: float
    usage: float
    waiting: float
    running: float
    preemptions_per_second: float


ABSOLUTE = Means(batch=0, usage=0, waiting=0.1, running=0, preemptions_per_second=0.01)
"""Slack where the recorded mean is 0: a tenth of a request waiting, one preemption in 100 s."""

KNOWN_DEVIATIONS = {("long-context-collapse[0:]", "preemptions_per_second"): 0.2}
"""Cells that miss the quarter, with the absolute difference they are held to.

long-context-collapse: the recording holds three preemptions in 62 s, twenty simulated seeds hold 4 to 14 (mean 7), so
the simulator is a little above it. Which prompts meet decides: a preemption needs a third one short enough to fit
beside two. Both are a few a minute; the bound keeps the simulator from thrashing (a preemption every five seconds)."""


def values(page: str) -> dict[tuple[str, str], float]:
    """Unsplit samples by (name, engine)."""
    found = re.findall(r'^([\w:]+)\{engine="(\d+)",model_name="tiny"\} (\S+)$', page, re.MULTILINE)
    return {(name.removeprefix("vllm:"), engine): float(value) for name, engine, value in found}


def means(rows: Iterable[tuple[float, str]], ranks: int) -> Means:
    """Means of (unix seconds, page) rows; signals a page lacks count as 0, as before the first request."""
    times, pages = zip(*((t, values(page)) for t, page in rows), strict=True)
    engines = [str(rank) for rank in range(ranks)]

    def gauge(name: str) -> float:
        return sum(page.get((name, engine), 0.0) for page in pages for engine in engines) / len(pages) / ranks

    def grown(name: str) -> float:
        return sum(pages[-1].get((name, engine), 0.0) - pages[0].get((name, engine), 0.0) for engine in engines)

    return Means(
        batch=grown("generation_tokens_total") / grown("iteration_tokens_total_count"),
        usage=gauge("kv_cache_usage_perc"),
        waiting=gauge("num_requests_waiting"),
        running=gauge("num_requests_running"),
        preemptions_per_second=grown("num_preemptions_total") / (times[-1] - times[0]) / ranks,
    )


def recorded(case: Case) -> Means:
    with lzma.open(TRACES / f"{case.trace}.jsonl.xz", "rt") as file:
        rows = [json.loads(line) for line in file]
    return means([(row["t"], row["page"]) for row in rows[case.first : case.last]], case.engine.ranks)


def length(case: Case) -> int:
    with lzma.open(TRACES / f"{case.trace}.jsonl.xz", "rt") as file:
        return sum(1 for _ in file)


def simulated(case: Case, seed: int) -> Means:
    last = case.last or length(case)
    plan = Scenario(case.trace, case.engine, tuple(stretch.phase() for stretch in case.load))
    played = zip(range(last), frames(SimulatedServer(plan, seed)), strict=False)
    rows = [(frame["t"], frame["page"]) for _, frame in played]
    return means(rows[case.first :], case.engine.ranks)


@cache
def compared(name: str) -> tuple[Means, Means]:
    """Recorded means, and the simulator's averaged over the seeds."""
    case = CASES[NAMES.index(name)]
    runs = [simulated(case, seed) for seed in SEEDS]
    mean = Means(**{key: sum(getattr(run, key) for run in runs) / len(runs) for key in Means.__dataclass_fields__})
    return recorded(case), mean


CELLS = [(name, key) for name in NAMES for key in Means.__dataclass_fields__]


@pytest.mark.parametrize(("name", "key"), CELLS)
def test_the_simulator_meets_the_recorded_mean_within_a_quarter(name: str, key: str) -> None:
    real, model = (getattr(side, key) for side in compared(name))
    slack = max(TOLERANCE * abs(real), getattr(ABSOLUTE, key), KNOWN_DEVIATIONS.get((name, key), 0.0))
    assert abs(model - real) <= slack, f"{name} {key}: recorded {real:.3f}, simulated {model:.3f}"


def row(name: str) -> str:
    real, model = compared(name)
    cells = [(getattr(real, key), getattr(model, key)) for key in Means.__dataclass_fields__]
    return f"{name:28}" + "".join(f"{a:8.3f} /{b:7.3f} {b / a if a else 1.0:5.2f}x" for a, b in cells)


def test_the_table_of_the_comparison_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    heads = "".join(f"{key.replace('ns_per_second', 'ns/s'):>24}" for key in Means.__dataclass_fields__)
    table = "\n".join(["", "recorded / simulated, ratio", " " * 28 + heads, *map(row, NAMES)])
    with capsys.disabled():
        sys.stdout.write(table + "\n")
    assert len(table.splitlines()) == 3 + len(CASES)


def test_the_known_deviations_are_still_deviations() -> None:
    for name, key in KNOWN_DEVIATIONS:
        real, model = (getattr(side, key) for side in compared(name))
        assert abs(model - real) > TOLERANCE * abs(real), f"{name} {key} meets the tolerance: take it off the list"

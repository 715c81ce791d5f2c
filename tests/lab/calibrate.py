"""`python -m tests.lab.calibrate`: the lab beside recordings of a real vLLM with the same pool, flags and clients.

The recordings (tests/fixtures/traces) are of a CPU and a tiny model: how fast it is says nothing, what the scheduler
made of the load does. Compared are numbers that do not depend on speed: how many run and wait, how full the pool is,
and how many preemptions there are per request that ended. A step takes as long as the real ones did in the mean.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Final

from tests.lab.fetch import fetch
from tests.lab.regime import Cost, Flags, Load, Regime

TRACES: Final = Path(__file__).parents[1] / "fixtures" / "traces"
SETTLED_SECONDS: Final = 8
"""At the beginning of a recording the load is only building up."""
FLAGS: Final = Flags(
    num_gpu_blocks=256, block_size=32, max_num_seqs=32, max_model_len=4096, max_num_batched_tokens=2048
)


@dataclass(frozen=True, slots=True)
class Case:
    """A recording, what its clients sent, and the step time that gives its speed."""

    recording: str
    version: str
    load: Load
    flags: Flags
    step_seconds: float


def _load(clients: int, prompt: int, output: int) -> Load:
    return Load(clients=clients, prompt=(prompt, prompt), output=(output, output))


CASES: Final = (
    Case("light-load", "0.32.0", _load(4, 50, 100), FLAGS, 0.0021),
    Case("full-batch", "0.32.0", _load(28, 40, 120), FLAGS, 0.0042),
    Case("sequence-cap-queue", "0.32.0", _load(64, 30, 60), FLAGS, 0.0036),
    Case("preemption-thrash", "0.32.0", _load(32, 600, 800), FLAGS, 0.0024),
    Case("long-context-collapse", "0.32.0", _load(12, 3000, 1000), FLAGS, 0.0022),
)


def main() -> int:
    """Print the table."""
    from tests.lab.worker import prepare  # noqa: PLC0415 - changes the process

    version = CASES[0].version
    clock = prepare(fetch(version))
    print("| recording | running | waiting | usage | preemptions per answer |")
    print("| --- | --: | --: | --: | --: |")
    for case in CASES:
        real = summary(_pages(TRACES / f"{case.recording}.jsonl.xz"))
        made = summary(_played(case, clock))
        cells = (f"{made[name]:.2f} / {real[name]:.2f}" for name in ("running", "waiting", "usage", "preempted"))
        print(f"| {case.recording} | {' | '.join(cells)} |", flush=True)
    return 0


def summary(pages: Sequence[str]) -> Mapping[str, float]:
    """Means over the settled part of a recording."""
    rows = [_values(page) for page in pages[SETTLED_SECONDS:]]
    ended = rows[-1]["ended"] - rows[0]["ended"]
    preempted = rows[-1]["preempted"] - rows[0]["preempted"]
    means = {name: fmean(row[name] for row in rows) for name in ("running", "waiting", "usage")}
    return {**means, "preempted": preempted / ended if ended else 0.0}


_NAMES: Final = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "usage",
    "vllm:num_preemptions_total": "preempted",
    "vllm:request_success_total": "ended",
}


def _values(page: str) -> dict[str, float]:
    found = dict.fromkeys(_NAMES.values(), 0.0)
    for line in page.splitlines():
        name = line.split("{", 1)[0]
        if name in _NAMES and "{" in line:
            found[_NAMES[name]] += float(line.rsplit(" ", 1)[1])
    return found


def _pages(path: Path) -> list[str]:
    import lzma  # noqa: PLC0415

    with lzma.open(path, "rt") as file:
        return [json.loads(line)["page"] for line in file]


def _played(case: Case, clock: object) -> list[str]:
    from tests.lab.clock import BEGIN, Clock  # noqa: PLC0415
    from tests.lab.fetch import package  # noqa: PLC0415
    from tests.lab.server import Server  # noqa: PLC0415

    assert isinstance(clock, Clock)
    clock.now = BEGIN
    cost = Cost(step_seconds=case.step_seconds, prefill_token_seconds=1e-5, sequence_seconds=1e-6)
    regime = Regime(
        name=case.recording,
        family="real",
        about="",
        expect="",
        seconds=40,
        flags=case.flags,
        cost=cost,
        load=(case.load,),
    )
    return [page.text for page in Server(regime, package(case.version), case.version, clock).run().pages]


if __name__ == "__main__":
    sys.exit(main())

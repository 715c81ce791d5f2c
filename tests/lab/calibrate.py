"""`python -m tests.lab.calibrate`: the lab beside recordings of a real vLLM with the same pool, flags and clients.

Step times are those that the simulator was fitted with
(docs/internals/methods/simulator.md), lengths have the recorded deviation of a fifth. Each cell is
the lab's mean and the recording's over their settled part: how many run and wait, how full the pool is, preemptions and
generated tokens a second.
"""

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
SPREAD: Final = 0.2 * 3**0.5
COST: Final = Cost(
    step_seconds=0.00155, prefill_token_seconds=22e-6, sequence_seconds=56e-6, context_token_seconds=60e-9
)
RATES: Final = {"preempted": "preemptions/s", "tokens": "tokens/s"}
PLAYED_SECONDS: Final = 36
FLAGS: Final = Flags(
    num_gpu_blocks=256, block_size=32, max_num_seqs=32, max_model_len=4096, max_num_batched_tokens=2048
)


@dataclass(frozen=True, slots=True)
class Case:
    """A recording, and what its clients sent."""

    recording: str
    version: str
    load: Load
    flags: Flags


def _load(clients: int, prompt: int, output: int) -> Load:
    """Uniform lengths with a deviation of a fifth of the mean."""
    return Load(clients=clients, prompt=_span(prompt), output=_span(output))


def _span(mean: int) -> tuple[float, float]:
    return (1 - SPREAD) * mean, (1 + SPREAD) * mean


CASES: Final = (
    Case("light-load", "0.32.0", _load(4, 50, 100), FLAGS),
    Case("full-batch", "0.32.0", _load(28, 40, 120), FLAGS),
    Case("sequence-cap-queue", "0.32.0", _load(64, 30, 60), FLAGS),
    Case("preemption-thrash", "0.32.0", _load(32, 600, 800), FLAGS),
    Case("long-context-collapse", "0.32.0", _load(12, 3000, 1000), FLAGS),
)


def main() -> int:
    """Print the table."""
    from tests.lab.worker import prepare  # noqa: PLC0415 - changes the process

    version = CASES[0].version
    clock = prepare(fetch(version))
    print("| recording | running | waiting | usage | preemptions/s | tokens/s |")
    print("| --- | --: | --: | --: | --: | --: |")
    for case in CASES:
        real = summary(_pages(TRACES / f"{case.recording}.jsonl.xz"))
        made = summary(_played(case, clock))
        cells = (f"{made[name]:.3g} / {real[name]:.3g}" for name in made)
        print(f"| {case.recording} | {' | '.join(cells)} |", flush=True)
    return 0


def summary(pages: Sequence[str]) -> Mapping[str, float]:
    """Means over the settled part of a recording."""
    rows = [_values(page) for page in pages[SETTLED_SECONDS:]]
    means = {name: fmean(row[name] for row in rows) for name in ("running", "waiting", "usage")}
    seconds = max(1, len(rows) - 1)
    return {**means, **{name: (rows[-1][name] - rows[0][name]) / seconds for name in RATES}}


_NAMES: Final = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "usage",
    "vllm:num_preemptions_total": "preempted",
    "vllm:generation_tokens_total": "tokens",
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
    regime = Regime(
        name=case.recording,
        family="real",
        about="",
        expect="",
        seconds=PLAYED_SECONDS,
        flags=case.flags,
        cost=COST,
        load=(case.load,),
    )
    return [page.text for page in Server(regime, package(case.version), case.version, clock).run().pages]


if __name__ == "__main__":
    sys.exit(main())

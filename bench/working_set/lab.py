"""Runs of the lab for this benchmark: a regime on its own pool, recorded, on larger ones, and with fewer sessions.

`python -m bench.working_set.lab [REGIME...]` makes those that are not there yet; each is kept as it ends.
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from tests.lab import working_set
from tests.lab.fetch import NEWEST, fetch
from tests.lab.record import Played, warm_seconds, write
from tests.lab.regime import Regime
from tests.lab.worker import play, prepare

REGIMES: Final = (
    "workingset-joins",
    "workingset-busy-060",
    "workingset-calm-060",
    "workingset-table",
    "workingset-joins~21",
    "workingset-busy-060~21",
    "workingset-calm-060~21",
    "workingset-table~21",
    "workingset-people-030~21",
    "workingset-joins~22",
    "workingset-busy-080~22",
    "workingset-calm-080~22",
    "trace-0.3-400000",
    "workingset-joins~31",
    "workingset-busy-060~31",
    "workingset-calm-060~31",
    "workingset-table~31",
    "workingset-people-030~31",
    "trace-0.45-400000",
    "workingset-busy-060~41",
    "workingset-calm-060~41",
    "workingset-table~41",
    "workingset-joins~41",
    "workingset-people-030~41",
    "trace-0.35-400000",
    "workingset-busy-080~42",
    "workingset-calm-080~42",
    "workingset-busy-060~51",
    "workingset-table~51",
)
UNSEEN: Final = frozenset(REGIMES[-7:])
"""Run after the prediction had been changed for the last time; the others were looked at while it was written."""
FACTORS: Final = (1.0, 1.25, 1.5, 2.0, 3.0)
SHARES: Final = (0.75, 0.5)
"""Of the sessions, on the pool as it is."""
COUNTED_SECONDS: Final = 300
FOLDER: Final = Path(__file__).parents[2] / ".cache" / "lab" / "working-set"
KEPT: Final = FOLDER / "runs.jsonl"


@dataclass(frozen=True, slots=True)
class Ran:
    """What clients got on a pool of `factor` times today's tokens, with a share of the sessions.

    `kept_by` is of the blocks missed: how many a pool of so many times this one would have kept.
    """

    name: str
    factor: float
    sessions: float
    pool: int
    hits: float
    tokens_per_second: float
    first_token_seconds: float | None
    running: float
    waiting: float
    asked: int
    kept_by: dict[str, int]


def regime_of(name: str) -> Regime:
    """Return a regime by name; `trace-0.3-400000` is a share of the recorded chat on so many tokens."""
    if name.startswith("trace-"):
        _, share, tokens = name.split("-")
        return replace(working_set.trace(float(share), int(tokens)), name=name)
    found = working_set.find(name)
    if found is None:
        raise SystemExit(f"there is no regime {name}")
    return found


def since_seconds(regime: Regime) -> int:
    """Return from which second on clients are counted: all have come, and asked once."""
    return max(warm_seconds(regime), math.ceil(max(load.begin + load.think[1] for load in regime.load)))


def recording(name: str) -> Path:
    """Return where the recording of a regime on its own pool is."""
    return FOLDER / f"{name}.jsonl.xz"


def known() -> list[Ran]:
    """Return every run that was made."""
    return [Ran(**json.loads(line)) for line in KEPT.read_text().splitlines()] if KEPT.exists() else []


def _wishes(names: Sequence[str]) -> Iterator[tuple[str, float, float]]:
    for name in names:
        yield from ((name, factor, 1.0) for factor in FACTORS)
        if not name.startswith("trace-"):
            yield from ((name, 1.0, share) for share in SHARES)


def main(names: Sequence[str]) -> int:
    """Run what is missing."""
    clock = prepare(fetch(NEWEST))
    FOLDER.mkdir(parents=True, exist_ok=True)
    done = {(ran.name, ran.factor, ran.sessions) for ran in known()}
    for name, factor, sessions in _wishes(names or REGIMES):
        if (name, factor, sessions) in done:
            continue
        regime = regime_of(name)
        seconds = since_seconds(regime) + COUNTED_SECONDS
        tokens = factor * (regime.flags.num_gpu_blocks - 1) * regime.flags.block_size
        loads = tuple(replace(load, clients=round(sessions * load.clients)) for load in regime.load)
        changed = replace(
            regime, seconds=seconds, load=loads, expect="", flags=working_set.with_pool(regime.flags, tokens)
        )
        played = play(changed, NEWEST, clock)
        if factor == sessions == 1.0:
            write(changed, NEWEST, played.book, played.result, FOLDER)
        with KEPT.open("a") as file:
            file.write(json.dumps(asdict(_ran(name, factor, sessions, played))) + "\n")
        print(name, factor, sessions, flush=True)
    return 0


def _ran(name: str, factor: float, sessions: float, played: Played) -> Ran:
    regime, since = played.regime, since_seconds(played.regime)
    seconds = played.book.seconds[since : regime.seconds]
    state, count, kept_by = Counter[str](), Counter[str](), Counter[str]()
    for second in seconds:
        state.update(second.state)
        count.update(second.cached.count)
        kept_by.update(second.cached.kept_by)
    first = [
        answer.ended.first_token_seconds
        for answer in played.result.answers
        if answer.ended is not None and answer.ended.first_token_seconds is not None
        if answer.t - answer.ended.seconds >= played.book.begin + since
    ]
    return Ran(
        name=name,
        factor=factor,
        sessions=sessions,
        pool=(regime.flags.num_gpu_blocks - 1) * regime.flags.block_size,
        hits=count["found"] / max(1, count["asked"]),
        tokens_per_second=count["generated"] / len(seconds),
        first_token_seconds=statistics.fmean(first) if first else None,
        running=state["running"] / len(seconds),
        waiting=state["waiting"] / len(seconds),
        asked=count["asked"],
        kept_by={str(size): blocks for size, blocks in kept_by.items()},
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`python -m bench.advice.eviction [REGIME...]`: cures of eviction as predicted at a recording's end, and as they came.

Each regime of the lab runs on its own pool, where it is recorded, on larger ones, and with fewer sessions; runs are
kept, so that it goes on where it was stopped. It is predicted twice: from its page alone, where that tells, and with
hits by pool as KV events tell them, but without sampling. `--write-docs` writes the table into accuracy/advice.md.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Final
from unittest import mock

from bench.scaling.worker import LAB, kept_answers
from bench.written import write_part
from kvpressure.cli.replay import Replay, ReplayTarget
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engine_state import PipelineSettings
from kvpressure.engines.recordings import TraceError
from kvpressure.model.view import EngineView, PoolHits
from kvpressure.signals.kv_events import POOLS
from kvpressure.simulation import eviction_cures
from kvpressure.simulation.calibrate_sessions import known_sessions
from kvpressure.simulation.config_changes import ConfigChange, applied, pool, sessions
from kvpressure.simulation.consequences import Model
from kvpressure.simulation.models import modelled
from kvpressure.simulation.steps import UnknownError
from tests.lab import engine, working_set
from tests.lab.fetch import NEWEST
from tests.lab.record import cache_numbers, warm_seconds, write
from tests.lab.regime import Regime
from tests.lab.worker import play

REGIMES: Final = (
    "trace-0.35-400000",
    "workingset-busy-060~51",
    "workingset-busy-080~42",
    "workingset-calm-080~42",
    "workingset-joins~41",
    "workingset-people-030~41",
    "workingset-table~51",
)
"""Run after the prediction had been changed for the last time; `trace-` is a share of the recorded chat."""
FACTORS: Final = (1.0, 1.25, 1.5, 2.0, 3.0)
"""Pools that are run, in multiples of today's; hits are counted for those of `POOLS`, by which the exporter tells."""
SESSIONS: Final = (0.75, 0.5)
"""Shares of the sessions, on the pool as it is."""
COUNTED_SECONDS: Final = 300
FOLDER: Final = LAB / "eviction"
NEAR, FAR = 1.5, 3.0
"""Times today's pool, up to which hits are to be predicted within the first and the second error."""
NEAR_ERROR, FAR_ERROR, TOKENS_ERROR, CLIFF_ERROR, LEAST_SHARE = 0.05, 0.10, 0.15, 0.15, 0.9
SAME_COST: Final = ((2.0, 1.0), (1.0, 0.75), (1.0, 0.5))
"""Cures that need no hardware: 8-bit KV, and fewer sessions."""
GOT: Final = ("hits", "tokens_per_second", "first_token_mean")
"""What the lab tells of a run, by the lab's names."""
THRESHOLDS: Final = load_thresholds()


@dataclass(frozen=True, slots=True)
class Got:
    """What clients get on so many times today's pool, with a share of the sessions, as predicted or in the lab."""

    factor: float
    share: float
    hits: float
    tokens_per_second: float
    first_token_seconds: float | None


@dataclass(frozen=True, slots=True)
class Predicted:
    """One regime; `reason` where nothing is predicted. Cliffs are pools in tokens, None where no run shows it."""

    name: str
    events: bool
    reason: str = ""
    rows: tuple[tuple[Got, Got], ...] = ()
    """What was predicted of each run, and what it gave."""
    cliff: float | None = None
    measured_cliff: float | None = None

    @property
    def share_of_best(self) -> float | None:
        """Tokens/s of the cure that is predicted to give most, of those that need no hardware, over the best one's."""
        among = [row for row in self.rows if (row[1].factor, row[1].share) in SAME_COST]
        if len(among) < len(SAME_COST):
            return None
        chosen = max(among, key=lambda row: row[0].tokens_per_second)
        return chosen[1].tokens_per_second / max(ran.tokens_per_second for _, ran in among)


def main() -> int:
    """Run what is missing, predict, print; 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=REGIMES, help="regimes")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--write-docs", action="store_true")
    options = parser.parse_args()
    wishes = [wish for name in options.names for wish in _wishes(name)]
    told = kept_answers("bench.advice.eviction", wishes, FOLDER / "runs.jsonl", workers=options.workers)
    found = []
    for name in options.names:
        runs = [(wish, numbers) for wish, numbers in zip(wishes, told, strict=True) if wish["name"] == name]
        found += predicted(name, runs)
    text, missed = summary(found)
    document = "\n".join([*table(found), "", *text]) + "\n"
    print(document)
    if options.write_docs:
        write_part("advice.md", "bench.advice.eviction", document)
    return int(missed)


def regime_of(name: str) -> Regime:
    """Return a regime by name; `trace-0.3-400000` is a share of the recorded chat on so many tokens."""
    if name.startswith("trace-"):
        _, share, tokens = name.split("-")
        return replace(working_set.trace(float(share), int(tokens)), name=name)
    found = working_set.find(name)
    if found is None:
        raise SystemExit(f"there is no regime {name}")
    return found


def _wishes(name: str) -> list[dict[str, Any]]:
    fewer = () if name.startswith("trace-") else SESSIONS
    changes = [*((factor, 1.0) for factor in FACTORS), *((1.0, share) for share in fewer)]
    return [{"name": name, "factor": factor, "share": share} for factor, share in changes]


def answer(wish: Mapping[str, Any], clock: Any) -> dict[str, Any]:
    """Run one regime as wished, and return what the prefix cache did and clients got once all had come, and asked."""
    regime, factor, share = regime_of(wish["name"]), wish["factor"], wish["share"]
    since = max(warm_seconds(regime), *(math.ceil(load.begin + load.think[1]) for load in regime.load))
    tokens = factor * (regime.flags.num_gpu_blocks - 1) * regime.flags.block_size
    changed = replace(
        regime,
        seconds=since + COUNTED_SECONDS,
        load=tuple(replace(load, clients=round(share * load.clients)) for load in regime.load),
        expect="",
        flags=working_set.with_pool(regime.flags, tokens),
    )
    if factor != 1.0 or share != 1.0:
        return cache_numbers(play(changed, NEWEST, clock), since)
    made = list[tuple[float, int, Any]]()
    add = engine.Engine.add

    def remembering(self: Any, asked: Any) -> None:
        add(self, asked)
        made.append((clock.now, len(asked.tokens), self.scheduler.requests[asked.name]))

    with mock.patch.object(engine.Engine, "add", remembering):
        played = play(changed, NEWEST, clock)
    write(changed, NEWEST, played.book, played.result, FOLDER)
    rows = [(t, tokens, request.block_hashes) for t, tokens, request in made]
    begin, blocks = played.book.begin + since, changed.flags.num_gpu_blocks
    return {
        **cache_numbers(played, since),
        "hits_by_pool": [(pool, hits(rows, changed.flags.block_size, pool * blocks, begin)) for pool in POOLS],
    }


def hits(made: Sequence[tuple[float, int, Sequence[Any]]], block_tokens: int, blocks: float, since: float) -> float:
    """Return the share of the prompt tokens from `since` on that a pool of so many blocks has, were nothing else other.

    `made` has each request's time, prompt tokens and blocks; the least recently used are evicted (Mattson).
    """
    kept = OrderedDict[Any, None]()
    asked = found = 0
    for t, tokens, used in made:
        # The last token is always computed.
        known = itertools.takewhile(kept.__contains__, used[: (tokens - 1) // block_tokens])
        if t >= since:
            asked += tokens
            found += block_tokens * sum(1 for _ in known)
        for block in reversed(used):
            kept[block] = None
            kept.move_to_end(block)
        while len(kept) > blocks + 1:
            kept.popitem(last=False)
    return round(found / max(1, asked), 4)


def predicted(name: str, runs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> list[Predicted]:
    """What is predicted of each run, a wish and its numbers: from the page alone, and with hits by pool."""
    got = [
        (Got(wish["factor"], wish["share"], *(told[name] for name in GOT)), float(told["pool"])) for wish, told in runs
    ]
    replay = Replay(ReplayTarget("lab"), THRESHOLDS, PipelineSettings(always_observed=True))
    *_, view = (item[1][0] for item in replay.views(FOLDER / f"{name}.jsonl.xz") if not isinstance(item, TraceError))
    by_pool = tuple(PoolHits(factor, ratio) for factor, ratio in runs[0][1]["hits_by_pool"])
    best = max(one.ratio for one in by_pool)
    return [_predicted(name, view, got, some, best) for some in ((), by_pool)]


def _predicted(
    name: str, view: EngineView, runs: Sequence[tuple[Got, float]], by_pool: tuple[PoolHits, ...], best: float
) -> Predicted:
    events = bool(by_pool)
    assert view.observed is not None
    try:
        found = known_sessions(replace(view.observed, hits_by_pool=by_pool), view.limits, THRESHOLDS)
        model = modelled(found, (), THRESHOLDS)
        rows = tuple((_simulated(model, ran), ran) for ran, _ in runs)
    except UnknownError as error:
        return Predicted(name, events, f"{error}")
    return Predicted(name, events, "", rows, eviction_cures.cliff_tokens(model.state), cliff(runs, best))


def _simulated(model: Model, ran: Got) -> Got:
    changes: list[ConfigChange] = [
        pool("kv_cache_tokens", ran.factor, ran.factor),
        sessions(round(ran.share * model.state[1].clients)),
    ]
    outcome = model.outcome(applied(model.state, changes))
    assert outcome is not None
    assert outcome.hit_ratio is not None
    tokens = model.tokens_factor * outcome.tokens_per_second
    return Got(ran.factor, ran.share, outcome.hit_ratio, tokens, outcome.first_token_seconds)


def cliff(runs: Sequence[tuple[Got, float]], best: float) -> float | None:
    """The pool at which the lab's hits pass half of the best there could be, on a straight line between two runs."""
    pools = sorted((tokens, ran.hits) for ran, tokens in runs if ran.share == 1.0)
    half = best / 2
    for (low, below), (high, above) in itertools.pairwise(pools):
        if below < half <= above:
            return low + (high - low) * (half - below) / (above - below)
    return None


def table(found: Sequence[Predicted]) -> Iterator[str]:
    """A row for each run; what was not predicted is told once."""
    columns = ("regime", "from", "pool", "sessions", "hits predicted", "hits", "tokens/s predicted", "tokens/s")
    yield f"| {' | '.join((*columns, 'TTFT s predicted', 'TTFT s'))} |"
    yield "|---|---|--:|--:|--:|--:|--:|--:|--:|--:|"
    for one in found:
        begin = f"| {one.name.removeprefix('workingset-')} | {'events' if one.events else 'page'}"
        if one.reason:
            yield f"{begin} | not predicted: {one.reason} | | | | | | | |"
        for told, ran in one.rows:
            mark = "**" if abs(told.hits - ran.hits) > _bar(ran) else ""
            tokens, first = (
                [f"{value:{form}}" if value is not None else "-" for value in pair]
                for form, pair in (
                    (".0f", (told.tokens_per_second, ran.tokens_per_second)),
                    (".2f", (told.first_token_seconds, ran.first_token_seconds)),
                )
            )
            hits = (f"{mark}{told.hits:.2f}{mark}", f"{ran.hits:.2f}")
            yield f"{begin} | {' | '.join((f'{ran.factor:g}', f'{ran.share:g}', *hits, *tokens, *first))} |"
        if one.cliff is not None and one.measured_cliff is not None:
            told_cliff = f"cliff predicted at {one.cliff:,.0f} tokens, measured at {one.measured_cliff:,.0f}"
            yield f"{begin} | {told_cliff} | | | | | | | |"


def _bar(ran: Got) -> float:
    return NEAR_ERROR if ran.factor <= NEAR and ran.share == 1.0 else FAR_ERROR


def summary(found: Sequence[Predicted]) -> tuple[list[str], bool]:
    """The bars; and whether one is missed with hits by pool."""
    lines, missed = [], False
    for events in (False, True):
        some = [one for one in found if one.events is events]
        rows = [row for one in some for row in one.rows]
        source = "With hits by pool" if events else "From the page alone"
        lines.append(f"{source}, {sum(not one.reason for one in some)} of {len(some)} regimes are predicted.")
        if not rows:
            continue
        lines.append("")
        for what, errors, bar in _bars(some, rows):
            within = sum(error <= bar for error in errors)
            lines.append(
                f"- {what}: {within} of {len(errors)} within {bar:g}, median error {median(errors or [0]):.3f}"
            )
            missed |= events and within < len(errors)
        tokens = [abs(told.tokens_per_second / ran.tokens_per_second - 1) for told, ran in rows]
        seconds = [(told.first_token_seconds, ran.first_token_seconds) for told, ran in rows]
        first = [abs(ours / theirs - 1) for ours, theirs in seconds if ours and theirs]
        shares = [one.share_of_best for one in some if one.share_of_best is not None]
        lines.append(f"- tokens/s: median error {median(tokens):.0%} (bar {TOKENS_ERROR:.0%}), worst {max(tokens):.0%}")
        lines.append(f"- mean TTFT: median error {median(first or [0]):.0%}")
        if shares:
            lines.append(f"- of 8-bit KV and fewer sessions the chosen gives {min(shares):.0%} of the best at least")
        missed |= events and (median(tokens) > TOKENS_ERROR or min(shares, default=1.0) < LEAST_SHARE)
    return lines, missed


def _bars(some: Sequence[Predicted], rows: Sequence[tuple[Got, Got]]) -> Iterator[tuple[str, list[float], float]]:
    off = [(ran, abs(told.hits - ran.hits)) for told, ran in rows]
    whole = [one for one in off if one[0].share == 1.0]
    yield f"hits on up to {NEAR:g} times the pool", [error for ran, error in whole if ran.factor <= NEAR], NEAR_ERROR
    yield f"hits on up to {FAR:g} times the pool", [error for ran, error in whole if ran.factor > NEAR], FAR_ERROR
    yield "hits with fewer sessions", [error for ran, error in off if ran.share < 1.0], FAR_ERROR
    cliffs = [abs(one.cliff / one.measured_cliff - 1) for one in some if one.cliff and one.measured_cliff]
    yield "the cliff", cliffs, CLIFF_ERROR


if __name__ == "__main__":
    sys.exit(main())

"""`python -m bench.working_set`: cures of eviction as predicted at a recording's end, beside the lab's runs of them.

Reads what `bench.working_set.lab` and `.curve` made. Each regime is predicted twice: from its page alone, where that
tells, and with the hits by pool that KV events give. `--write-docs` writes the table into accuracy/advice.md.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from bench.working_set import curve
from bench.working_set.lab import UNSEEN, Ran, known, recording
from bench.written import write_part
from kvpressure.cli.replay import Replay, ReplayTarget
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engine_state import PipelineSettings
from kvpressure.engines.recordings import TraceError
from kvpressure.model.view import EngineView, PoolHits
from kvpressure.simulation import eviction_cures
from kvpressure.simulation.calibrate_sessions import known_sessions
from kvpressure.simulation.config_changes import ConfigChange, applied, pool, sessions
from kvpressure.simulation.consequences import Model
from kvpressure.simulation.models import modelled
from kvpressure.simulation.steps import UnknownError

NEAR, FAR = 1.5, 3.0
"""Times today's pool, up to which hits are to be predicted within the first and the second error."""
NEAR_ERROR, FAR_ERROR, TOKENS_ERROR, CLIFF_ERROR, LEAST_SHARE = 0.05, 0.10, 0.15, 0.15, 0.9
SAME_COST: Final = ((2.0, 1.0), (1.0, 0.75), (1.0, 0.5))
"""Cures that need no hardware: 8-bit KV, and fewer sessions."""
THRESHOLDS: Final = load_thresholds()


@dataclass(frozen=True, slots=True)
class Row:
    """One run: what was predicted of it, and what it gave."""

    ran: Ran
    hits: float
    tokens_per_second: float
    first_token_seconds: float


@dataclass(frozen=True, slots=True)
class Predicted:
    """One regime; `reason` where nothing is predicted. Cliffs are pools in tokens, None where no run shows it."""

    name: str
    events: bool
    reason: str = ""
    rows: tuple[Row, ...] = ()
    cliff: float | None = None
    measured_cliff: float | None = None

    @property
    def share_of_best(self) -> float | None:
        """Tokens/s of the cure that is predicted to give most, of those that need no hardware, over the best one's."""
        among = [row for row in self.rows if (row.ran.factor, row.ran.sessions) in SAME_COST]
        if len(among) < len(SAME_COST):
            return None
        chosen = max(among, key=lambda row: row.tokens_per_second)
        return chosen.ran.tokens_per_second / max(row.ran.tokens_per_second for row in among)


def main() -> int:
    """Predict, print; 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="regimes; all that were run when none is given")
    parser.add_argument("--write-docs", action="store_true")
    options = parser.parse_args()
    runs, curves = known(), curve.known()
    names = options.names or sorted({ran.name for ran in runs} & curves.keys())
    found: list[Predicted] = []
    for name in names:
        view = last_view(name)
        of_name = [ran for ran in runs if ran.name == name]
        hits = tuple(PoolHits(float(factor), ratio) for factor, ratio in curves[name].items())
        best = max(curves[name].values())
        found += [predicted(name, view, of_name, some, best) for some in ((), hits)]
        print(name, flush=True)
    unseen, others = ([one for one in found if (one.name in UNSEEN) is new] for new in (True, False))
    text, missed = summary(unseen)
    document = "\n".join([*table(unseen), "", *text]) + "\n"
    if others:
        seen = ["", "Of the regimes that were looked at while this was written:", "", *summary(others)[0]]
        document += "\n".join(seen) + "\n"
        print("\n".join(table(others)))
    print(document)
    if options.write_docs:
        write_part("advice.md", "bench.working_set", document)
    return int(missed)


def last_view(name: str) -> EngineView:
    """The engine at the end of its recording."""
    found = None
    for item in Replay(ReplayTarget("lab"), THRESHOLDS, PipelineSettings(always_observed=True)).views(recording(name)):
        if not isinstance(item, TraceError):
            found = item[1][0]
    assert found is not None
    return found


def predicted(name: str, view: EngineView, runs: Sequence[Ran], hits: tuple[PoolHits, ...], best: float) -> Predicted:
    """What is predicted of each run; `best` are the hits if nothing were evicted."""
    events = bool(hits)
    assert view.observed is not None
    try:
        found = known_sessions(replace(view.observed, hits_by_pool=hits), view.limits, THRESHOLDS)
        model = modelled(found, (), THRESHOLDS)
        rows = tuple(_row(model, ran) for ran in runs)
    except UnknownError as error:
        return Predicted(name, events, f"{error}")
    return Predicted(name, events, "", rows, eviction_cures.cliff_tokens(model.state), _cliff(runs, best))


def _row(model: Model, ran: Ran) -> Row:
    changes: list[ConfigChange] = [
        pool("kv_cache_tokens", ran.factor, ran.factor),
        sessions(round(ran.sessions * model.state[1].clients)),
    ]
    outcome = model.outcome(applied(model.state, changes))
    assert outcome is not None
    assert outcome.hit_ratio is not None
    assert outcome.first_token_seconds is not None
    return Row(ran, outcome.hit_ratio, model.tokens_factor * outcome.tokens_per_second, outcome.first_token_seconds)


def _cliff(runs: Sequence[Ran], best: float) -> float | None:
    """The pool at which the lab's hits pass half of the best there could be, on a straight line between two runs."""
    pools = sorted((ran.pool, ran.hits) for ran in runs if ran.sessions == 1.0)
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
        for row in one.rows:
            ran, mark = row.ran, "**" if abs(row.hits - row.ran.hits) > _bar(row.ran) else ""
            first = "-" if ran.first_token_seconds is None else f"{ran.first_token_seconds:.2f}"
            cells = (
                f"{ran.factor:g}",
                f"{ran.sessions:g}",
                f"{mark}{row.hits:.2f}{mark}",
                f"{ran.hits:.2f}",
                f"{row.tokens_per_second:.0f}",
                f"{ran.tokens_per_second:.0f}",
                f"{row.first_token_seconds:.2f}",
                first,
            )
            yield f"{begin} | {' | '.join(cells)} |"
        if one.cliff is not None and one.measured_cliff is not None:
            told = f"cliff predicted at {one.cliff:,.0f} tokens, measured at {one.measured_cliff:,.0f}"
            yield f"{begin} | {told} | | | | | | | |"


def _bar(ran: Ran) -> float:
    return NEAR_ERROR if ran.factor <= NEAR and ran.sessions == 1.0 else FAR_ERROR


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
            lines.append(f"- {what}: {within} of {len(errors)} within {bar:g}, median error {_median(errors):.3f}")
            missed |= events and within < len(errors)
        tokens = [abs(row.tokens_per_second / row.ran.tokens_per_second - 1) for row in rows]
        measured = [(row.first_token_seconds, row.ran.first_token_seconds) for row in rows]
        first = [abs(ours / theirs - 1) for ours, theirs in measured if theirs]
        shares = [one.share_of_best for one in some if one.share_of_best is not None]
        lines.append(
            f"- tokens/s: median error {_median(tokens):.0%} (bar {TOKENS_ERROR:.0%}), worst {max(tokens):.0%}"
        )
        lines.append(f"- mean TTFT: median error {_median(first):.0%}")
        if shares:
            lines.append(f"- of 8-bit KV and fewer sessions the chosen gives {min(shares):.0%} of the best at least")
        missed |= events and (_median(tokens) > TOKENS_ERROR or min(shares, default=1.0) < LEAST_SHARE)
    return lines, missed


def _bars(some: Sequence[Predicted], rows: Sequence[Row]) -> Iterator[tuple[str, list[float], float]]:
    whole = [row for row in rows if row.ran.sessions == 1.0]
    near = [abs(row.hits - row.ran.hits) for row in whole if row.ran.factor <= NEAR]
    far = [abs(row.hits - row.ran.hits) for row in whole if row.ran.factor > NEAR]
    fewer = [abs(row.hits - row.ran.hits) for row in rows if row.ran.sessions < 1.0]
    yield f"hits on up to {NEAR:g} times the pool", near, NEAR_ERROR
    yield f"hits on up to {FAR:g} times the pool", far, FAR_ERROR
    yield "hits with fewer sessions", fewer, FAR_ERROR
    cliffs = [abs(one.cliff / one.measured_cliff - 1) for one in some if one.cliff and one.measured_cliff]
    yield "the cliff", cliffs, CLIFF_ERROR


def _median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 0.0


if __name__ == "__main__":
    sys.exit(main())

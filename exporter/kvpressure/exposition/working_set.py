"""PURE: what the page shows of the working set of an engine that computes evicted contexts again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from kvpressure.exposition.wording import Shown, percent, seconds, shown
from kvpressure.model.values import at
from kvpressure.model.view import EngineView

LEAST_RATIO: Final = 0.01
"""Of the computed prompt tokens, that were computed before: of less nothing is shown."""


def working_set(view: EngineView) -> list[Shown]:
    """Return its rows; none where nothing is known to be computed again."""
    derived = view.derived
    again, computed = (at(derived, f"{what}_prompt_tokens_per_second") for what in ("recomputed", "computed"))
    if again is None or not computed or again < LEAST_RATIO * computed:
        return []
    takes = at(derived, "recomputed_time_ratio")
    rows = [shown(min(1.0, again / computed), "ratio", "computed again, of the prompt tokens computed")]
    rows += [] if takes is None else [shown(takes, "ratio", "of the engine's time")]
    return [*rows, *_hits(view), *_ages(view)]


def _hits(view: EngineView) -> Iterator[Shown]:
    hits = at(view.derived, "prefix_cache_hit_ratio")
    before = None if view.observed is None else view.observed.hit_ratio_before
    if hits is not None:
        yield shown(hits, "ratio", "prefix hits now")
        if before is not None and before > hits:
            yield shown(before, "ratio", "at a slower turnover")
    pools = view.derived.get("prefix_cache_hit_ratio_by_pool")
    if isinstance(pools, Mapping) and pools:
        found = ((pool, at(pools, pool)) for pool in sorted(pools, key=float))
        told = ", ".join(f"{percent(ratio)} at {pool}x" for pool, ratio in found if ratio is not None)
        yield Shown(told, "", "with a larger pool")


def _ages(view: EngineView) -> Iterator[Shown]:
    names = ("cache_turnover_seconds", "cache_eviction_age_min_seconds", "cache_eviction_age_max_seconds")
    turnover, least, most = (at(view.derived, name) for name in names)
    if turnover is not None:
        yield shown(turnover, "seconds", "turnover")
    if least is not None and most is not None:
        yield Shown(f"{seconds(least)} to {seconds(most)}", "", "a context nobody uses is kept")
    timed = at(view.derived, "cache_eviction_age_seconds")
    if timed is not None:
        yield shown(timed, "seconds", "as the engine times it")

"""PURE: the page's rows on the working set of an engine that computes evicted contexts again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from kvpressure.exposition.wording import percent, seconds
from kvpressure.model.values import at
from kvpressure.model.view import EngineView

LEAST_RATIO: Final = 0.01
"""Share of prompt tokens computed again, below which nothing is shown."""


def working_set(view: EngineView) -> dict[str, str]:
    """Return the known rows by their caption, none where (nearly) nothing is computed again."""
    again, computed = (at(view.derived, f"{what}_prompt_tokens_per_second") for what in ("recomputed", "computed"))
    if again is None or not computed or again < LEAST_RATIO * computed:
        return {}
    share, takes = min(1.0, again / computed), at(view.derived, "recomputed_time_ratio")
    time = "" if takes is None else f", {percent(takes)} of the engine's time"
    rows = {
        "computed again": f"{percent(share)} of the prompt tokens computed{time}",
        "prefix hits": ", ".join(_hits(view)),
        "with a larger pool": ", ".join(_larger(view)),
        "turnover": ", ".join(_ages(view)),
    }
    return {caption: text for caption, text in rows.items() if text}


def _hits(view: EngineView) -> Iterator[str]:
    hits = at(view.derived, "prefix_cache_hit_ratio")
    before = None if view.observed is None else view.observed.hit_ratio_before
    if hits is not None:
        yield f"{percent(hits)} now"
        if before is not None and before > hits:
            yield f"{percent(before)} at a slower turnover"


def _larger(view: EngineView) -> Iterator[str]:
    pools = view.derived.get("prefix_cache_pool_hit_ratio")
    for pool in sorted(pools, key=float) if isinstance(pools, Mapping) else ():
        if (ratio := at(view.derived, "prefix_cache_pool_hit_ratio", pool)) is not None:
            yield f"{percent(ratio)} at {pool}x"


def _ages(view: EngineView) -> Iterator[str]:
    turnover, least, most, timed = (
        at(view.derived, f"cache_{name}_seconds")
        for name in ("turnover", "eviction_age_min", "eviction_age_max", "eviction_age")
    )
    if turnover is not None:
        yield seconds(turnover)
    if timed is not None:
        yield f"unused blocks are kept {seconds(timed)} on average, as the engine times them"
    elif least is not None and most is not None:
        yield f"unused blocks are kept {seconds(least)} to {seconds(most)}"

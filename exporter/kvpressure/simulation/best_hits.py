"""What the cache would find if nothing were evicted, and whether contexts come back to an engine that evicts them."""

from __future__ import annotations

from typing import Final

from kvpressure.config.thresholds import Thresholds
from kvpressure.model.view import Observed

LEAST_TURNOVER_FACTOR: Final = 8.0
"""Times today's turnover, from which on what was found is believed to be all that can be."""


def has_sessions(observed: Observed | None, thresholds: Thresholds) -> bool:
    """Return whether much more was found in the cache than is now, or would be in a larger one."""
    if observed is None or observed.minutes is None or observed.minutes.hit_ratio >= 1.0:
        return False
    now, best = observed.minutes.hit_ratio, best_hit_ratio(observed)
    return best is not None and (best - now) / (1.0 - now) >= thresholds.eviction.recomputed_min_ratio


def best_hit_ratio(observed: Observed) -> float | None:
    """Return the share of the prompt tokens that would be found if nothing were evicted; None where not known."""
    found, before = [one.ratio for one in observed.hits_by_pool], observed.hit_ratio_before
    reached = max((one.factor for one in observed.hits_by_pool), default=0.0) >= LEAST_TURNOVER_FACTOR
    if not reached and before is not None and (observed.turnover_before_factor or 0.0) >= LEAST_TURNOVER_FACTOR:
        found.append(before)
    return max(found, default=None)

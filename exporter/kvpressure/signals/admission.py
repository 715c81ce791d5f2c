"""What a request takes of the cache while it comes in, learned from the use of the cache.

Where layers differ its tokens do not say: a sliding window keeps the last of a prompt, but needs room for a whole chunk
of it while that is computed. So use jumps with each start and falls back, and only somebody who saw the jumps knows
what the next one needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

from kvpressure.config.thresholds import Thresholds
from kvpressure.signals.windows import EngineWindow

_NEAR_POLLS: Final = 5
"""A jump is measured against as many polls before and after it: use drifts while answers grow."""


def coming_in_tokens(window: EngineWindow, thresholds: Thresholds) -> float | None:
    """Tokens of the pool that the next start needs for a moment; None where use does not jump, or is not known.

    Polls see a prompt at whatever chunk they fall into, so the next may need more than the highest jump seen.
    """
    capacity = window.cache.capacity_tokens
    polls = [(point.gauges.get("running", 0.0), point.gauges.get("kv_usage")) for point in window.points]
    known = [(running, usage) for running, usage in polls if running >= 1 and usage is not None]
    if capacity is None or not known:
        return None
    held = median(usage / running for running, usage in known)
    most = held + max(_jump(known, index) for index in range(len(known)))
    jumps = most >= thresholds.coming_in_min_factor * held
    return most * thresholds.coming_in_unseen_factor * capacity if jumps else None


def _jump(polls: Sequence[tuple[float, float]], index: int) -> float:
    """How much more was used in this poll than in those near it, with as many running."""
    running, usage = polls[index]
    near = polls[max(0, index - _NEAR_POLLS) : index + _NEAR_POLLS + 1]
    return usage - min(used for others, used in near if others == running)

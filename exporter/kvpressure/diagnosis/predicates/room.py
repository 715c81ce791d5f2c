"""Whether waiting requests would fit into the cache."""

from __future__ import annotations

from typing import Final

from kvpressure.diagnosis.facts import Facts
from kvpressure.diagnosis.predicates import Fact, Shared, fact, reaches
from kvpressure.diagnosis.predicates.queue import queued_always
from kvpressure.diagnosis.predicates.symptoms import FIT, LENGTHS

MOSTLY_KEPT_RATIO: Final = 0.5
"""From here on, it is what is kept free more often than the pool's end that a prompt does not fit."""

_LONG_ANSWER: Final = (("prompt_tokens", "0.95"), ("output_tokens", "0.95"))

fit_known = Fact(lambda facts: facts.window.fit.blocked_ratio is not None, *FIT)
"""Whether the fit test could judge a poll."""

fit_uncertain = Fact(lambda facts: facts.window.fit.fit_unknown)
"""Whether a request may cost so much more than its tokens that typical ones need not fit."""

room_is_unseen = Fact(lambda facts: facts.window.fit.room_is_unseen, "waiting_room")
"""Whether requests take room that the page does not count, so that none is known to fit."""

usage_known = Fact(lambda facts: facts.window.kv_usage_ratio is not None, "kv_usage")
"""Whether the page says how much of the cache is in use."""

_OF_HISTOGRAMS: Final = frozenset({"finished_prompts", "started", "steps", LENGTHS})
"""What a page has of histograms, their sums and counts included."""

lengths_dropped = Fact(
    lambda facts: bool(facts.window.queue.ended) and facts.inputs.signals.isdisjoint(_OF_HISTOGRAMS), LENGTHS
)
"""Whether requests end and the page has no histogram: somebody on the way has dropped them."""


@fact()
def cache_is_full(facts: Facts) -> bool:
    """Return whether running requests have nearly all of the cache."""
    usage = facts.window.kv_usage_ratio
    return usage is not None and usage >= facts.thresholds.symptoms.kv_full_min_ratio


was_full = Fact(
    lambda facts: (facts.window.highest_kv_usage_ratio or 0.0) >= facts.thresholds.symptoms.kv_saturated_min_ratio
)
"""Whether the cache was as full in the whole window as where requests are preempted."""

preemptions_counted = Fact(lambda facts: facts.window.preemption.burst_count is not None, "preemptions")
"""Whether the page counts preemptions."""


@fact()
def other_pool_full(facts: Facts) -> bool:
    """Return whether a pool beside that of tokens is full, and fuller than that."""
    pool, usage = facts.window.pool, facts.window.kv_usage_ratio or 0.0
    return pool.usage_ratio >= max(usage, facts.thresholds.symptoms.kv_saturated_min_ratio)


capacity_known = Fact(lambda facts: facts.inputs.value("kv_capacity_tokens") is not None)
"""Whether the pool's size is known."""

mostly_watermark = Fact(lambda facts: (facts.window.fit.by_watermark_ratio or 0.0) >= MOSTLY_KEPT_RATIO)
"""Whether most of the prompts that do not fit would but for what the watermark keeps free."""

mostly_reserve = Fact(lambda facts: (facts.window.fit.by_reserve_ratio or 0.0) >= MOSTLY_KEPT_RATIO)
"""Whether most of the prompts that do not fit would if no more was reserved than answers need."""

longest_blocked = Fact(
    lambda facts: reaches(
        facts.window.fit.blocked_by_longest_ratio, facts.thresholds.symptoms.admission_blocked_min_ratio
    ),
    *FIT,
)
"""Whether one of the longest recent prompts does not fit."""

long_still_blocked = Fact(
    lambda facts: reaches(
        facts.window.fit.blocked_by_long_ratio, facts.thresholds.symptoms.admission_unblocked_max_ratio
    )
)
"""Whether some of the long prompts still do not fit: a full pool empties in jumps."""


@fact(*FIT)
def long_fits(facts: Facts) -> bool | None:
    """Return whether a long prompt fits at every poll; None where only the mean length is known, and that fits."""
    fit = facts.window.fit
    if fit.blocked_by_long_ratio is None or (fit.blocked_by_long_ratio == 0.0 and not fit.lengths_known):
        return None
    return fit.blocked_by_long_ratio == 0.0


preempted = Fact(lambda facts: facts.window.preemption.in_window)
"""Whether a request was preempted in the window."""

preempted_in_long_window = Fact(lambda facts: facts.window.preemption.in_long_window)
"""Whether a request was preempted in the longer window."""


@fact(*FIT)
def room_is_ample(facts: Facts) -> bool | None:
    """Return whether most of the cache is free, with room for several long requests with long answers."""
    inputs = facts.inputs
    usage = facts.window.kv_usage_ratio
    thresholds = facts.thresholds
    free = inputs.value("kv_free_tokens")
    prompt, answer = (inputs.value(*path) for path in _LONG_ANSWER)
    if free is None or usage is None or prompt is None or answer is None:
        return None
    ample = free >= thresholds.room.room_ample_min_factor * (prompt + answer)
    return usage <= thresholds.room.room_ample_max_usage_ratio and ample


preempted_without_room = Shared(preempted & ~room_is_ample.known_true())
"""A preempted request must fit with its answer so far."""

cache_may_hold_queue = Shared(queued_always & (longest_blocked | preempted_without_room))
"""A queue without a pause whose head is one of the longest, or was preempted."""


@fact(*FIT)
def cache_lacks_room(facts: Facts) -> bool | None:
    """Return whether what waits does not fit; where the size of the cache is not known, most of it is in use then."""
    if facts.symptom("admission_blocked"):
        return True
    if facts.window.fit.blocked_ratio is not None:
        return False
    usage = facts.window.kv_usage_ratio
    return None if usage is None else usage > facts.thresholds.room.room_ample_max_usage_ratio

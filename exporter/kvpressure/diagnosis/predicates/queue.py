"""Whether there is demand, whether requests wait, and what for."""

from __future__ import annotations

from typing import Final

from kvpressure.diagnosis.facts import Facts
from kvpressure.diagnosis.predicates import Fact, Shared, fact, reaches
from kvpressure.diagnosis.predicates.symptoms import REASONS
from kvpressure.model.environment import DECODE, PREFILL

MIN_POLLS: Final = 4
"""Fewer make no verdict, however far apart."""

always = Fact(lambda _: True)
"""True: the last rule holds where no other does."""


@fact()
def too_few_polls(facts: Facts) -> bool:
    """Return whether a verdict needs more polls: the least number, or a whole window of a few where polls are rare."""
    window, thresholds = facts.window, facts.thresholds
    rare = window.polls >= MIN_POLLS and window.seconds >= thresholds.verdict.verdict_window_seconds
    return window.polls < thresholds.verdict.verdict_min_poll_count and not rare


activity_unknown = Fact(lambda facts: facts.window.busy is None, "running")
"""Whether the page does not show whether there is anything to do."""

demand_unknown = Fact(lambda facts: facts.window.queue.demand is None, "running")
"""Whether the page has no number of requests running, or none of those that wait."""

busy = Fact(lambda facts: facts.window.busy)
"""Whether requests run or wait, or work was done."""


@fact("running")
def somebody_runs(facts: Facts) -> bool | None:
    """Return whether requests run in any poll: a limit of the scheduler holds others back beside those."""
    queue = facts.window.queue
    return None if queue.demand is None or queue.waiting is None else queue.demand > queue.waiting


reasons_known = Fact(lambda facts: facts.window.queue.reasons_known, REASONS)
"""Whether the page says whether requests wait for a place in the batch or were deferred."""

queued = Fact(
    lambda facts: reaches(facts.window.queue.waiting_ratio, facts.thresholds.queue.waiting_min_ratio), REASONS
)
"""Whether requests wait in most of the polls."""

_in_nearly_every_poll = Fact(
    lambda facts: reaches(facts.window.queue.waiting_ratio, facts.thresholds.room.starved_min_waiting_ratio)
)
"""Whether requests wait in nearly every poll."""

waited_in_window = Fact(lambda facts: reaches(facts.inputs.value("requests_waiting"), 1))
"""Whether a request or more waited on average over the whole window, which is longer than a verdict's."""

any_waited_in_window = Fact(lambda facts: reaches(facts.inputs.value("requests_waiting_max"), 1))
"""Whether a request waited in any poll of the whole window."""


@fact()
def shrinks(facts: Facts) -> bool | None:
    """Return whether far fewer requests wait in the newest polls than on average over the whole window."""
    before, now = facts.inputs.value("requests_waiting"), facts.window.queue.waiting
    return None if before is None or now is None else now < facts.thresholds.queue.queue_shrinks_max_ratio * before


@fact()
def grows(facts: Facts) -> bool:
    """Return whether more wait in the newest poll than on average over the whole window."""
    before, now = facts.inputs.value("requests_waiting"), facts.window.queue.newest
    return before is not None and now is not None and now > before


pool_fills = Fact(lambda facts: facts.inputs.value("kv_exhaustion_seconds") is not None)
"""Whether the KV cache fills at a rate that exhausts it: then a queue is no remainder of an earlier one."""

mostly_deferred = Fact(
    lambda facts: reaches(facts.window.queue.deferred_ratio, facts.thresholds.queue.deferred_min_ratio), REASONS
)
"""Whether the engine has deferred most of the waiting requests."""

queued_always = Shared(_in_nearly_every_poll & ~mostly_deferred.known_true())
"""Requests wait in nearly every poll, and are not mostly deferred."""


@fact("fetching")
def mostly_fetching(facts: Facts) -> bool | None:
    """Return whether most waiting requests have their KV on its way, and so their place in the cache already.

    The engine counts them as deferred, too; others whose KV lies elsewhere wait for a place like all.
    """
    queue, least = facts.window.queue, facts.thresholds.queue.deferred_min_ratio
    if queue.fetching_ratio is None:
        # No connector looks prompts up anywhere, or waiting requests are known to wait for a place.
        place = queue.deferred_ratio is not None and queue.deferred_ratio < least
        return False if facts.window.deferral.connector is False or place else None
    return queue.fetching_ratio >= least and (queue.deferred_ratio is None or queue.deferred_ratio >= least)


@fact("transfer_seconds")
def mostly_in_transfer(facts: Facts) -> bool | None:
    """Return whether most requests that a decode engine has deferred are transfers under way, by Little's law."""
    transfer, queue = facts.window.transfer, facts.window.queue
    if transfer.role != DECODE or not queue.waiting:
        return False
    kinds = (queue.deferred_ratio, queue.fetching_ratio)
    deferred = min((kind for kind in kinds if kind is not None), default=0.0) * queue.waiting
    least = facts.thresholds.queue.deferred_min_ratio
    return deferred >= least * queue.waiting and reaches(transfer.in_flight, least * deferred)


@fact()
def finished_prompts_fill_the_cache(facts: Facts) -> bool | None:
    """Return whether a prefill engine's cache is mostly full of finished prompts that wait to be read."""
    transfer, thresholds = facts.window.transfer, facts.thresholds
    if transfer.role != PREFILL:
        return False
    most = reaches(transfer.held_kv_ratio, thresholds.queue.held_for_transfer_min_ratio)
    return most and reaches(transfer.held_seconds, thresholds.queue.held_for_transfer_min_seconds)


may_fetch = Fact(
    lambda facts: facts.window.queue.fetching_ratio is None and facts.window.deferral.connector is True,
    "external_queries",
)
"""Whether a connector looks prompts up elsewhere, and the page does not say how many wait for it."""


@fact(REASONS)
def streams_only(facts: Facts) -> bool:
    """Return whether nothing runs and all that wait stay deferred: streams whose next piece has not come."""
    window = facts.window
    empty = (window.kv_usage_ratio or 0.0) < facts.thresholds.queue.stream_idle_max_usage_ratio
    quiet = empty and not window.throughput.generated_tokens
    return window.queue.all_deferred_ratio == 1.0 and quiet and window.queue.unchanged


@fact()
def may_be_sessions(facts: Facts) -> bool:
    """Return whether those that wait may be sessions without input, of which the page does not say whether they are.

    They stay as few, and take little of the cache. The versions that have sessions also count prompts by their source.
    """
    stall, thresholds = facts.window.stall, facts.thresholds
    few = not stall.grows and stall.waits < thresholds.progress.stuck_deferred_min_count
    small = (facts.window.kv_usage_ratio or 0.0) < thresholds.queue.stream_idle_max_usage_ratio
    untold = not facts.window.queue.reasons_known and "computed_prompt_tokens" in facts.inputs.signals
    return untold and few and small


@fact()
def adapters_lack_slots(facts: Facts) -> bool | None:
    """Return whether more adapters were requested than may run at once, and all slots were taken."""
    deferral = facts.window.deferral
    return deferral.slots is not None and deferral.slots_taken and deferral.adapters_oversubscribed


@fact("external_queries")
def mostly_brought(facts: Facts) -> bool | None:
    """Return whether most of the prompts' KV is brought from elsewhere."""
    deferral = facts.window.deferral
    return deferral.connector is not False and reaches(
        deferral.brought_ratio, facts.thresholds.queue.deferred_min_ratio
    )


_for_many_steps = Fact(
    lambda facts: reaches(facts.window.queue.waited_steps, facts.thresholds.queue.put_off_min_step_count), "steps"
)
"""Whether requests wait for many steps."""


@fact("prefill_seconds")
def _prompts_are_rare(facts: Facts) -> bool | None:
    """Return whether hardly ever a prompt is computed."""
    prefilling = facts.window.throughput.prefilling
    return None if prefilling is None else prefilling <= facts.thresholds.batch.prefill_rare_max_ratio


behind_nobody = _in_nearly_every_poll & _for_many_steps & _prompts_are_rare
"""Requests wait for many steps and for no prompt before them: for a grammar, which no page shows."""


@fact()
def longest_fits(facts: Facts) -> bool | None:
    """Return whether the longest prompt fits at every poll, and nothing was preempted that must fit with its answer."""
    ratio = facts.window.fit.blocked_by_longest_ratio
    return not facts.window.preemption.in_long_window and (None if ratio is None else ratio == 0.0)


must_be_deferred = Shared(longest_fits & (mostly_brought | adapters_lack_slots | behind_nobody))
"""Where the page does not say what requests wait for: all fit, no cap binds, and there is something to wait for."""


@fact()
def remote_kv_shows(facts: Facts) -> bool:
    """Return whether KV comes from other engines, by the connector in use or what the engine does, and no other way."""
    deferral = facts.window.deferral
    return (deferral.remote or facts.window.transfer.role == DECODE) and not deferral.offload


offload_shows = Fact(lambda facts: facts.window.deferral.offload and not facts.window.deferral.remote)
"""Whether an offload tier is in use, and no connector to other engines."""

kv_from_elsewhere_possible = Fact(
    lambda facts: facts.window.deferral.connector is not False and facts.window.queue.fetching_ratio is None,
    "fetching",
    "external_queries",
)
"""Whether requests may wait for KV: a connector may be in use, and the page does not count those."""


@fact()
def slot_possible(facts: Facts) -> bool:
    """Return whether requests may wait for a slot for an adapter."""
    deferral = facts.window.deferral
    return deferral.slots is not None and deferral.adapters_oversubscribed is not False


image_possible = Fact(lambda facts: facts.window.deferral.images is not False, "encoder_queries")
"""Whether requests may wait for room for an image."""

several_kinds_possible = Shared(kv_from_elsewhere_possible | slot_possible | image_possible)
"""What is waited for may be something else than a grammar, which shows nowhere."""

"""Whether requests wait, and what for on their own account."""

from __future__ import annotations

from kvpressure.diagnosis.facts import Facts
from kvpressure.diagnosis.kleene import Shared, fact
from kvpressure.diagnosis.predicates.symptoms import REASONS


@fact(REASONS)
def queued(facts: Facts) -> bool:
    """Requests wait in most of the polls."""
    ratio = facts.recent.waiting_ratio
    return ratio is not None and ratio >= facts.thresholds.waiting_min_ratio


@fact()
def queued_always(facts: Facts) -> bool:
    """Requests wait in nearly every poll, and not on their own account."""
    ratio = facts.recent.waiting_ratio
    always = ratio is not None and ratio >= facts.thresholds.starved_min_waiting_ratio
    return always and not mostly_deferred.state(facts)


@fact(REASONS)
def mostly_deferred(facts: Facts) -> bool | None:
    """Most of those that wait have been put off by the engine on their own account."""
    ratio = facts.recent.deferred_ratio
    return None if ratio is None else ratio >= facts.thresholds.deferred_min_ratio


@fact("fetching")
def mostly_fetching(facts: Facts) -> bool | None:
    """Most of those that wait have their KV on its way from elsewhere; their place in the cache is taken already.

    The engine counts them as put off, too; others whose KV lies elsewhere wait for a place like anybody.
    """
    recent, least = facts.recent, facts.thresholds.deferred_min_ratio
    if recent.fetching_ratio is None:
        # No connector looks prompts up anywhere, or those that wait are known to wait for a place.
        place = recent.deferred_ratio is not None and recent.deferred_ratio < least
        return False if recent.deferral.connector is False or place else None
    return recent.fetching_ratio >= least and (recent.deferred_ratio is None or recent.deferred_ratio >= least)


@fact("external_queries")
def may_fetch(facts: Facts) -> bool:
    """A connector looks prompts up elsewhere, and the page does not tell how many wait for it."""
    recent = facts.recent
    return recent.fetching_ratio is None and recent.deferral.connector is True


@fact(REASONS)
def streams_only(facts: Facts) -> bool:
    """Nothing runs, and whoever waits is put off and stays so: streams whose next piece has not come."""
    recent = facts.recent
    quiet = not recent.tokens and (recent.usage or 0.0) < facts.thresholds.stream_idle_max_usage_ratio
    return recent.held_ratio == 1.0 and quiet and recent.unchanged


@fact()
def adapters_lack_slots(facts: Facts) -> bool:
    """More adapters were asked for than may run at once, and all slots were taken."""
    found = facts.recent.deferral
    return bool(found.crowded and found.slots_taken)


@fact("external_queries")
def mostly_brought(facts: Facts) -> bool:
    """Most of the prompts' KV is brought from elsewhere."""
    return (facts.recent.deferral.brought_ratio or 0.0) >= facts.thresholds.deferred_min_ratio


@fact("steps", "prefill_seconds")
def behind_nobody(facts: Facts) -> bool:
    """They wait for many steps, and for no prompt before them: for something that shows nowhere, such as a grammar."""
    recent, thresholds = facts.recent, facts.thresholds
    long = (recent.waited_steps or 0.0) >= thresholds.put_off_min_step_count
    behind = recent.prefilling is None or recent.prefilling > thresholds.prefill_rare_max_ratio
    return long and not behind and (recent.waiting_ratio or 0.0) >= thresholds.starved_min_waiting_ratio


@fact()
def longest_fits(facts: Facts) -> bool:
    """The longest prompt seen lately fits at every poll, and nothing was preempted that must fit with its answer."""
    return facts.recent.blocked_by_longest_ratio == 0.0 and not facts.recent.preempted_lately


must_be_deferred = Shared(longest_fits & (mostly_brought | adapters_lack_slots | behind_nobody))
"""Where no page tells what requests wait for: they all fit, no cap holds them, and there is something to wait for."""


@fact()
def remote_kv_shows(facts: Facts) -> bool:
    """A connector to other engines is in use, and no other."""
    found = facts.recent.deferral
    return found.remote and not found.offload


@fact()
def offload_shows(facts: Facts) -> bool:
    """An offload tier is in use, and no connector to other engines."""
    found = facts.recent.deferral
    return found.offload and not found.remote


@fact("fetching", "external_queries")
def kv_from_elsewhere_possible(facts: Facts) -> bool:
    """Those that wait may wait for KV. Where stages are told, a connector is in use, and hardly any wait for it."""
    return facts.recent.deferral.connector is not False and facts.recent.fetching_ratio is None


@fact()
def slot_possible(facts: Facts) -> bool:
    """Those that wait may wait for a slot for an adapter."""
    found = facts.recent.deferral
    return found.slots is not None and found.crowded is not False


@fact("encoder_queries")
def image_possible(facts: Facts) -> bool:
    """Those that wait may wait for room for an image."""
    return facts.recent.deferral.images is not False


several_kinds_possible = Shared(kv_from_elsewhere_possible | slot_possible | image_possible)
"""What is waited for may be something else than a grammar, which shows nowhere."""

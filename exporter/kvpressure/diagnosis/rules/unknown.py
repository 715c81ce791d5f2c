"""`unknown`: the evidence does not name a cause, and this is what is missing."""

from __future__ import annotations

from typing import Final

from kvpressure.diagnosis.facts import Facts, capital
from kvpressure.diagnosis.predicates import batch, queue, room
from kvpressure.diagnosis.rules import nothing_to_say, rules_of, same, waiting
from kvpressure.model.values import number
from kvpressure.model.verdict import Cause


def _polls(facts: Facts) -> str:
    return f"{facts.window.polls} polls in {facts.window.seconds:.0f} s."


_no_gauges = same("The page has no number of requests running, or none of those that wait.")
_layers_differ = same("A request may take so much more of the cache than its tokens that it does not fit.")
_reservations = same(
    "Requests wait, and the runtime reserves room for answers in advance: the page does not say how much of the cache."
)
_no_usage = same("Requests wait, and the page does not say how much of the KV cache is in use.")


def _no_capacity(facts: Facts) -> str:
    return f"{capital(waiting(facts))}; the page does not say how much the cache holds."


def _no_reasons(facts: Facts) -> str:
    return f"{capital(waiting(facts))}; the page does not say what for."


def _no_preemptions(facts: Facts) -> str:
    return f"{capital(waiting(facts))}, the cache was full lately, and the page does not count preemptions."


def _few_came(facts: Facts) -> str:
    return f"{capital(waiting(facts))}, and too few have begun to tell the cache from a limit of the scheduler."


def _cold_start(facts: Facts) -> str:
    ended = facts.window.queue.ended
    full = " The KV cache was full lately." if room.was_full.state(facts) or room.preempted.state(facts) else ""
    if ended == 0:
        return f"Requests wait, and none has finished yet: how long prompts are is not known.{full}"
    end = " and end" if ended else ""
    return f"Requests wait{end}, and the page does not count lengths: how long prompts are is not known.{full}"


def _dropped(facts: Facts) -> str:
    ended = number(round(facts.window.queue.ended or 0.0))
    return (
        f"{capital(waiting(facts))}, {ended} ended in {facts.window.seconds:.0f} s, and no *_bucket of a histogram "
        "reaches kvpressure: lengths, steps and starts are not known."
    )


_fit_unknown = queue.queued & ~room.fit_known
_no_lengths = _fit_unknown & room.capacity_known & ~room.room_is_unseen
_unseen = _fit_unknown & room.room_is_unseen & ~batch.at_cap

_preemptions_unseen = (queue.queued | queue.any_waited_in_window) & room.was_full & ~room.preemptions_counted
"""Behind a full cache, whether a queue passes, and who is in it at times, shows in what is preempted."""

_dropped_evidence = queue.queued & room.lengths_dropped & ~batch.at_declared_cap.known_true()
"""Without the histograms, a queue behind full steps and one at a cap look alike."""

RULES: Final = rules_of(
    Cause.UNKNOWN,
    "unknown",
    {},  # Nothing speaks for it: it is no cause.
    ("too_few_polls", "too_few_polls", queue.too_few_polls, _polls),
    ("no_activity", "no_gauges", queue.activity_unknown, _no_gauges),
    ("no_queue", "no_gauges", queue.demand_unknown, _no_gauges),
    ("layers_differ", "layers_differ", queue.queued & room.fit_uncertain, _layers_differ),
    ("reservations", "reservations", _unseen, _reservations),
    ("no_usage", "no_gauges", _no_lengths & ~room.usage_known, _no_usage),
    ("dropped", "dropped", _dropped_evidence, _dropped),
    ("cold_start", "cold_start", _no_lengths, _cold_start),
    (
        "no_capacity",
        "no_capacity",
        _fit_unknown & (~queue.reasons_known | queue.queued_always),
        _no_capacity,
    ),
    ("no_preemptions", "dropped", _preemptions_unseen, _no_preemptions),
    ("no_reasons", "no_reasons", queue.queued & ~queue.reasons_known, _no_reasons),
    # What else would be said of them is that a limit of the scheduler holds them back.
    ("few_came", "", queue.queued & ~batch.refilled & ~batch.step_at_budget.known_true(), _few_came),
    # They fit by one bound and not by the other.
    ("bounds_disagree", "", queue.queued, nothing_to_say),
)

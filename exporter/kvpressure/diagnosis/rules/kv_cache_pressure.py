"""`kv_cache_pressure`: KV is what stops demand from running, or what running requests compute again.

Admission is blocked, requests are preempted, or the cache is full. A full cache counts only where the fit test cannot
judge, or the batch breathes with the pool: at a fixed cap, with room for the next prompt, it is the cap that makes
requests wait. Without a queue, it is what the pool does not keep of contexts that come back: they are evicted and
computed again. Where both are so, the grounds say both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvpressure.diagnosis.facts import Facts, capital
from kvpressure.diagnosis.predicates import Fact, Predicate, Shared, batch, progress, queue, room, symptoms
from kvpressure.diagnosis.rules import (
    Grounds,
    Rule,
    dropped,
    expired,
    loading,
    nothing_to_say,
    of_symptom,
    same,
    waiting,
)
from kvpressure.diagnosis.score import EVICTION_SHOWS, KV_SHOWS
from kvpressure.model.values import number
from kvpressure.model.verdict import Cause
from kvpressure.signals.eviction import Eviction

EXPECTS: Final[Mapping[str, bool]] = {
    "batch_collapse": True,
    "latency_inflated": True,
    "throughput_plateau": True,
    "gpu_compute_low": True,
    "gpu_memory_high": True,
    KV_SHOWS: True,
}

EVICTION_EXPECTS: Final[Mapping[str, bool]] = {EVICTION_SHOWS: True, "gpu_compute_low": False}
"""No request has to wait, and steps full of prompts keep a GPU busy; whether answers are late depends on the load."""

_named_before = Fact(lambda facts: facts.cause_before is Cause.KV_CACHE_PRESSURE)
"""Whether the verdict before named this cause."""

_stays = Shared(_named_before & room.long_still_blocked & queue.queued & ~batch.at_cap)
"""A full pool empties in jumps: it is the limit while requests wait, no cap binds and some still do not fit."""

_full = symptoms.kv_saturated & (~room.fit_known | ~(batch.at_cap | queue.mostly_deferred.known_true()) | _stays)
_limits = Shared(symptoms.admission_blocked | symptoms.preempting | _full | _stays)
"""The first condition of all rules that stand together."""

_ERROR_SAID_RATIO: Final = 0.01
_POOLS_SAID: Final = (1.5, 2.0, 4.0)


def _kv(name: str, detail: str, when: Predicate, grounds: Grounds) -> Rule:
    return Rule(f"kv.{name}", Cause.KV_CACHE_PRESSURE, detail, when, _with_evictions(grounds), EXPECTS)


def _with_evictions(grounds: Grounds) -> Grounds:
    """Return the same grounds, and what is evicted besides: its cures are others."""

    def both(facts: Facts) -> str:
        said = grounds(facts)
        if facts.symptom("evicting") is not True:
            return said
        return " ".join(filter(None, (said, f"Contexts are evicted too: {_evicted(facts)}")))

    return both


def _stranded(facts: Facts) -> str:
    usage = facts.window.kv_usage_ratio
    cache = "" if usage is None else f", {usage:.0%} of the cache is in use"
    return f"For {facts.window.progress.still_seconds:.0f} s {waiting(facts)} and none runs{cache}.{expired(facts)}"


def _held_for_transfer(facts: Facts) -> str:
    transfer = facts.window.transfer
    tokens = (
        f"{number(round(transfer.held_tokens or 0.0))} tokens, {transfer.held_kv_ratio or 0.0:.0%} of the cache in use"
    )
    not_read = "are finished prompts that the decode side has not read yet"
    return f"{capital(waiting(facts))}; {tokens}, {not_read}.{expired(facts)}"


def _watermark(facts: Facts) -> str:
    share, most = facts.inputs.declared.get("kv_watermark_ratio", 0.0), facts.window.fit.by_watermark_ratio or 0.0
    free = facts.inputs.value("kv_free_tokens")
    left = "" if free is None else f", {number(round(free))} tokens are left"
    return f"{share:.1%} of the cache is kept free{left}: but for that a prompt would fit in {most:.0%} of the polls."


def _reserved(facts: Facts) -> str:
    free, most = facts.inputs.value("kv_free_tokens"), facts.window.fit.by_reserve_ratio or 0.0
    are = "" if free is None else f"{number(round(free))} tokens are free. "
    return (
        f"{are}Room is reserved for longer answers than there are (max_tokens of requests); but for that a prompt "
        f"would fit in {most:.0%} of the polls."
    )


def _longest(facts: Facts) -> str:
    ratio = facts.window.fit.blocked_by_longest_ratio or 0.0
    return f"Polls in which one of the longest prompts did not fit the free cache: {ratio:.0%}."


_lately = queue.waited_in_window | room.preempted_in_long_window | (queue.any_waited_in_window & ~batch.at_cap)
"""Requests waited in the last minute, at no cap also one at times, or were preempted in the last ten."""


def _still_full(facts: Facts) -> str:
    usage = facts.window.kv_usage_ratio or 0.0
    return f"KV cache used: {usage:.0%}; requests waited in the last minute, or were preempted."


def _other_pool(facts: Facts) -> str:
    pool, usage = facts.window.pool, facts.window.kv_usage_ratio
    tokens = "" if usage is None else f", that of tokens to {usage:.0%}"
    return f"{capital(waiting(facts))}; the pool of {pool.name} is used to {pool.usage_ratio:.0%}{tokens}."


_preempted = same("Requests were preempted, and wait until they fit with their answers.")


def _evicted(facts: Facts) -> str:
    """Return what is evicted, and what an offload tier has of it, where one is in use."""
    hit_ratio = facts.window.deferral.offload_hit_ratio
    if hit_ratio is None:
        return _evicted_from_pool(facts)
    tier = f"The offload tier had {hit_ratio:.0%} of what the pool lacked.{loading(facts)}{dropped(facts)}"
    return f"{_evicted_from_pool(facts)} {tier}"


def _evicted_from_pool(facts: Facts) -> str:
    eviction = facts.window.eviction
    hits, before = eviction.hit_ratio or 0.0, eviction.hit_ratio_before or 0.0
    if eviction.by_events:
        return _evicted_by_events(eviction)
    at_rate = " at the highest rate measured" if eviction.time_by_rate else ""
    return (
        f"The cache turns over every {number(eviction.turnover_seconds or 0.0)} s; prefix hits are {hits:.0%}, and "
        f"were {before:.0%} at a slower turnover: {eviction.recomputed_ratio or 0.0:.0%} of the prompt tokens computed "
        f"were computed before, which takes {eviction.time_ratio or 0.0:.0%} of the time{at_rate} "
        f"(evidence: {eviction.evidence})."
    )


def _evicted_by_events(eviction: Eviction) -> str:
    parts = []
    if eviction.turnover_seconds is not None:
        parts.append(f"The cache turns over every {number(eviction.turnover_seconds)} s. ")
    if eviction.hit_ratio is not None:
        larger = ((pool, eviction.hit_ratio_by_pool.get(pool)) for pool in _POOLS_SAID)
        would = ", ".join(f"{hits:.0%} with {pool:g} times the pool" for pool, hits in larger if hits is not None)
        parts.append(f"Prefix hits are {eviction.hit_ratio:.0%}{would and f', and would have been {would}'}. ")
    about = f" (give or take {eviction.error_ratio:.0%} of that)" if eviction.error_ratio >= _ERROR_SAID_RATIO else ""
    parts.append(
        f"{eviction.recomputed_ratio or 0.0:.0%} of the prompt tokens computed{about} had been evicted, which takes "
        f"{eviction.time_ratio or 0.0:.0%} of the time (evidence: KV events)."
    )
    return "".join(parts)


_unread = queue.finished_prompts_fill_the_cache

RULES: Final = (
    # Trouble of the decode side: whatever makes requests wait here, they would not if it read what is ready.
    _kv(
        "held_for_transfer",
        "held_for_transfer",
        _unread & ((progress.still_long & room.cache_lacks_room) | _limits),
        _held_for_transfer,
    ),
    # Finished requests whose blocks are not fetched fill the cache and stop everything, as a hang does.
    _kv("stranded", "stranded", progress.still_long & room.cache_lacks_room, _stranded),
    _kv("nothing_runs", "stranded", _limits & progress.nothing_runs, _stranded),
    _kv("watermark", "watermark", _limits & symptoms.admission_blocked & room.mostly_watermark, _watermark),
    _kv("preemption", "preemption", _limits & symptoms.preempting, of_symptom("preempting")),
    _kv("reserved", "reserved", _limits & symptoms.admission_blocked & room.mostly_reserve, _reserved),
    _kv("admission", "admission", _limits & symptoms.admission_blocked, of_symptom("admission_blocked")),
    _kv("full", "full", _limits & _full, of_symptom("kv_saturated")),
    _kv("stays_longest", "admission", _limits & _stays & room.longest_blocked, _longest),
    _kv("stays_preempted", "preemption", _limits & _stays & room.preempted, _preempted),
    _kv("stays", "", _limits & _stays, nothing_to_say),
    # With a queue or without: steps are filled with prompts that the pool did not keep.
    # The pool of tokens has room, whatever would fit there.
    _kv("other_pool", "other_pool", queue.queued & room.other_pool_full, _other_pool),
    Rule(
        "kv.eviction",
        Cause.KV_CACHE_PRESSURE,
        "eviction",
        symptoms.evicting | (symptoms.may_evict & batch.mostly_prefill),
        _evicted,
        EVICTION_EXPECTS,
        has_lasted=True,
    ),
    # A cache that was too small and is still full is not well again because nobody waits for a moment.
    _kv("stays_full", "full", _named_before & symptoms.usage_saturated & _lately, _still_full),
    # No cap limits the batch, and requests are known to wait for a place in it.
    _kv("longest", "admission", queue.queued & queue.queued_always & room.longest_blocked, _longest),
    _kv("preempted", "preemption", queue.queued & queue.queued_always & room.preempted_without_room, _preempted),
)

"""Whether demand is served at all: what comes out since a request was last admitted or ended."""

from __future__ import annotations

from typing import Final

from kvpressure.diagnosis.facts import Facts
from kvpressure.diagnosis.predicates import Fact, Shared, fact
from kvpressure.diagnosis.predicates.queue import finished_prompts_fill_the_cache, may_be_sessions, may_fetch
from kvpressure.diagnosis.predicates.symptoms import REASONS

_LEAST_POLLS: Final = 3
_EMPTY_RATIO: Final = 0.01


def _lasts(facts: Facts, seconds: float) -> bool:
    stall = facts.window.stall
    return stall.seconds >= seconds and stall.polls >= _LEAST_POLLS


def _no_prompt_grows(facts: Facts) -> bool:
    """Return whether no prompt has been computed into the cache for so long that none is under way."""
    return facts.window.stall.filled_seconds >= facts.thresholds.progress.stuck_frozen_min_seconds


_silent = Fact(lambda facts: facts.window.stall.tokens == 0)
"""Whether there is demand, and not one token has come out since anybody was served."""

given_up = Fact(
    lambda facts: facts.window.stall.falls >= 1 and _lasts(facts, facts.thresholds.progress.stuck_frozen_min_seconds)
)
"""Whether computed prompts were dropped from the cache again, and nobody was served for so long."""


@fact()
def fills_the_pool(facts: Facts) -> bool:
    """Return whether a prompt has been computed for so long, and leaves no room for its answer."""
    stall, thresholds = facts.window.stall, facts.thresholds
    full = stall.full_ratio >= thresholds.symptoms.kv_saturated_min_ratio
    return full and stall.runs > 0 and _lasts(facts, thresholds.progress.stuck_prompt_min_seconds)


_stands = Fact(
    lambda facts: _lasts(facts, facts.thresholds.progress.stuck_trickle_min_seconds) and _no_prompt_grows(facts)
)
"""Whether nobody was served for so long, and no prompt is being computed."""

_stands_for_minutes = Fact(
    lambda facts: _lasts(facts, facts.thresholds.progress.stuck_deferred_min_seconds) and _no_prompt_grows(facts)
)
"""Whether it has lasted for so long that no transfer of KV and no grammar takes it."""

_held_for_minutes = Fact(lambda facts: _lasts(facts, facts.thresholds.progress.stuck_held_min_seconds))
"""Whether it has lasted for so long that no other side is still about to fetch what is held."""

_something_runs = Fact(lambda facts: facts.window.stall.runs > 0)


@fact(REASONS)
def _waits_for_a_place(facts: Facts) -> bool | None:
    """Return whether a request waits for a place in the batch: not all that wait are deferred; None where untold."""
    stall = facts.window.stall
    if may_be_sessions.state(facts):
        return None
    return stall.waits >= 1 and stall.deferred < stall.waits


@fact()
def _cache_is_empty(facts: Facts) -> bool:
    usage = facts.window.kv_usage_ratio
    return usage is not None and usage <= _EMPTY_RATIO


@fact()
def _are_no_sessions(facts: Facts) -> bool:
    """Return whether those deferred are no sessions that wait for input: more come in, or they are many.

    Sessions whose next input is missing stay as many, take little of the cache, and of many some have input by now.
    """
    stall, thresholds = facts.window.stall, facts.thresholds
    full = (facts.window.kv_usage_ratio or 0.0) >= thresholds.queue.stream_idle_max_usage_ratio
    return stall.grows or full or stall.deferred >= thresholds.progress.stuck_deferred_min_count


@fact("inter_token")
def _far_below(facts: Facts) -> bool:
    """Return whether hardly a token comes: by what the engine made before, or of each request by itself."""
    stall, thresholds = facts.window.stall, facts.thresholds
    rate, running = stall.tokens_per_second, stall.runs
    if rate is None or running <= 0:
        return False
    if rate * thresholds.progress.stuck_token_min_seconds <= running:
        return True
    each, least = stall.request_tokens_per_second, thresholds.progress.stuck_trickle_max_ratio
    if each is None:
        return False
    return rate / running <= least * each and rate <= least * max(each, stall.before_tokens_per_second or 0.0)


@fact()
def _slow_steps(facts: Facts) -> bool:
    """Return whether a step takes many times as long as the shortest did."""
    now, before = facts.window.stall.step_seconds, facts.window.stall.before_step_seconds
    return now is not None and before is not None and before <= facts.thresholds.progress.stuck_trickle_max_ratio * now


_alone_for_long = Fact(
    lambda facts: facts.window.stall.runs > 0 and _lasts(facts, facts.thresholds.progress.long_prompt_alone_min_seconds)
)
"""Whether requests run, and nobody was served for longer than the longest prompt takes that is served."""

_others_for_long = Fact(
    lambda facts: facts.window.stall.runs > 1 and _lasts(facts, facts.thresholds.progress.stuck_trickle_min_seconds)
)
"""Whether requests run, and nobody was served for so long that those that have a token already notice."""

_a_prompt_grows = Fact(
    lambda facts: None if facts.window.kv_usage_ratio is None else not _no_prompt_grows(facts), "kv_usage"
)
"""Whether a prompt has been computed into the cache lately; None where its use is not known."""


@fact()
def only_errors(facts: Facts) -> bool:
    """Return whether the server answered with many errors in the last minute, and not one token was computed.

    Where a prompt was computed or a request served, errors are of some requests; what clients cancel is no error.
    """
    value, least = facts.inputs.value, facts.thresholds.progress.stuck_errors_min_count
    tokens = [value("tokens_per_second", kind) for kind in ("prompt", "generation")]
    return (value("failed_requests_per_second", "server_error") or 0.0) * 60 >= least and tokens == [0.0, 0.0]


_own = ~finished_prompts_fill_the_cache.known_true()
"""Not a prefill engine that waits for the decode side."""

computes_again = Shared(_silent & (given_up | fills_the_pool) & _own)
"""Prompts are computed, and nothing comes of them, whatever runs at the moment of a poll."""

_none_runs = ~_something_runs & _silent & _own

too_large = Shared(_none_runs & _stands & _waits_for_a_place & _cache_is_empty)
"""The first request in the queue is not admitted to an empty cache."""

blocks_are_held = Shared(_none_runs & _held_for_minutes & _waits_for_a_place & ~_cache_is_empty)
"""Nothing runs, requests wait for a place, and the cache is not empty."""

deferred_for_ever = Shared(_none_runs & _stands_for_minutes & ~_waits_for_a_place & (_are_no_sessions | may_fetch))
"""All that wait are deferred, and they are no sessions without input."""

silent_batch = Shared(_silent & _stands & _something_runs & _own)
"""Requests run, or seem to, and not one token comes."""

trickles = Shared(_stands & _something_runs & _far_below & _own)
crawls = Shared(trickles & _slow_steps)

prompt_takes_long = Shared(_a_prompt_grows & ((_alone_for_long & _silent) | (_others_for_long & ~_silent & _far_below)))
"""A long prompt takes the time: nobody is served for so long, and those that had a token before hardly get another."""

"""`stuck`: there are requests, and no forward progress."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvpressure.diagnosis.facts import Facts
from kvpressure.diagnosis.predicates import Predicate, progress, room, stall
from kvpressure.diagnosis.rules import Grounds, Rule, expired, rules_of, running_and_waiting
from kvpressure.diagnosis.score import NOBODY_SERVED
from kvpressure.model.values import clock, number
from kvpressure.model.verdict import Cause

_IN_MINUTES_SECONDS: Final = 120.0

_STANDING: Final[Mapping[str, str]] = {
    "steps": "steps",
    "prompt_tokens": "prompt tokens",
    "generation_tokens": "generated tokens",
    "finished": "requests that ended",
    "started": "first tokens",
    "finished_prompts": "prompts of requests that ended",
    "preemptions": "preemptions",
    "running": "requests running",
    "waiting": "requests waiting",
    "waiting_deferred": "requests deferred",
    "kv_usage": "the use of the KV cache",
}


def _standing(facts: Facts) -> str:
    """Return what stands still, and since when."""
    progress = facts.window.progress
    seconds, since = progress.standing_seconds, facts.standing_since
    at = "" if since is None else f", since {clock(since, 'then')}"
    longest = seconds if since is None else max(seconds, facts.t - since)
    stands = ", ".join(_STANDING.get(name, name) for name in progress.standing)
    return f"Stand still for {longest:.0f} s{at}: {stands}. {running_and_waiting(facts)}"


_EXPECTS: Final[Mapping[str, bool]] = {
    "throughput_plateau": True,
    "gpu_compute_low": True,
    "preempting": False,
}


_LASTS: Final[Mapping[str, bool]] = {NOBODY_SERVED: True, "gpu_compute_low": True}
"""That nobody is served is the verdict itself; whether tokens follow demand shows nothing where there are none."""


def _duration(seconds: float) -> str:
    """Return seconds as people say them: in minutes from two on."""
    return f"{seconds:.0f} s" if seconds < _IN_MINUTES_SECONDS else f"{seconds / 60:.0f} minutes"


def _nobody_served(facts: Facts) -> str:
    """Return since when nobody has been served, and who runs and waits."""
    stall = facts.window.stall
    since = clock(facts.t - stall.seconds, "then")
    return f"No request has got its first token or ended for {_duration(stall.seconds)}, since {since}. " + (
        running_and_waiting(facts)
    )


def _computed_again(facts: Facts) -> str:
    stall = facts.window.stall
    if stall.falls:
        times = "once" if stall.falls == 1 else f"{stall.falls} times"
        again = f"{times} what was computed was dropped from the cache: a prompt that hardly fits is computed again."
    else:
        again = f"a prompt has filled the cache to {stall.full_ratio:.0%}, and its answer hardly fits beside it."
    return f"{_nobody_served(facts)} Not one token was generated; {again}"


def _silent(facts: Facts) -> str:
    return f"{_nobody_served(facts)} Not one token was generated meanwhile."


def _used(facts: Facts) -> str:
    usage = facts.window.kv_usage_ratio
    return "" if usage is None else f" {usage:.0%} of the KV cache is in use."


def _too_large(facts: Facts) -> str:
    capacity, longest = facts.inputs.value("kv_capacity_tokens"), facts.inputs.declared.get("max_model_len")
    pool = "" if capacity is None else f" of {number(round(capacity))} tokens"
    admitted = "" if longest is None else f" (max_model_len admits {number(round(longest))})"
    return (
        f"{_nobody_served(facts)} The cache is empty, and the first request in the queue is not admitted: it does not "
        f"fit the whole pool{pool}{admitted}, or the scheduler hangs. All others wait behind it."
    )


def _held(facts: Facts) -> str:
    held = "Requests that do not run hold it, and those that wait need it."
    return f"{_nobody_served(facts)}{_used(facts)} {held}{expired(facts)}"


def _deferred(facts: Facts) -> str:
    return f"{_nobody_served(facts)}{_used(facts)} All that wait are deferred, and what they wait for does not come."


def _trickle(facts: Facts) -> str:
    stall = facts.window.stall
    rate, each = stall.tokens_per_second or 0.0, stall.request_tokens_per_second
    before, least = stall.before_tokens_per_second, facts.thresholds.progress.stuck_trickle_max_ratio
    made = ""
    if before is not None and rate <= least * before:
        made = f"; it made {before:.0f} before"
    elif each is not None and rate <= least * each * stall.runs:
        made = f"; each request had {each:.1f} before"
    deferred = f" {number(round(stall.deferred))} of them are deferred." if stall.deferred else ""
    return f"{_nobody_served(facts)}{deferred}{_used(facts)} {rate:.2f} tokens/s are generated{made}."


def _crawling(facts: Facts) -> str:
    stall = facts.window.stall
    now, before = stall.step_seconds or 0.0, stall.before_step_seconds or 0.0
    return f"{_trickle(facts)} A step takes {now:.1f} s, and took {before:.2g} s at its fastest."


def _only_errors(facts: Facts) -> str:
    rate = facts.inputs.value("failed_requests_per_second", "server_error") or 0.0
    return (
        f"In the last minute the server answered {number(rate)} requests/s with an error (5xx), and not one token was "
        "computed."
    )


def _rule(name: str, detail: str, when: Predicate, grounds: Grounds) -> Rule:
    return Rule(f"stuck.{name}", Cause.STUCK, detail, when, grounds, _LASTS, has_lasted=True)


RULES: Final[tuple[Rule, ...]] = (
    # Nobody has been served for so long, whatever the newest polls show.
    _rule("computed_again", "looping", stall.computes_again, _computed_again),
    _rule("too_large", "too_large", stall.too_large, _too_large),
    _rule("held_blocks", "held_blocks", stall.blocks_are_held, _held),
    _rule("deferred", "deferred", stall.deferred_for_ever, _deferred),
    _rule("stands_still", "frozen", stall.silent_batch & progress.frozen_long, _standing),
    _rule("silent", "looping", stall.silent_batch, _silent),
    _rule("crawling", "crawling", stall.crawls & ~progress.frozen_long, _crawling),
    _rule("trickle", "trickle", stall.trickles & ~progress.frozen_long, _trickle),
    _rule("only_errors", "only_errors", stall.only_errors, _only_errors),
    *rules_of(
        Cause.STUCK,
        "stuck",
        _EXPECTS,
        ("looping", "looping", progress.loops_longest & progress.looping_long, _standing),
        ("frozen", "frozen", progress.frozen_long, _standing),
        ("nothing_runs", "nothing_runs", progress.still_long & ~room.cache_lacks_room, _standing),
    ),
)

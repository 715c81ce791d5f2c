"""`stuck`: there are requests, and no forward progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from kvpressure.diagnosis.facts import Facts
from kvpressure.diagnosis.kleene import Predicate
from kvpressure.diagnosis.predicates import progress, room
from kvpressure.diagnosis.rule import Rule
from kvpressure.diagnosis.wording import clock, running_and_waiting
from kvpressure.model.verdict import Cause
from kvpressure.signals.canary import CANARY_UNANSWERED

EXPECTS: Final[Mapping[str, bool]] = {
    "throughput_plateau": True,
    "gpu_compute_low": True,
    "preempting": False,
    CANARY_UNANSWERED: True,
}

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
    "waiting_deferred": "requests put off",
    "kv_usage": "the use of the KV cache",
}


def _stuck(name: str, when: Predicate, grounds: Callable[[Facts], str]) -> Rule:
    return Rule(f"stuck.{name}", Cause.STUCK, name, when, grounds, EXPECTS)


def _standing(facts: Facts) -> str:
    """Return what stands still, since when, and whether it answers."""
    window = facts.window
    seconds = max(window.progress.frozen_seconds, window.progress.looping_seconds, window.progress.still_seconds)
    stands = ", ".join(_STANDING.get(name, name) for name in window.progress.standing)
    held = facts.standing_since
    since = f"for {seconds:.0f} s" if held is None else f"for {max(seconds, facts.t - held):.0f} s, since {clock(held)}"
    told = f"Stand still {since}: {stands}. {running_and_waiting(facts)}"
    return f"{told} {_unanswered(facts)}" if facts.symptom(CANARY_UNANSWERED) else told


def _unanswered(facts: Facts) -> str:
    return facts.text(CANARY_UNANSWERED)


RULES: Final = (
    # An answer that does not come says so sooner than the clock does.
    _stuck("looping", progress.loops_longest & (progress.looping_long | progress.unanswered), _standing),
    _stuck("frozen", progress.frozen_a_while & (progress.frozen_long | progress.unanswered), _standing),
    _stuck(
        "nothing_runs",
        progress.still_a_while & ((progress.still_long & ~room.cache_is_held) | progress.unanswered),
        _standing,
    ),
    _stuck("unanswered", progress.unanswered, _unanswered),
)

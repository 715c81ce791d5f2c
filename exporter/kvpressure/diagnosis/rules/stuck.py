"""`stuck`: there are requests, and no forward progress."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvpressure.diagnosis.facts import Facts
from kvpressure.diagnosis.predicates import progress, room
from kvpressure.diagnosis.rules import clock, rules_of, running_and_waiting
from kvpressure.model.verdict import Cause

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
    found = facts.window.progress
    seconds, since = found.standing_seconds, facts.standing_since
    at = "" if since is None else f", since {clock(since)}"
    longest = seconds if since is None else max(seconds, facts.t - since)
    stands = ", ".join(_STANDING.get(name, name) for name in found.standing)
    return f"Stand still for {longest:.0f} s{at}: {stands}. {running_and_waiting(facts)}"


RULES: Final = rules_of(
    Cause.STUCK,
    "stuck",
    {"throughput_plateau": True, "gpu_compute_low": True, "preempting": False},
    ("looping", "looping", progress.loops_longest & progress.looping_long, _standing),
    ("frozen", "frozen", progress.frozen_long, _standing),
    ("nothing_runs", "nothing_runs", progress.still_long & ~room.cache_lacks_room.known_true(), _standing),
)

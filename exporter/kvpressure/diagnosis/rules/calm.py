"""`paused`, `idle`, `healthy`: the engine was stopped on purpose, there is no demand, or all of it is served."""

from __future__ import annotations

from typing import Final

from kvpressure.diagnosis.facts import Facts, capital
from kvpressure.diagnosis.predicates import progress, queue, room, symptoms
from kvpressure.diagnosis.rules import nothing_to_say, rules_of, same, waiting
from kvpressure.model.values import number
from kvpressure.model.verdict import Cause


def _last_step(facts: Facts) -> str:
    seconds = number(round(facts.window.progress.last_step_seconds))
    return f"The page has not changed for {seconds} s, as while there is nothing to do; a hang would look the same."


def _streams(facts: Facts) -> str:
    return f"{capital(waiting(facts))}, all deferred; nothing runs or changes."


def _waited(facts: Facts) -> str:
    before, now = facts.inputs.value("requests_waiting"), facts.window.queue.waiting
    return (
        f"Waiting {number(round(before or 0.0))} on average over the last minute, {number(round(now or 0.0))} of late."
    )


def _full(facts: Facts) -> str:
    usage = facts.window.kv_usage_ratio or 0.0
    return f"The KV cache is full ({usage:.0%}): nobody waits for long yet, and the next to grow may be preempted."


_passes = queue.queued & ~queue.queued_always & ~symptoms.symptom("held_at_gateway").known_true()
"""A queue that comes and goes is no loss, if it is known to wait for its turn only; one at a gateway never passes."""

RULES: Final = (
    *rules_of(
        Cause.PAUSED,
        "paused",
        {"preempting": False},
        (
            "asleep",
            "asleep",
            progress.asleep,
            same("The page says that it sleeps, or that an operation to that end is under way."),
        ),
        (
            "weight_update",
            "weight_update",
            progress.paused_by("weight_update"),
            same("The page says that an operation that loads new weights is under way."),
        ),
        (
            "pause_call",
            "pause_call",
            progress.paused_by("pause_call"),
            same("Its web server has counted more calls of /pause than of /resume."),
        ),
    ),
    *rules_of(
        Cause.IDLE,
        "idle",
        {"admission_blocked": False, "preempting": False, "gpu_compute_low": False},
        ("last_step", "", progress.of_last_step, _last_step),
        ("no_demand", "", ~queue.busy & ~symptoms.is_shedding_load, nothing_to_say),
        (
            "streams",
            "streams",
            # Not where waiting requests fetch KV from elsewhere, or may do so: they are no idle streams.
            queue.streams_only & ~queue.mostly_fetching.known_true() & ~queue.may_fetch & ~symptoms.is_shedding_load,
            _streams,
        ),
    ),
    *rules_of(
        Cause.HEALTHY,
        "healthy",
        {
            "admission_blocked": False,
            "kv_saturated": False,
            "preempting": False,
            "batch_collapse": False,
            "latency_inflated": False,
            "throughput_plateau": False,
        },
        ("drains", "draining", _passes & queue.shrinks & ~queue.pool_fills, _waited),
        ("passing_queue", "passing_queue", _passes, _waited),
        ("recovers", "draining", queue.waited_in_window & ~queue.pool_fills & ~queue.grows, _waited),
        ("full_pool", "full_pool", room.cache_is_full, _full),
        ("served", "", queue.always, nothing_to_say),
    ),
)

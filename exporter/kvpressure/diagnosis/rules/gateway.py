"""Causes of a queue at a gateway in front of the engine, by the limit of the gateway that its pool has reached.

An engine in which requests wait as well is judged by what makes these wait, as if there were no gateway, but never as
healthy.
"""

from __future__ import annotations

from typing import Final

from kvpressure.diagnosis.facts import Facts, Inputs, sentence
from kvpressure.diagnosis.predicates import Fact, Predicate, Shared, batch, fact, queue, reaches, room, symptoms
from kvpressure.diagnosis.rules import Grounds, Rule
from kvpressure.diagnosis.symptoms import at_least
from kvpressure.model.values import number
from kvpressure.model.verdict import Cause, Evidence
from kvpressure.signals.gateway import OPTIONAL, GatewayQueue
from kvpressure.signals.verdict_window import VerdictWindow

HELD: Final = "held_at_gateway"

held_at_gateway: Final = symptoms.symptom(HELD).known_true()


def _queue(window: VerdictWindow) -> GatewayQueue:
    queue: GatewayQueue = window.optional.get(OPTIONAL.name, OPTIONAL.absent)
    return queue


def judge_symptom(inputs: Inputs) -> Evidence | None:
    """Judge the share of polls in which requests were queued at a gateway of the pool; None without a gateway.

    Where it refuses them instead, the share of those sent that it refused.
    """
    queue, least = _queue(inputs.window), inputs.thresholds.symptoms.load_shed_min_ratio
    if (ratio := _refused_ratio(inputs.window)) >= least:
        text = f"refused by the gateway: {number(queue.refused_per_second)} a second for each engine; of those sent"
        return at_least(HELD, ratio, least, "ratio", text)
    if queue.held_polls_ratio is None:
        return None
    seconds = "" if queue.seconds is None else f", {queue.seconds:.0f} s"
    text = f"queued at the gateway: {number(round(queue.requests or 0.0))}{seconds}; polls with any"
    return at_least(HELD, queue.held_polls_ratio, inputs.thresholds.queue.waiting_min_ratio, "ratio", text)


def _refused_ratio(window: VerdictWindow) -> float:
    """Return the share of the requests sent that the gateway refused, by those that ended meanwhile."""
    refused = _queue(window).refused_per_second * window.seconds
    return refused / (refused + (window.queue.ended or 0.0)) if refused else 0.0


refuses = Fact(lambda facts: _refused_ratio(facts.window) >= facts.thresholds.symptoms.load_shed_min_ratio)
"""Whether the gateway refuses requests, more than a few."""


@fact()
def by_engine_queue(facts: Facts) -> bool | None:
    """Return whether the gateway waits for the engines' own queues, and not for their caches."""
    queue = _queue(facts.window)
    full = reaches(queue.engine_queue_ratio, facts.thresholds.batch.at_cap_min_ratio)
    return full and (queue.engine_queue_ratio or 0.0) > (queue.kv_ratio or 0.0)


@fact()
def by_kv_usage(facts: Facts) -> bool | None:
    """Return whether the gateway waits for room in the engines' caches; None where their use is not known."""
    if by_engine_queue.state(facts):
        return False
    return reaches(_queue(facts.window).kv_ratio, facts.thresholds.batch.at_cap_min_ratio)


waits_in_engine = Fact(
    lambda facts: reaches(_queue(facts.window).in_engine_ratio, facts.thresholds.queue.waiting_min_ratio)
)
"""Whether requests wait in the engine too while the gateway holds others back."""

_held_there_alone: Final = held_at_gateway & ~waits_in_engine


holds_some = Fact(lambda facts: bool(_queue(facts.window).held_polls_ratio))
"""Whether requests were queued at the gateway in any poll."""

cannot_read_engines = Fact(lambda facts: _queue(facts.window).stale_engines >= facts.thresholds.queue.waiting_min_ratio)
"""Whether the gateway lacks current metrics of an engine in most polls with a queue."""

_blind: Final = _held_there_alone & cannot_read_engines & ~by_kv_usage.known_true() & ~by_engine_queue.known_true()
"""What it cannot read counts as full, and this engine is not."""

_beyond_its_share: Final = Shared(holds_some & symptoms.admission_blocked & room.mostly_watermark)
"""Prompts do not fit into what the gateway leaves of the cache, and would into all of it."""


def _queued(facts: Facts) -> str:
    return sentence(facts.symptoms[HELD].text.partition(";")[0])


def _by_kv_usage(facts: Facts) -> str:
    ratio = _queue(facts.window).kv_ratio
    return f"{_queued(facts)} The pool's KV caches are used to {ratio or 0.0:.0%} of what the gateway allows."


def _own_limit(facts: Facts) -> str:
    queue = _queue(facts.window)
    kv = "" if queue.kv_ratio is None else f", KV caches are used to {queue.kv_ratio:.0%} of what it allows"
    return f"{_queued(facts)} Nothing in the engines explains it{kv}: a limit of the gateway's own holds them back."


def _cannot_read(facts: Facts) -> str:
    many = number(round(_queue(facts.window).stale_engines))
    return (
        f"{_queued(facts)} The gateway cannot read the metrics of {many} of its engines, and counts each of these as "
        "full; this engine has room."
    )


def _idle(facts: Facts) -> str:
    return f"{_queued(facts)} This engine has nothing to do."


def _rule(name: str, cause: Cause, when: Predicate, grounds: Grounds, **expects: bool) -> Rule:
    return Rule(f"gateway.{name}", cause, HELD, when, grounds, {HELD: True, **expects})


RULES: Final = (
    Rule(
        "gateway.blind",
        Cause.CONCURRENCY_BOUND,
        "gateway_blind",
        _blind,
        _cannot_read,
        {HELD: True, "admission_blocked": False, "preempting": False},
    ),
    _rule("idle_engine", Cause.UNKNOWN, held_at_gateway & ~queue.busy, _idle),
    _rule(
        "kv_usage",
        Cause.KV_CACHE_PRESSURE,
        (held_at_gateway & by_kv_usage) | _beyond_its_share,
        _by_kv_usage,
        preempting=False,
        gpu_memory_high=True,
    ),
    _rule(
        "own_limit",
        Cause.CONCURRENCY_BOUND,
        _held_there_alone & (refuses | (~by_engine_queue & ~by_kv_usage)) & ~batch.compute_limits.known_true(),
        _own_limit,
        admission_blocked=False,
        preempting=False,
    ),
    _rule("unexplained", Cause.UNKNOWN, _held_there_alone, _queued),
)

"""`concurrency_bound`: a limit on the batch keeps requests waiting, and the cache has room for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from kvpressure.diagnosis.facts import Facts, capital
from kvpressure.diagnosis.kleene import Predicate
from kvpressure.diagnosis.predicates import batch, queue, room, symptoms
from kvpressure.diagnosis.rule import Rule
from kvpressure.model.values import number
from kvpressure.model.verdict import Cause

EXPECTS: Final[Mapping[str, bool]] = {
    "admission_blocked": False,
    "kv_saturated": False,
    "preempting": False,
    "throughput_plateau": True,
}

_capped = queue.queued & batch.at_cap
"""Which flag sets the cap shows only in how the engine was started."""

_fits = queue.queued & room.long_fits & (room.room_is_ample | ~room.preempted_lately)
"""All that wait fit, and no cap holds the batch: the scheduler keeps to another of its limits."""


def _concurrency(name: str, detail: str, when: Predicate, grounds: Callable[[Facts], str]) -> Rule:
    return Rule(f"concurrency.{name}", Cause.CONCURRENCY_BOUND, detail, when, grounds, EXPECTS)


def _stays(facts: Facts) -> str:
    running = facts.inputs.value("requests_running_max")
    at = "" if running is None else f" at {number(running)}"
    return f"The batch stays{at}, its highest of the last ten minutes"


def _declared(facts: Facts, name: str) -> str:
    return number(facts.inputs.declared.get(name, 0.0))


def _sequence_cap(facts: Facts) -> str:
    like = "; a watermark would look the same" if facts.symptom("kv_saturated") else ""
    return f"{_stays(facts)}; how many it may have was not to be read{like}."


def _max_num_seqs(facts: Facts) -> str:
    return f"{_stays(facts)}; {_declared(facts, 'max_num_seqs')} are allowed."


def _another_cap(facts: Facts) -> str:
    allowed = _declared(facts, "max_num_seqs")
    return f"{_stays(facts)}, and {allowed} are allowed: another of the scheduler's limits holds it."


def _step(facts: Facts) -> str:
    step = number(round(facts.window.throughput.step_tokens or 0.0))
    return f"A step computes {step} tokens; {_declared(facts, 'max_num_batched_tokens')} are allowed"


def _head_of_line(facts: Facts) -> str:
    return f"{_step(facts)}. The batch is below its highest, and those that wait would fit."


def _not_told(facts: Facts) -> str:  # noqa: ARG001 - as the others are called
    return "Which of the scheduler's limits it is, the page does not tell."


def _queue_limit(facts: Facts) -> str:
    return f"{capital(facts.symptoms['load_shed'].text.removesuffix('.'))}; hardly anybody waits."


RULES: Final = (
    _concurrency("max_num_seqs", "max_num_seqs", _capped & batch.at_declared_cap, _max_num_seqs),
    _concurrency("another_cap", "", _capped & ~batch.at_declared_cap, _another_cap),
    _concurrency("sequence_cap", "sequence_cap", _capped, _sequence_cap),
    _concurrency("prefill_budget", "prefill_budget", _fits & batch.step_at_budget, lambda facts: f"{_step(facts)}."),
    _concurrency("head_of_line", "head_of_line", _fits & ~batch.step_at_budget, _head_of_line),
    _concurrency("another_limit", "", _fits, _not_told),
    # Nobody waits because whoever would have to is sent away.
    _concurrency("queue_limit", "queue_limit", symptoms.is_shedding_load & ~queue.queued, _queue_limit),
)

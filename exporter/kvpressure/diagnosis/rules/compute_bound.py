"""`compute_bound`: the GPU computes as much as it can, and steps take that long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvpressure.diagnosis.facts import Facts
from kvpressure.diagnosis.kleene import Predicate
from kvpressure.diagnosis.predicates import batch, queue
from kvpressure.diagnosis.rule import Rule
from kvpressure.diagnosis.symptoms.gpu import estimated_work
from kvpressure.model.verdict import Cause

EXPECTS: Final[Mapping[str, bool]] = {
    "admission_blocked": False,
    "preempting": False,
    "gpu_compute_low": False,
    "latency_inflated": True,
}


def _share(facts: Facts) -> str:
    ratio = facts.window.throughput.prefill_ratio
    return "" if ratio is None else f"{ratio:.0%} of the tokens computed are of prompts{estimated_work(facts.inputs)}."


def _compute(name: str, detail: str, when: Predicate) -> Rule:
    return Rule(f"compute.{name}", Cause.COMPUTE_BOUND, detail, when, _share, EXPECTS)


RULES: Final = (
    _compute("queued_prefill", "prefill", queue.queued & batch.prefill_limits),
    _compute("prefill", "prefill", batch.compute_limits & batch.mostly_prefill),
    _compute("decode", "decode", batch.compute_limits & batch.mostly_decode),
    _compute("mixed", "", batch.compute_limits),
)

"""`host_bound`: the time passes outside the GPU, in the API process or for want of CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvpressure.diagnosis.kleene import Predicate
from kvpressure.diagnosis.predicates import batch, progress, symptoms
from kvpressure.diagnosis.rule import Rule
from kvpressure.model.verdict import Cause

EXPECTS: Final[Mapping[str, bool]] = {
    "admission_blocked": False,
    "preempting": False,
    "gpu_compute_low": True,
    "frontend_slow": True,
    "cpu_pressed": True,
}


def _front_end(name: str, when: Predicate) -> Rule:
    return Rule(f"host.{name}", Cause.HOST_BOUND, "front_end", when, lambda facts: facts.text("frontend_slow"), EXPECTS)


def _cpu(name: str, when: Predicate) -> Rule:
    return Rule(f"host.{name}", Cause.HOST_BOUND, "cpu", when, lambda facts: facts.text("cpu_pressed"), EXPECTS)


RULES: Final = (
    _front_end("front_end_late", progress.statistics_late & symptoms.frontend_slow),
    _cpu("cpu_late", progress.statistics_late & symptoms.cpu_pressed),
    _front_end("front_end", symptoms.frontend_slow),
    _cpu("cpu", symptoms.cpu_pressed & batch.cpu_holds_it_up),
)

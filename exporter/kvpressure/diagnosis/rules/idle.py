"""`idle`: nobody wants anything now."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvpressure.diagnosis.facts import Facts, capital
from kvpressure.diagnosis.predicates import page, queue, symptoms
from kvpressure.diagnosis.rule import Rule, nothing_to_say
from kvpressure.diagnosis.wording import waiting
from kvpressure.model.verdict import Cause

EXPECTS: Final[Mapping[str, bool]] = {"admission_blocked": False, "preempting": False, "gpu_compute_low": False}


def _streams(facts: Facts) -> str:
    return f"{capital(waiting(facts))}, all put off; nothing runs or changes."


RULES: Final = (
    Rule("idle.no_demand", Cause.IDLE, "", ~page.busy & ~symptoms.is_shedding_load, nothing_to_say, EXPECTS),
    Rule(
        "idle.streams",
        Cause.IDLE,
        "streams",
        # Not where those that wait fetch KV from elsewhere, or may do so: they want to get on.
        queue.streams_only & ~queue.mostly_fetching.taken_as(False) & ~queue.may_fetch & ~symptoms.is_shedding_load,
        _streams,
        EXPECTS,
    ),
)

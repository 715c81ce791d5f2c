"""`healthy`: all demand is served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvpressure.diagnosis.predicates import page, queue
from kvpressure.diagnosis.rule import Rule, nothing_to_say
from kvpressure.model.verdict import Cause

EXPECTS: Final[Mapping[str, bool]] = {
    "admission_blocked": False,
    "kv_saturated": False,
    "preempting": False,
    "batch_collapse": False,
    "latency_inflated": False,
    "throughput_plateau": False,
}

RULES: Final = (
    # A queue that comes and goes is no loss, if it is known to wait for its turn only.
    Rule("healthy.passing_queue", Cause.HEALTHY, "", queue.queued & ~queue.queued_always, nothing_to_say, EXPECTS),
    Rule("healthy.served", Cause.HEALTHY, "", page.always, nothing_to_say, EXPECTS),
)

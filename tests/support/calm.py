"""Facts of a calm engine, and of one with a queue, from polls that show them."""

from kvpressure.diagnosis.facts import Inputs
from kvpressure.model.verdict import Cause
from tests.support.verdicts import made as polls_with
from tests.support.verdicts import rule

CALM = {
    "demand": 10.0,
    "waiting": 0.0,
    "waiting_ratio": 0.0,
    "kv_usage_ratio": 0.4,
    "blocked_ratio": 0.0,
    "blocked_by_long_ratio": 0.0,
    "burst_count": 0,
    "request_ratio": 0.0,
    "busy": True,
}
QUEUE = {"demand": 30.0, "waiting": 20.0, "waiting_ratio": 1.0}
FIT_UNKNOWN = {"blocked_ratio": None, "blocked_by_long_ratio": None, "request_ratio": None}
BLOCKED = QUEUE | {"blocked_ratio": 0.9, "blocked_by_long_ratio": 0.9}


def inputs(derived=None, **recent) -> Inputs:
    return polls_with(CALM | recent, derived)


def cause(made: Inputs, current: Cause = Cause.HEALTHY) -> Cause:
    return rule(made, current).cause


def with_gpu(utilization: float, **recent) -> Inputs:
    derived = {"engine_gpu_utilization_ratio": utilization, "engine_gpu_memory_used_ratio": 0.93}
    return inputs(derived, gpu_utilization_ratio=utilization, **recent)

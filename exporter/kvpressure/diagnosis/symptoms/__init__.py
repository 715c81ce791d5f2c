"""One file per symptom: `NAME`, and `judge(inputs)` that gives its `Evidence`. Adding one is a file and a line here."""

from __future__ import annotations

from collections.abc import Mapping

from kvpressure.diagnosis.inputs import Inputs
from kvpressure.diagnosis.symptoms import (
    admission_blocked,
    allocation_errors,
    batch_collapse,
    canary_unanswered,
    cpu_pressed,
    device_oom,
    frontend_slow,
    gpu_compute_low,
    gpu_memory_high,
    host_oom,
    kv_saturated,
    latency_inflated,
    load_shed,
    memory_rising,
    preempting,
    restarting,
    throughput_plateau,
)
from kvpressure.model.verdict import Evidence

Symptoms = Mapping[str, Evidence]

_ALL = (
    gpu_memory_high,
    gpu_compute_low,
    batch_collapse,
    admission_blocked,
    kv_saturated,
    preempting,
    latency_inflated,
    throughput_plateau,
    memory_rising,
    restarting,
    host_oom,
    device_oom,
    allocation_errors,
    cpu_pressed,
    frontend_slow,
)

NAMES = tuple(module.NAME for module in _ALL)

OPTIONAL = (canary_unanswered.NAME, load_shed.NAME)
"""Symptoms that there are only where somebody switched on what they are of (decisions 0270, 0280)."""


def judge_all(inputs: Inputs) -> Symptoms:
    """Every symptom by name, in a fixed order; one of `OPTIONAL` only where its source is on."""
    sheds = inputs.value("requests_refused_per_second") is not None
    wanted = (*_ALL, *([load_shed] if sheds else []), *([canary_unanswered] if inputs.canary_enabled else []))
    return {module.NAME: module.judge(inputs) for module in wanted}

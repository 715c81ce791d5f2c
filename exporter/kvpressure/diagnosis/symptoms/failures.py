"""Symptoms that other sources than the engine's page tell: pods, logs, the host, answers to canary requests."""

from __future__ import annotations

from kvpressure.diagnosis.inputs import Inputs
from kvpressure.diagnosis.symptoms.evidence import at_least, from_elsewhere
from kvpressure.model.verdict import Evidence
from kvpressure.signals.canary import CANARY_UNANSWERED


def restarting(inputs: Inputs) -> Evidence:
    """Judge the server starts seen in ten minutes, or what the pod's state says."""
    threshold = inputs.thresholds.restarting_min_count
    if (told := inputs.external_evidence.get("restarting")) is not None:
        return Evidence("restarting", told.state, told.text, None, threshold, "count")
    starts = None if inputs.starts is None else float(inputs.starts)
    return at_least("restarting", starts, threshold, "count", "server starts seen in ten minutes")


def host_oom(inputs: Inputs) -> Evidence:
    """Judge whether the pod's state says that the container was killed for host memory."""
    text = "container killed for host memory (OOMKilled, 137)"
    return from_elsewhere("host_oom", inputs, text, "not known: no pod state")


def device_oom(inputs: Inputs) -> Evidence:
    """Judge whether the engine's log tells of a GPU out of memory (CUDA or HIP)."""
    return from_elsewhere("device_oom", inputs, "GPU out of memory in the engine's log", "not known: no log")


def allocation_errors(inputs: Inputs) -> Evidence:
    """Judge whether the engine's log tells of KV cache allocations that failed."""
    text = "failed KV cache allocations in the engine's log"
    return from_elsewhere("allocation_errors", inputs, text, "not known: no log")


def cpu_pressed(inputs: Inputs) -> Evidence:
    """Judge whether the host's CPUs, or the container's share of them, hold the engine up."""
    text = "CPU pressure or throttling"
    return from_elsewhere("cpu_pressed", inputs, text, "not known: no CPU pressure of the host")


def canary_unanswered(inputs: Inputs) -> Evidence:
    """Judge what the newest request of one token came to; only where such requests are sent."""
    told = inputs.external_evidence[CANARY_UNANSWERED]
    return Evidence(CANARY_UNANSWERED, told.state, told.text)

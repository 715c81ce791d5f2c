"""Symptoms of the KV cache: requests that do not fit, a full pool, preemption, eviction."""

from __future__ import annotations

from kvpressure.diagnosis.inputs import Inputs
from kvpressure.diagnosis.symptoms.evidence import at_least, shown
from kvpressure.model.values import number
from kvpressure.model.verdict import Evidence


def admission_blocked(inputs: Inputs) -> Evidence:
    """Judge the share of recent polls in which requests waited and did not fit (`signals.fit`)."""
    window, threshold = inputs.window, inputs.thresholds.admission_blocked_min_ratio
    ratio = window.fit.blocked_ratio
    if window.fit.starved:
        seen = f"requests waited for {window.seconds:.0f} s, none started, and a long one would not fit with its answer"
        return Evidence("admission_blocked", True, seen, ratio, threshold, "ratio")
    text = "polls in which requests waited and a prompt did not fit the free KV cache"
    return at_least("admission_blocked", ratio, threshold, "ratio", text)


def kv_saturated(inputs: Inputs) -> Evidence:
    """Judge mean use with requests waiting in most polls; a full cache that nobody waits for is well used."""
    threshold = inputs.thresholds.kv_saturated_min_ratio
    usage, waiting = inputs.window.kv_usage_ratio, inputs.window.queue.waiting_ratio
    if usage is None or waiting is None:
        return Evidence("kv_saturated", None, "not known: KV cache use", None, threshold, "ratio")
    queued = waiting >= inputs.thresholds.waiting_min_ratio
    text = f"KV cache used: {shown(usage, 'ratio')}" + ("" if queued else ", nobody waits")
    return Evidence("kv_saturated", queued and usage >= threshold, text, usage, threshold, "ratio")


def preempting(inputs: Inputs) -> Evidence:
    """Judge preemptions per request served, when they happen again and again."""
    threshold, preemption = inputs.thresholds.preempting_min_ratio, inputs.window.preemption
    ratio = preemption.request_ratio
    if ratio is None or preemption.burst_count is None:
        return Evidence("preempting", None, "not known: preemptions", None, threshold, "ratio")
    sustained = preemption.burst_count >= inputs.thresholds.preempting_min_burst_count
    tokens = inputs.value("kv_preempted_tokens_per_second")
    lost = f"; about {number(round(tokens))} tokens of KV cache lost to it per second" if tokens else ""
    text = f"preemptions per request served: {shown(ratio, 'ratio')}{lost}"
    return Evidence("preempting", sustained and ratio >= threshold, text, ratio, threshold, "ratio")


def evicting(inputs: Inputs) -> Evidence:
    """Judge the share of the engine's time that goes into prompts it had computed before, and did not keep."""
    thresholds, found = inputs.thresholds, inputs.window.eviction
    least, share = thresholds.eviction_time_min_ratio, found.time_ratio
    if share is None or found.recomputed_ratio is None:
        return Evidence("evicting", None, "not known: prompt tokens computed again", None, least, "ratio")
    text = f"share of the time spent on prompts that were in the cache before: {shown(share, 'ratio')}"
    if found.turnovers < thresholds.eviction_turnover_min_count:
        return Evidence("evicting", False, text, share, least, "ratio")
    enough = found.recomputed_ratio >= thresholds.eviction_recomputed_min_ratio
    return Evidence("evicting", enough and share >= least, text, share, least, "ratio")

"""The symptoms of an engine's trouble, a function for each. Adding one is a function and a row of `_ALL`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Final

from kvpressure.diagnosis.facts import Inputs
from kvpressure.model.plugins import exported
from kvpressure.model.values import number
from kvpressure.model.verdict import Evidence
from kvpressure.signals.baseline import BATCH

Symptoms = Mapping[str, Evidence]


def judge_all(inputs: Inputs) -> Symptoms:
    """Return every symptom by name, in a fixed order.

    `load_shed` is judged only where the engine has ever refused a request (decision 0250), `evicting` only where hits
    at a slower turnover of its cache are known (decision 0410), those of `judge_symptom` in files of `rules` only where
    it returns any.
    """
    judged = {name: judge(inputs) for name, judge in _ALL.items()}
    if inputs.value("requests_refused_per_second") is not None:
        judged["load_shed"] = _load_shed(inputs)
    if inputs.window.eviction.recomputed_ratio is not None:
        judged["evicting"] = _evicting(inputs)
    optional = (judge(inputs) for judge in _optional())
    return judged | {evidence.symptom: evidence for evidence in optional if evidence is not None}


@cache
def _optional() -> tuple[Callable[[Inputs], Evidence | None], ...]:
    """Return the functions for symptoms that only an optional source shows, each beside the rules that read it."""
    return exported("kvpressure.diagnosis.rules", "judge_symptom")


def at_least(symptom: str, value: float | None, threshold: float, unit: str, text: str) -> Evidence:
    """Return whether `value` reaches `threshold`; unknown without a value. `text` names what `value` is."""
    if value is None:
        return Evidence(symptom, None, f"not known: {text}", None, threshold, unit)
    return Evidence(symptom, value >= threshold, f"{text}: {_shown(value, unit)}", value, threshold, unit)


def _shown(value: float, unit: str) -> str:
    if unit == "ratio":
        return f"{value:.0%}"
    if unit == "count":
        return f"{value:.0f}"
    return f"{value:.1f}{'x' if unit == 'factor' else ''}"


def _gpu_memory_high(inputs: Inputs) -> Evidence:
    """Judge the highest share of device memory used over the engine's GPUs.

    Nearly full is normal for a preallocated pool; what is left is the room that a device OOM comes from.
    """
    threshold = inputs.thresholds.gpu.memory_high_warn_ratio
    used = inputs.value("engine_gpu_memory_used_ratio")
    return at_least("gpu_memory_high", used, threshold, "ratio", "GPU memory used")


def _gpu_compute_low(inputs: Inputs) -> Evidence:
    """Judge whether GPUs idle although there is demand; without demand it says nothing and is false."""
    threshold = inputs.thresholds.gpu.compute_low_max_ratio
    value, busy = inputs.value("engine_gpu_utilization_ratio"), inputs.window.busy
    if value is None or busy is None:
        text = f"not known: GPU utilization{estimated_work(inputs)}"
        return Evidence("gpu_compute_low", None, text, None, threshold, "ratio")
    text = f"GPU utilization: {_shown(value, 'ratio')}" + ("" if busy else ", without demand")
    return Evidence("gpu_compute_low", busy and value < threshold, text, value, threshold, "ratio")


def estimated_work(inputs: Inputs) -> str:
    """Return the engine's own estimate of its GPUs' work; what share of their best that is, depends on the GPUs."""
    flops, memory = inputs.value("estimated_flops_per_second"), inputs.value("estimated_memory_bytes_per_second")
    if flops is None or memory is None:
        return ""
    return f"; by the engine's estimate each computes {flops / 1e12:.3g} TFLOP/s and moves {memory / 1e9:,.0f} GB/s"


def _memory_rising(inputs: Inputs) -> Evidence:
    """Judge the share of a device's memory gained over the window.

    The pool is fixed, so what grows under traffic is activations on their way to a device OOM.
    """
    threshold = inputs.thresholds.symptoms.memory_rising_min_ratio
    return at_least("memory_rising", inputs.memory_rise_ratio, threshold, "ratio", "GPU memory gained over the window")


def _batch_collapse(inputs: Inputs) -> Evidence:
    """Judge whether the engine decodes far fewer sequences per step than there is demand for.

    Demand exceeds the batch, and batch p95 is 1 or 2, or under half of demand and under the engine's healthy p95.
    """
    name, unit = "batch_collapse", "sequences"
    thresholds, window = inputs.thresholds, inputs.window
    batch, demand = inputs.value("effective_batch_size_quantile", "0.95"), window.queue.demand
    most = thresholds.symptoms.batch_collapse_max_sequences
    if batch is None or demand is None:
        if window.busy is False:
            return Evidence(name, False, "no demand", None, most, unit)
        return Evidence(name, None, "not known: effective batch size", None, most, unit)
    text = f"effective batch p95 {batch:.1f} for {demand:.1f} requests"
    queued = demand >= batch + 1.0 and bool(window.queue.waiting)
    if not queued or round(batch) <= most:
        return Evidence(name, queued, text, batch, most, unit)
    half, healthy = thresholds.symptoms.batch_collapse_max_demand_ratio * demand, inputs.baseline.get(BATCH)
    if batch >= half or (healthy is not None and batch >= healthy):
        return Evidence(name, False, text, batch, half, unit)
    if healthy is None:
        return Evidence(name, None, f"{text}; no healthy batch known yet", batch, half, unit)
    return Evidence(name, True, text, batch, half, unit)


def _admission_blocked(inputs: Inputs) -> Evidence:
    """Judge the share of recent polls in which requests waited and did not fit (`signals.fit`)."""
    window, threshold = inputs.window, inputs.thresholds.symptoms.admission_blocked_min_ratio
    ratio = window.fit.blocked_ratio
    if window.fit.starved:
        text = f"requests waited for {window.seconds:.0f} s, none started, and a long one would not fit with its answer"
        return Evidence("admission_blocked", True, text, ratio, threshold, "ratio")
    text = "polls in which requests waited and a prompt did not fit the free KV cache"
    return at_least("admission_blocked", ratio, threshold, "ratio", text)


def _kv_saturated(inputs: Inputs) -> Evidence:
    """Judge mean use with requests waiting in most polls; a full cache without a queue is well used."""
    threshold = inputs.thresholds.symptoms.kv_saturated_min_ratio
    usage, waiting = inputs.window.kv_usage_ratio, inputs.window.queue.waiting_ratio
    if usage is None or waiting is None:
        return Evidence("kv_saturated", None, "not known: KV cache use", None, threshold, "ratio")
    queued = waiting >= inputs.thresholds.queue.waiting_min_ratio
    text = f"KV cache used: {_shown(usage, 'ratio')}" + ("" if queued else ", no request waits")
    return Evidence("kv_saturated", queued and usage >= threshold, text, usage, threshold, "ratio")


def _preempting(inputs: Inputs) -> Evidence:
    """Judge preemptions per request served, when they happen again and again."""
    threshold, preemption = inputs.thresholds.symptoms.preempting_min_ratio, inputs.window.preemption
    ratio = preemption.request_ratio
    if ratio is None or preemption.burst_count is None:
        return Evidence("preempting", None, "not known: preemptions", None, threshold, "ratio")
    sustained = preemption.burst_count >= inputs.thresholds.symptoms.preempting_min_burst_count
    tokens = inputs.value("kv_preempted_tokens_per_second")
    lost = f"; about {number(round(tokens))} tokens of KV cache lost to it per second" if tokens else ""
    text = f"preemptions per request served: {_shown(ratio, 'ratio')}{lost}"
    return Evidence("preempting", sustained and ratio >= threshold, text, ratio, threshold, "ratio")


def _evicting(inputs: Inputs) -> Evidence:
    """Judge the share of the engine's time that goes into prompts it had computed before, and did not keep."""
    least, share = inputs.thresholds.eviction.time_min_ratio, inputs.window.eviction.lasting_time_ratio
    if share is None:
        return Evidence("evicting", None, "not known: prompt tokens computed again", None, least, "ratio")
    text = f"share of the time spent on prompts that were in the cache before, highest lately: {_shown(share, 'ratio')}"
    # By the highest rate measured the time is an upper bound: then something else has to show that it costs.
    costs = not inputs.window.eviction.time_by_rate or _requests_are_held_up(inputs)
    return Evidence("evicting", share >= least and costs, text, share, least, "ratio")


def _requests_are_held_up(inputs: Inputs) -> bool:
    """Return whether requests wait in nearly every poll, the cache is full, or some were preempted lately."""
    waiting = inputs.window.queue.waiting_ratio or 0.0
    full = (inputs.window.kv_usage_ratio or 0.0) >= inputs.thresholds.symptoms.kv_saturated_min_ratio
    held_up = waiting >= inputs.thresholds.room.starved_min_waiting_ratio or full
    return held_up or inputs.window.preemption.in_long_window


def _latency_inflated(inputs: Inputs) -> Evidence:
    """Judge the larger inflation of end-to-end and inter-token p95; what longer answers explain is none.

    Finished requests that were not late say nothing while a queue is not served: those in it have not finished.
    """
    value, kind = inputs.inflation()
    growth = inputs.window.answers.growth_factor
    longer = f", allowing for answers {growth:.1f}x as long" if kind == "e2e" and growth > 1.05 else ""
    text = f"{kind.replace('_', '-')} p95 over this engine's healthy one{longer}"
    evidence = at_least(
        "latency_inflated", value, inputs.thresholds.symptoms.latency_inflated_min_factor, "factor", text
    )
    if evidence.state is False and inputs.value("queue_unserved_seconds"):
        return replace(
            evidence, state=None, text=f"not known while a queue is not served; of those who finished, {evidence.text}"
        )
    return evidence


def _throughput_plateau(inputs: Inputs) -> Evidence:
    """Judge whether more demand buys no more tokens, by the derived series of the same name."""
    value, rate = inputs.value("throughput_plateau"), inputs.value("tokens_per_second", "generation")
    if value is None:
        return Evidence("throughput_plateau", None, "not known: less than a window of traffic so far")
    text = "" if rate is None else f"{rate:.0f} tokens/s generated, "
    grows = "more demand gives no more tokens" if value else "tokens follow demand"
    return Evidence("throughput_plateau", value > 0, text + grows, value, 1.0)


def _frontend_slow(inputs: Inputs) -> Evidence:
    """Judge the mean time outside the engine: a good part of requests, or most of the time to first token."""
    name, unit = "frontend_slow", "seconds"
    thresholds = inputs.thresholds
    queue = inputs.window.queue
    outside = inputs.window.outside
    threshold = thresholds.symptoms.frontend_slow_min_seconds
    if outside is None:
        return Evidence(name, None, "not known: no request ended, or its time is not counted", None, threshold, unit)
    if not outside.whole and (queue.waiting_ratio is None or queue.waiting_ratio >= thresholds.queue.waiting_min_ratio):
        # Queue time is reported when requests end: while a queue grows or drains, the difference is of other requests.
        return Evidence(name, None, "not known while requests wait in the engine", outside.seconds, threshold, unit)
    what = "requests" if outside.whole else "time to first token"
    least = (
        thresholds.symptoms.frontend_slow_min_ratio
        if outside.whole
        else thresholds.symptoms.frontend_slow_first_token_min_ratio
    )
    time = f"{outside.seconds:.2f} s" if outside.seconds >= 1 else f"{1000 * outside.seconds:.0f} ms"
    text = f"time of {what} spent outside the engine: {time}, {outside.ratio:.0%} of it"
    slow = outside.seconds >= threshold and outside.ratio >= least
    return Evidence(name, slow, text, outside.seconds, threshold, unit)


def _load_shed(inputs: Inputs) -> Evidence:
    """Judge the share of requests refused; clients may have tried again, here or elsewhere."""
    rate = inputs.value("requests_refused_per_second")
    each = "" if rate is None else f" ({rate:.1f} a second)"
    text = f"requests that the engine refused, of those sent{each}"
    return at_least(
        "load_shed", inputs.window.refused_ratio, inputs.thresholds.symptoms.load_shed_min_ratio, "ratio", text
    )


def _restarting(inputs: Inputs) -> Evidence:
    """Judge the server starts in ten minutes, or what the pod's state says."""
    threshold = inputs.thresholds.symptoms.restarting_min_count
    if (pod := inputs.external_evidence.get("restarting")) is not None:
        return Evidence("restarting", pod.state, pod.text, None, threshold, "count")
    starts = None if inputs.starts is None else float(inputs.starts)
    return at_least("restarting", starts, threshold, "count", "server starts in ten minutes")


def _from_elsewhere(symptom: str, text: str, missing: str) -> Callable[[Inputs], Evidence]:
    """Judge what another source says of a symptom, `text` being what it is; `missing` says what would be needed."""
    unknown = Evidence(symptom, None, f"not known: no {missing}")

    def judge(inputs: Inputs) -> Evidence:
        evidence = inputs.external_evidence.get(symptom)
        if evidence is None:
            return unknown
        return Evidence(symptom, evidence.state, f"{text}: {evidence.text}")

    return judge


_ALL: Final[Mapping[str, Callable[[Inputs], Evidence]]] = {
    "gpu_memory_high": _gpu_memory_high,
    "gpu_compute_low": _gpu_compute_low,
    "batch_collapse": _batch_collapse,
    "admission_blocked": _admission_blocked,
    "kv_saturated": _kv_saturated,
    "preempting": _preempting,
    "latency_inflated": _latency_inflated,
    "throughput_plateau": _throughput_plateau,
    "memory_rising": _memory_rising,
    "restarting": _restarting,
    "host_oom": _from_elsewhere("host_oom", "container killed for host memory (OOMKilled, 137)", "pod state"),
    "device_oom": _from_elsewhere("device_oom", "GPU out of memory", "log"),
    "allocation_errors": _from_elsewhere("allocation_errors", "failed KV cache allocations", "log"),
    "cpu_pressed": _from_elsewhere("cpu_pressed", "CPU pressure or throttling", "CPU pressure of the host"),
    "frontend_slow": _frontend_slow,
}

NAMES: Final = tuple(_ALL)

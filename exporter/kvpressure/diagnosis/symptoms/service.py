"""Symptoms of what an engine serves: its batch, latency, throughput, refusals and front end."""

from __future__ import annotations

from kvpressure.diagnosis.inputs import Inputs
from kvpressure.diagnosis.symptoms.evidence import at_least
from kvpressure.model.verdict import Evidence


def batch_collapse(inputs: Inputs) -> Evidence:
    """Judge whether the engine decodes far fewer sequences per step than want to be.

    Demand exceeds the batch, and batch p95 is 1 or 2, or under half of demand and under the engine's healthy p95.
    """
    name, unit = "batch_collapse", "sequences"
    thresholds, window = inputs.thresholds, inputs.window
    batch, demand = inputs.value("effective_batch_size_quantile", "0.95"), window.queue.demand
    most = thresholds.batch_collapse_max_sequences
    if batch is None or demand is None:
        if window.busy is False:
            return Evidence(name, False, "no demand", None, most, unit)
        return Evidence(name, None, "not known: effective batch size", None, most, unit)
    text = f"effective batch p95 {batch:.1f} for {demand:.1f} requests"
    if demand < batch + 1.0 or not window.queue.waiting:
        return Evidence(name, False, text, batch, most, unit)
    if round(batch) <= most:
        return Evidence(name, True, text, batch, most, unit)
    half, healthy = thresholds.batch_collapse_max_demand_ratio * demand, inputs.batch_baseline
    if batch >= half or (healthy is not None and batch >= healthy):
        return Evidence(name, False, text, batch, half, unit)
    if healthy is None:
        text += "; no healthy batch known yet"
    return Evidence(name, None if healthy is None else True, text, batch, half, unit)


def latency_inflated(inputs: Inputs) -> Evidence:
    """Judge the larger inflation of end-to-end and inter-token p95; what longer answers explain is none."""
    value, kind = inputs.inflation()
    growth = inputs.window.answers.growth_factor
    longer = f", allowing for answers {growth:.1f}x as long" if kind == "e2e" and growth > 1.05 else ""
    text = f"{kind.replace('_', '-')} p95 over this engine's healthy one{longer}"
    return at_least("latency_inflated", value, inputs.thresholds.latency_inflated_min_factor, "factor", text)


def throughput_plateau(inputs: Inputs) -> Evidence:
    """Judge whether more demand buys no more tokens, by the derived series of the same name."""
    value, rate = inputs.value("throughput_plateau"), inputs.value("tokens_per_second", "generation")
    if value is None:
        return Evidence("throughput_plateau", None, "not known: less than a window of traffic seen")
    text = "" if rate is None else f"{rate:.0f} tokens/s generated, "
    grows = "demand grows or queues and tokens do not" if value else "tokens follow demand"
    return Evidence("throughput_plateau", value > 0, text + grows, value, 1.0)


def frontend_slow(inputs: Inputs) -> Evidence:
    """Judge the mean time outside the engine: a good part of requests, or most of the time to first token."""
    name, unit = "frontend_slow", "seconds"
    thresholds, queue, outside = inputs.thresholds, inputs.window.queue, inputs.window.outside
    threshold = thresholds.frontend_slow_min_seconds
    if outside is None:
        return Evidence(name, None, "not known: no request ended, or its time is not counted", None, threshold, unit)
    if not outside.whole and (queue.waiting_ratio is None or queue.waiting_ratio >= thresholds.waiting_min_ratio):
        # Queue time is reported when requests end: while a queue grows or drains, the difference is of other requests.
        return Evidence(name, None, "not known while requests wait in the engine", outside.seconds, threshold, unit)
    what = "requests" if outside.whole else "time to first token"
    least = thresholds.frontend_slow_min_ratio if outside.whole else thresholds.frontend_slow_first_token_min_ratio
    text = f"time of {what} spent outside the engine: {outside.seconds:.2f} s, {outside.ratio:.0%} of it"
    slow = outside.seconds >= threshold and outside.ratio >= least
    return Evidence(name, slow, text, outside.seconds, threshold, unit)


def load_shed(inputs: Inputs) -> Evidence:
    """Judge the share of requests refused; whoever sent them may have tried again, here or elsewhere."""
    rate = inputs.value("requests_refused_per_second")
    each = "" if rate is None else f" ({rate:.1f} a second)"
    text = f"requests that the engine refused, of those sent{each}"
    return at_least("load_shed", inputs.window.refused_ratio, inputs.thresholds.load_shed_min_ratio, "ratio", text)

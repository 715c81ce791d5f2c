"""The engine decodes far fewer sequences per step than want to be."""

from __future__ import annotations

from kvpressure.diagnosis.inputs import Inputs
from kvpressure.model.verdict import Evidence

NAME = "batch_collapse"


def judge(inputs: Inputs) -> Evidence:
    """Demand exceeds the batch, and batch p95 is 1 or 2, or under half of demand and under the engine's healthy p95."""
    limits, recent = inputs.thresholds, inputs.recent
    batch, demand = inputs.value("effective_batch_size_quantile", "0.95"), recent.demand
    most = limits.batch_collapse_max_sequences
    if batch is None or demand is None:
        if recent.busy is False:
            return Evidence(NAME, False, "no demand", None, most, "sequences")
        return Evidence(NAME, None, "not known: effective batch size", None, most, "sequences")
    text = f"effective batch p95 {batch:.1f} for {demand:.1f} requests"
    if demand < batch + 1.0 or not recent.waiting:
        return Evidence(NAME, False, text, batch, most, "sequences")
    if round(batch) <= most:
        return Evidence(NAME, True, text, batch, most, "sequences")
    half = limits.batch_collapse_max_demand_ratio * demand
    healthy = inputs.batch_baseline
    if batch >= half or (healthy is not None and batch >= healthy):
        return Evidence(NAME, False, text, batch, half, "sequences")
    state = None if healthy is None else True
    return Evidence(
        NAME, state, text + ("; no healthy batch known yet" if healthy is None else ""), batch, half, "sequences"
    )

"""The alerts that people use today, without an exporter, as the benchmark judges them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

USAGE: Final = "vllm:kv_cache_usage_perc"
PREEMPTIONS: Final = "vllm:num_preemptions_total"
MEMORY: Final = "gpu_memory_used_ratio"

TODAY_SERIES: Final = frozenset({USAGE, PREEMPTIONS, "vllm:num_requests_waiting"})
"""What of vLLM's page these ask for."""


@dataclass(frozen=True, slots=True)
class Rule:
    """An alert: an expression, how long it has to be true, and how long it keeps firing after that.

    `needs` is a series of the engine without which the alert cannot be judged.
    """

    name: str
    expr: str
    for_seconds: float = 0.0
    keep_seconds: float = 0.0
    needs: str = USAGE


TODAY: Final = (
    Rule("kv_cache_usage > 0.9 for 5m", f"{USAGE} > 0.9", 300.0),
    Rule("avg_over_time(usage[5m]) > 0.95", f"avg_over_time({USAGE}[5m]) > 0.95"),
    Rule("rate(preemptions[5m]) > 0", f"rate({PREEMPTIONS}[5m]) > 0"),
    Rule("usage > 0.95 and rate(preemptions[10m]) > 0", f"{USAGE} > 0.95 and rate({PREEMPTIONS}[10m]) > 0"),
    Rule("GPU memory > 0.9", f"{MEMORY} > 0.9", needs=MEMORY),
    Rule("waiting > 50", "vllm:num_requests_waiting > 50"),
)

"""What SGLang's page tells; from tests/fixtures/sglang/inventory.json and its source."""

from __future__ import annotations

from typing import Final

from kvpressure.model.verdict import Cause
from kvpressure.runtimes.evidence import Feature

EVIDENCE: Final = (
    Feature(
        what="why requests wait: for room, or put off on their own account",
        signals=("waiting_deferred",),
        series=(),
        how="no version of SGLang exports it",
        bears_on=frozenset({Cause.UNKNOWN, Cause.KV_CACHE_PRESSURE, Cause.CONCURRENCY_BOUND, Cause.STUCK}),
    ),
    Feature(
        what="how many tokens the KV cache holds",
        signals=("capacity_tokens",),
        series=("sglang:max_total_num_tokens", "sglang:cache_config_info"),
        how="current versions of SGLang export it with --enable-metrics; or let kvpressure read the engine's log from "
        "its start on (logs in the settings)",
        bears_on=frozenset(
            {Cause.UNKNOWN, Cause.HEALTHY, Cause.KV_CACHE_PRESSURE, Cause.CONCURRENCY_BOUND, Cause.COMPUTE_BOUND}
        ),
    ),
    Feature(
        what="steps, and how long prefill took",
        signals=("steps", "prefill_seconds"),
        series=(),
        how="no version of SGLang exports it",
        bears_on=frozenset({Cause.COMPUTE_BOUND, Cause.HOST_BOUND}),
    ),
)

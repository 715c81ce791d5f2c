"""What SGLang's page tells; from tests/fixtures/sglang/inventory.json and its source."""

from __future__ import annotations

from typing import Final

from kvpressure.runtimes.signals import OptionalSignal

EVIDENCE: Final = (
    OptionalSignal(
        what="why requests wait: for room, or put off on their own account",
        signals=("waiting_deferred",),
        series=(),
        how="no version of SGLang exports it",
    ),
    OptionalSignal(
        what="how many tokens the KV cache holds",
        signals=("capacity_tokens",),
        series=("sglang:max_total_num_tokens", "sglang:cache_config_info"),
        how="current versions of SGLang export it with --enable-metrics; or let kvpressure read the engine's log from "
        "its start on (logs in the settings)",
    ),
    OptionalSignal(
        what="steps, and how long prefill took",
        signals=("steps", "prefill_seconds"),
        series=(),
        how="no version of SGLang exports it",
    ),
)

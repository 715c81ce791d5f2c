"""What vLLM's page tells, by version and flag: from tests/fixtures/data/vllm-metric-inventory.json and its source.

Between two versions that were looked at, the later one is named.
"""

from __future__ import annotations

from typing import Final

from kvpressure.runtimes.signals import OptionalSignal

EVIDENCE: Final = (
    OptionalSignal(
        what="why requests wait: for room, or put off on their own account",
        signals=("waiting_deferred",),
        series=("vllm:num_requests_waiting_by_reason",),
        how="vLLM 0.21 and later export it",
    ),
    OptionalSignal(
        what="how many wait for KV from elsewhere",
        signals=("fetching",),
        series=("vllm:num_requests_kv_fetch_by_stage",),
        how="vLLM 0.32 and later export it where --kv-transfer-config makes the engine a consumer of KV",
    ),
    OptionalSignal(
        what="whether prompts are looked up in a cache outside the engine",
        signals=("external_queries",),
        series=("vllm:external_prefix_cache_queries_total",),
        how="vLLM 0.12 and later export it",
    ),
    OptionalSignal(
        what="whether requests bring images",
        signals=("encoder_queries",),
        series=("vllm:mm_cache_queries_total",),
        how="vLLM 0.12 and later export it; --mm-processor-cache-gb=0 leaves it at 0",
    ),
    OptionalSignal(
        what="how many tokens the KV cache holds",
        signals=("capacity_tokens",),
        series=("vllm:cache_config_info",),
        how="vLLM 0.32 and later say it of every model (kv_cache_size_tokens), earlier ones of those without Mamba "
        "layers; or let kvpressure read the engine's log from its start on (logs in the settings); "
        "some stores drop series of so many labels (VictoriaMetrics: -maxLabelsPerTimeseries)",
    ),
    OptionalSignal(
        what="how much of each prompt no cache held",
        signals=("computed_prompt_tokens",),
        series=("vllm:prompt_tokens_by_source_total",),
        how="vLLM 0.16 and later export it",
    ),
    OptionalSignal(
        what="how long blocks survive unused",
        signals=("timed_evictions",),
        series=("vllm:kv_block_idle_before_evict_seconds_count",),
        how="vLLM 0.12 and later export it with --kv-cache-metrics, which times one block in a hundred, at next to no "
        "cost",
    ),
    OptionalSignal(
        what="whether the engine sleeps",
        signals=("awake",),
        series=("vllm:engine_sleep_state",),
        how="vLLM 0.12 and later export it",
    ),
    OptionalSignal(
        what="requests running and waiting",
        signals=("running",),
        series=("vllm:num_requests_running", "vllm:num_requests_waiting"),
        how="start the server without --disable-log-stats; of several API processes it comes with the first request",
    ),
)

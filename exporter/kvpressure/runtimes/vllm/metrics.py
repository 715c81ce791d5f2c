"""vLLM, every version from 0.6 to 0.33, V0 and V1 engine, one or several API processes, and through Ray.

Names and multi-process modes by version: tests/fixtures/data/vllm-metric-inventory.json. prometheus_client drops the
`pid` label under the modes "sum" and "mostrecent"; only `kv_cache_usage_perc` of 0.10 and 0.11 has none of them and
comes once per process. V0 pages have no `engine` label. Ray adds its own prefix and labels (WorkerId, ReplicaId) and
leaves out counters that are still 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from kvpressure.model.samples import CacheConfig
from kvpressure.runtimes.table import WHY_WAITING, LabelSignals, OptionalSignal, PageFacts, Row, Table

_ROUNDING: Final = 1e-6
_LEAST_SHARE: Final = 0.001
_MAX_TOKENS: Final = 2**53
_ALIKE_RATIO: Final = 0.05
"""Rounding to whole blocks and the null block make less of a difference."""

GAUGES: Final = (
    Row("running", ("vllm:num_requests_running",)),
    Row("waiting", ("vllm:num_requests_waiting",)),
    Row("waiting_capacity", ("vllm:num_requests_waiting_by_reason",), where=(("reason", "capacity"),)),
    Row("waiting_deferred", ("vllm:num_requests_waiting_by_reason",), where=(("reason", "deferred"),)),
    Row("fetching", ("vllm:num_requests_kv_fetch_by_stage",)),
    Row("kv_usage", ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"), merge="max", most=1 + _ROUNDING),
    Row("awake", ("vllm:engine_sleep_state",), where=(("sleep_state", "awake"),), merge="max"),
)


def _slow(signal: str, *names: str, where: tuple[tuple[str, str], ...] = ()) -> Row:
    """Return a counter that is requested with the histograms only."""
    return Row(signal, names, where, slow=True)


COUNTERS: Final = (
    Row("preemptions", ("vllm:num_preemptions_total",)),
    Row("prompt_tokens", ("vllm:prompt_tokens_total",)),
    Row("generation_tokens", ("vllm:generation_tokens_total",)),
    Row(
        "accepted_draft_tokens",
        ("vllm:spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_accepted_tokens_per_pos_total"),
    ),
    Row("steps", ("vllm:iteration_tokens_total_count",)),
    Row("finished", ("vllm:request_success_total",)),
    Row("aborted", ("vllm:request_success_total",), where=(("finished_reason", "abort"),)),
    Row("failed", ("vllm:request_success_total",), where=(("finished_reason", "error"),)),
    Row("rejected", ("vllm:admission_rejections_total",)),
    _slow("prefix_queries", "vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    _slow("prefix_hits", "vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    _slow("prefilled", "vllm:request_prefill_time_seconds_count"),
    _slow("prefill_seconds", "vllm:request_prefill_time_seconds_sum"),
    _slow("ended", "vllm:e2e_request_latency_seconds_count"),
    _slow("e2e_seconds", "vllm:e2e_request_latency_seconds_sum"),
    _slow("queue_seconds", "vllm:request_queue_time_seconds_sum"),
    _slow("queued", "vllm:request_queue_time_seconds_count"),
    _slow("inference_seconds", "vllm:request_inference_time_seconds_sum"),
    Row("started", ("vllm:time_to_first_token_seconds_count",)),
    Row("finished_prompts", ("vllm:request_prompt_tokens_count",)),
    Row("finished_prompt_tokens", ("vllm:request_prompt_tokens_sum",)),
    Row("finished_output_tokens", ("vllm:request_generation_tokens_sum",)),
    Row("computed_prompt_tokens", ("vllm:prompt_tokens_by_source_total",), where=(("source", "local_compute"),)),
    Row("brought_prompt_tokens", ("vllm:prompt_tokens_by_source_total",), where=(("source", "external_kv_transfer"),)),
    # Exported with --kv-cache-metrics, of one block in a hundred.
    _slow("timed_evictions", "vllm:kv_block_idle_before_evict_seconds_count"),
    # Looked up with every prompt where a KV connector is in use; it stands at 0 where there is none.
    _slow("external_queries", "vllm:external_prefix_cache_queries_total"),
    _slow("external_hits", "vllm:external_prefix_cache_hits_total"),
    _slow("remote_transfers", "vllm:nixl_xfer_time_seconds_count", "vllm:mooncake_xfer_time_seconds_count"),
    _slow("transfer_seconds", "vllm:nixl_xfer_time_seconds_sum", "vllm:mooncake_xfer_time_seconds_sum"),
    _slow("transfer_bytes", "vllm:nixl_bytes_transferred_sum", "vllm:mooncake_bytes_transferred_sum"),
    _slow(
        "offload_loads",
        "vllm:kv_offload_load_bytes_total",
        "vllm:simple_kv_offload_load_blocks_total",
        "vllm:kv_offload_total_bytes_total",
    ),
    # Finished prompts that no decode engine has fetched in time, on the prefill side.
    _slow("expired_transfers", "vllm:nixl_num_kv_expired_reqs_total", "vllm:mooncake_num_kv_expired_reqs_total"),
    _slow("failed_transfers", "vllm:nixl_num_failed_transfers_total", "vllm:mooncake_num_failed_transfers_total"),
    # Loads from a slower tier into that of the host, which failed, or found no room there.
    _slow("failed_loads", "vllm:kv_offload_tiering_promotion_job_failures_total", "vllm:hf3fs_num_failed_load_total"),
    _slow("failed_loads", "vllm:mooncake_store_operation_failed_keys_total", where=(("operation", "load_get"),)),
    _slow("offload_load_seconds", "vllm:kv_offload_load_time_total"),
    _slow("offload_load_bytes", "vllm:kv_offload_load_bytes_total"),
    # By direction alone up to 0.21: CPU_to_GPU, and SHARED_STORAGE_to_GPU of llm-d's files.
    _slow("offload_load_seconds", "vllm:kv_offload_total_time_total", where=(("transfer_type", "*_to_GPU"),)),
    _slow("offload_load_bytes", "vllm:kv_offload_total_bytes_total", where=(("transfer_type", "*_to_GPU"),)),
    _slow("dropped_stores", "vllm:kv_offload_allocation_failure_total", "vllm:hf3fs_num_failed_save_total"),
    _slow("dropped_stores", "vllm:simple_kv_offload_save_outcomes_total", where=(("outcome", "dropped_cpu_full"),)),
    _slow("dropped_stores", "vllm:mooncake_store_operation_failed_keys_total", where=(("operation", "save_put"),)),
    _slow("unplaced_loads", "vllm:kv_offload_tiering_promotion_allocation_failures_total"),
    _slow("offload_read_bytes", "vllm:kv_offload_tiering_read_bytes_total"),
    _slow("offload_read_seconds", "vllm:kv_offload_tiering_read_time_total"),
    _slow("encoder_queries", "vllm:mm_cache_queries_total"),
    # Per GPU, and 0 for ever without --enable-mfu-metrics.
    _slow("estimated_flops", "vllm:estimated_flops_per_gpu_total"),
    _slow("estimated_read_bytes", "vllm:estimated_read_bytes_per_gpu_total"),
    _slow("estimated_write_bytes", "vllm:estimated_write_bytes_per_gpu_total"),
)


SERVER_GAUGES: Final = (
    Row("updating", ("vllm:rl_weight_update_operations_in_flight",)),
    Row("falling_asleep", ("vllm:sleep_mode_operations_in_flight",)),
    # /pause and /resume show nowhere else: the instrumentator of vLLM's web server counts calls by path.
    Row("pauses", ("http_requests_total",), where=(("handler", "/pause"), ("status", "2xx"))),
    Row("resumes", ("http_requests_total",), where=(("handler", "/resume"), ("status", "2xx"))),
    # Where somebody drops these, the times of the same calls, of failed ones too.
    Row("pauses", ("http_request_duration_seconds_count",), where=(("handler", "/pause"),)),
    Row("resumes", ("http_request_duration_seconds_count",), where=(("handler", "/resume"),)),
    # With an engine that is dead, or being replaced, they are all that shows it where /health still answers 200.
    Row("server_errors", ("http_requests_total",), where=(("status", "5xx"),)),
    Row("server_errors", ("dynamo_component_errors_total",)),
)

SERVER_COUNTERS: Final = (
    # LMCache 0.3 and 0.4 (lmcache/observability.py, docs/source/production/observability), on vLLM's own page where
    # both have one PROMETHEUS_MULTIPROC_DIR: a series for each of its workers, whose model is named by its path.
    _slow("offload_loads", "lmcache:num_retrieve_requests_total"),
    _slow("offload_load_seconds", "lmcache:time_to_retrieve_sum"),
    _slow("offload_load_tokens", "lmcache:num_retrieve_retrieved_tokens_total", "lmcache:num_hit_tokens_total"),
    _slow("dropped_stores", "lmcache:local_cpu_evict_failed_count_total"),
)

HISTOGRAMS: Final = (
    Row("e2e", ("vllm:e2e_request_latency_seconds",)),
    Row("ttft", ("vllm:time_to_first_token_seconds",)),
    Row("inter_token", ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds")),
    Row("queue", ("vllm:request_queue_time_seconds", "vllm:time_in_queue_requests")),
    Row("request_prompt_tokens", ("vllm:request_prompt_tokens",)),
    Row("request_max_tokens", ("vllm:request_params_max_tokens",)),
    Row("request_output_tokens", ("vllm:request_generation_tokens",)),
    Row("idle_before_evict", ("vllm:kv_block_idle_before_evict_seconds",)),
)


_KV_BITS: Final = (
    (("fp8", "int8"), 8),
    (("int4", "nvfp4", "octave", "turboquant", "ultraquant"), 4),
)
"""Of an element of the KV cache, by how `--kv-cache-dtype` begins (vllm/config/cache.py); 4 or fewer, or a mix, of the
second. Any other is as wide as the model's own numbers, which the page does not say."""


def cache_config(labels: Mapping[str, str], facts: PageFacts) -> CacheConfig:
    """Return the KV cache of one rank from the labels of `cache_config_info`, strings of which one may be "None".

    `kv_cache_memory_bytes` is what each GPU of the rank gives to the cache, so under tensor parallelism
    `bytes_per_token` is one GPU's share. With an override the blocks need not fill those bytes: then it is unknown.
    """
    size_tokens = _count(labels, "kv_cache_size_tokens")
    pool_bytes = _count(labels, "kv_cache_memory_bytes")
    overridden = _count(labels, "num_gpu_blocks_override") is not None
    utilization = _number(labels, "gpu_memory_utilization")
    return CacheConfig(
        block_size=_block_tokens(labels),
        capacity_tokens=_capacity_tokens(labels, facts),
        bytes_per_token=pool_bytes / size_tokens if pool_bytes and size_tokens and not overridden else None,
        max_model_len=_max_model_len(labels),
        gpu_memory_utilization=utilization if utilization is not None and _LEAST_SHARE <= utilization <= 1 else None,
        layers_differ=_layers_differ(labels, facts),
        prefix_caching={"True": True, "False": False}.get(labels.get("enable_prefix_caching", "")),
        kv_bits=next((bits for names, bits in _KV_BITS if labels.get("cache_dtype", "").startswith(names)), None),
    )


def _capacity_tokens(labels: Mapping[str, str], facts: PageFacts) -> int | None:
    """Return the tokens that the requests of one rank can hold.

    `kv_cache_size_tokens` is per rank and counts the null block, which is never handed out (v1/core/block_pool.py).
    Before it came, only the number of blocks is known; each API process adds up those of all its ranks
    (v1/engine/core_client.py), and "None" with an override is all that a multi-process 0.12 says. Hybrid models
    share blocks between groups of layers, so there blocks alone say nothing about tokens.
    """
    block_size = _block_tokens(labels)
    size_tokens = _count(labels, "kv_cache_size_tokens")
    if size_tokens is not None:
        tokens = size_tokens - (block_size or 0)
    else:
        all_blocks = _count(labels, "num_gpu_blocks")
        blocks = all_blocks // max(facts.ranks, 1) if all_blocks else _count(labels, "num_gpu_blocks_override")
        if blocks is None or block_size is None or _count(labels, "mamba_block_size") is not None:
            return None
        tokens = (blocks - _reserved_blocks(facts)) * block_size
    return tokens if 0 < tokens <= _MAX_TOKENS else None


def _layers_differ(labels: Mapping[str, str], facts: PageFacts) -> bool:
    """Return whether a full-length request takes other blocks than its tokens fill (v1/core/kv_cache_utils.py)."""
    size_tokens, block_size = _count(labels, "kv_cache_size_tokens"), _block_tokens(labels)
    blocks = _count(labels, "num_gpu_blocks")
    if size_tokens is None or block_size is None or not blocks:
        return False
    plain = blocks // max(facts.ranks, 1) * block_size
    return abs(size_tokens - plain) > _ALIKE_RATIO * plain


def _block_tokens(labels: Mapping[str, str]) -> int | None:
    """Return the tokens of a block: with decode context parallelism every rank has its part of more tokens."""
    return _count(labels, "effective_attention_block_size") or _count(labels, "block_size")


def _reserved_blocks(facts: PageFacts) -> int:
    """Return 1 for V1, which keeps block 0 as the null block, 0 for V0, which lacks what only V1 exports."""
    return int(facts.labelled or "vllm:gpu_prefix_cache_queries_total" in facts.names)


def _max_model_len(labels: Mapping[str, str]) -> int | None:
    """Invert kv_cache_size_tokens = int(kv_cache_max_concurrency * max_model_len) (v1/core/kv_cache_utils.py)."""
    size_tokens = _count(labels, "kv_cache_size_tokens")
    concurrency = _number(labels, "kv_cache_max_concurrency")
    if size_tokens is None or concurrency is None or concurrency < 1:
        return None
    return math.ceil(size_tokens / concurrency - _ROUNDING)


def _count(labels: Mapping[str, str], name: str) -> int | None:
    """Return a label as a positive whole number below 2**53, else None."""
    number = _number(labels, name)
    return int(number) if number is not None and number.is_integer() and number < 2**53 else None


def _number(labels: Mapping[str, str], name: str) -> float | None:
    """Return a label as a positive finite number, else None."""
    try:
        number = float(labels.get(name, ""))
    except ValueError:
        return None
    return number if 0 < number < math.inf else None


def adapters(newest: Mapping[str, str], some: Sequence[Mapping[str, str]]) -> Mapping[str, float]:
    """Return slots, running adapters and all adapters that ever ran; each set that ran together has a series.

    Requests are listed by their adapter from their first token to their end, so the listed ones are running.
    `waiting_lora_adapters` lists the same (v1/metrics/stats.py), and is of no use.
    """
    slots, running = _count(newest, "max_lora"), newest.get("running_lora_adapters")
    if slots is None or running is None:
        return {}
    ever = {name for sample in (newest, *some) for name in _names(sample.get("running_lora_adapters", ""))}
    return {
        "adapter_slots": float(slots),
        "adapters_running": float(len(set(_names(running)))),
        "adapters_seen": float(len(ever)),
    }


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


VLLM: Final = Table(
    runtime="vllm",
    prefix="vllm:",
    spellings=("vllm:", "vllm_", "ray_vllm:", "ray_vllm_"),
    relayed=frozenset({"ray_vllm:", "ray_vllm_"}),
    gauges=GAUGES,
    counters=COUNTERS,
    histograms=HISTOGRAMS,
    server_gauges=SERVER_GAUGES,
    server_counters=SERVER_COUNTERS,
    label_signals=(
        LabelSignals("vllm:lora_requests_info", ("adapter_slots", "adapters_running", "adapters_seen"), adapters),
    ),
    info="vllm:cache_config_info",
    info_cache=cache_config,
    other_model_label="model",  # Triton's, whose backend writes the names of V0
)
POLL_NAMES: Final = VLLM.poll_names()
ALL_NAMES: Final = VLLM.all_names()


EVIDENCE: Final = (
    OptionalSignal(
        what=WHY_WAITING,
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
        what="how much of each prompt was in no cache",
        signals=("computed_prompt_tokens",),
        series=("vllm:prompt_tokens_by_source_total",),
        how="vLLM 0.16 and later export it",
    ),
    OptionalSignal(
        what="how long prompts and answers are",
        signals=("request_prompt_tokens_histogram",),
        series=("vllm:request_prompt_tokens_bucket", "vllm:request_generation_tokens_bucket"),
        how="every vLLM exports them: no *_bucket reaches kvpressure, so a relabelling rule on the way drops it",
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

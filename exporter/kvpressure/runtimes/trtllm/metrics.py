"""TensorRT-LLM's metrics: trtllm-serve's page (/prometheus/metrics), and what its backend adds to Triton's page.

The executor takes in as many requests as there are seats (`max_num_active_requests`): these are "running" to it. Of
them it schedules those that fit the KV cache with all that they may generate (GUARANTEED_NO_EVICT, the default), and no
more than a step takes. So those that wait for room are active and not scheduled; the queue before them is of those
without a seat. How much is reserved is on neither page: what blocks are used says less. Under MAX_UTILIZATION it takes
in more, and pauses some when the cache is full: these wait for room, as preempted requests do.

A prompt that is not in a step, while seats are free and the step computes no prompt at all, waits for room. That holds
with one pipeline stage, which trtllm-serve's page names; with several each step takes some of the requests only.
Requests in their last step may be active without being scheduled: a few in a hundred.

trtllm-serve's page has gauges with `enable_iter_perf_stats`, and is there with `return_perf_metrics`. They are written
with each iteration, counted from its beginning, and without requests there is none: the last request stays on the page.
Tokens and latencies are counted when requests end. Triton's has gauges only, with `model` and `version` as labels.
"""

from __future__ import annotations

from typing import Final

from kvpressure.runtimes.runtime import Wordings
from kvpressure.runtimes.table import WHY_WAITING, OptionalSignal, Row, Table, never_exported

_ROUNDING: Final = 1e-6
_MAX_TOKENS: Final = 2**53
_ENDING: Final = 0.1
"""Of those that are scheduled, at most, that are active and not scheduled because they end: answers of ten tokens."""


def _requests(kind: str, own: str) -> tuple[Row, Row]:
    """Return the rows of a number of requests: of trtllm-serve's page, and of Triton's."""
    signal = {"active": "running", "waiting": "waiting", "max": "seats"}.get(kind, f"_{kind}")
    return (
        Row(signal, (f"trtllm_{own}",), merge="max"),
        Row(signal, ("trtllm_request_metrics",), where=(("request_type", kind),)),
    )


def _blocks(kind: str) -> tuple[tuple[str, str], ...]:
    return (("kv_cache_block_type", kind),)


def complete(gauges: dict[str, float]) -> dict[str, float]:
    """Return the gauges with requests that are scheduled as running, and those that are not as waiting."""
    known = {name: value for name, value in gauges.items() if not name.startswith("_")}
    used, blocks = gauges.get("_used"), gauges.get("_blocks")
    if "kv_usage" not in known and used is not None and blocks:
        known["kv_usage"] = min(1.0, used / blocks)
    active = gauges.get("running")
    scheduled = gauges.get("_scheduled")
    seats = gauges.get("seats")
    if "_serve" in gauges:
        known["keeps_last_step"] = 1.0
    if active is None or scheduled is None:
        return known
    left = active - scheduled if active - scheduled > 1 + _ENDING * scheduled else 0.0
    # Triton's older pages have no queue; there is none while seats are free.
    queued = gauges.get("waiting", 0.0 if seats is not None and active < seats else None)
    known["running"] = min(active, scheduled)
    if queued is None:
        if left:
            known["waiting"] = left  # at least: those without a seat are not counted
        return known
    known["waiting"] = queued + left
    if paused := gauges.get("_paused", 0.0):
        known["waiting"] = max(known["waiting"], paused)
        known["waiting_room"] = paused
    elif "_one_stage" in gauges and seats is not None:
        if not left or scheduled >= seats:
            known["waiting_room"] = 0.0
        elif gauges.get("_context") == 0.0:
            known["waiting_room"] = left
    return known


TRTLLM: Final = Table(
    runtime="trtllm",
    prefix="trtllm_",
    spellings=("trtllm_", "trtllm:"),  # Dynamo writes a colon
    gauges=(
        *_requests("active", "num_requests_running"),
        Row("_serve", ("trtllm_num_requests_running",), merge="max"),
        *_requests("waiting", "num_requests_waiting"),
        *_requests("scheduled", "num_scheduled_requests"),
        *_requests("context", "num_context_requests"),
        Row("_paused", ("trtllm_num_paused_requests",), merge="max"),
        Row(
            "_paused",
            ("trtllm_inflight_batcher_metrics",),
            where=(("inflight_batcher_specific_metric", "paused_requests"),),
        ),
        *_requests("max", "max_num_active_requests"),
        Row("_one_stage", ("trtllm_parallel_config_info",), where=(("pipeline_parallel_size", "1"),), merge="max"),
        Row("kv_usage", ("trtllm_kv_cache_utilization",), merge="max", most=1 + _ROUNDING),
        Row("kv_usage", ("trtllm_kv_cache_block_metrics",), _blocks("fraction"), merge="max", most=1 + _ROUNDING),
        Row("_used", ("trtllm_kv_cache_block_metrics",), _blocks("used")),
        Row("_blocks", ("trtllm_kv_cache_block_metrics",), _blocks("max")),
    ),
    counters=(
        Row("generation_tokens", ("trtllm_generation_tokens_total",)),
        Row("steps", ("trtllm_general_metrics",), where=(("general_type", "iteration_counter"),), merge="max"),
        Row("finished", ("trtllm_num_requests_completed_total", "trtllm_request_success_total")),
        Row("prefix_queries", ("trtllm_prompt_tokens_total",), slow=True),
        Row("prefix_hits", ("trtllm_prompt_cached_tokens_total",), slow=True),
        Row("finished_prompts", ("trtllm_request_success_total",)),
        Row("finished_prompt_tokens", ("trtllm_prompt_tokens_total",)),
        Row("finished_output_tokens", ("trtllm_generation_tokens_total",)),
        Row("started", ("trtllm_time_to_first_token_seconds_count",)),
        Row("token_gaps", ("trtllm_inter_token_latency_seconds_count", "trtllm_time_per_output_token_seconds_count")),
        Row("ended", ("trtllm_e2e_request_latency_seconds_count",), slow=True),
        Row("e2e_seconds", ("trtllm_e2e_request_latency_seconds_sum",), slow=True),
        Row("queue_seconds", ("trtllm_request_queue_time_seconds_sum",), slow=True),
        Row("inference_seconds", ("trtllm_request_inference_time_seconds_sum",), slow=True),
    ),
    histograms=(
        Row("e2e", ("trtllm_e2e_request_latency_seconds",)),
        Row("ttft", ("trtllm_time_to_first_token_seconds",)),
        Row("inter_token", ("trtllm_time_per_output_token_seconds",)),
        Row("queue", ("trtllm_request_queue_time_seconds",)),
    ),
    cache=(
        Row("block_size", ("trtllm_kv_cache_tokens_per_block",), merge="max", most=_MAX_TOKENS),
        Row("block_size", ("trtllm_kv_cache_block_metrics",), _blocks("tokens_per"), merge="max", most=_MAX_TOKENS),
        Row("capacity_blocks", ("trtllm_kv_cache_max_blocks",), merge="max", most=2**31),
        Row("capacity_blocks", ("trtllm_kv_cache_block_metrics",), _blocks("max"), merge="max", most=2**31),
    ),
    admission="unseen",
    complete=complete,
    other_model_label="model",
)


EVIDENCE: Final = (
    OptionalSignal(
        what="how many of its requests wait for room in the KV cache",
        signals=("waiting_room",),
        series=("trtllm_num_scheduled_requests", "trtllm_parallel_config_info"),
        how="trtllm-serve exports what tells it with enable_iter_perf_stats, of one pipeline stage",
    ),
    never_exported(WHY_WAITING, "waiting_deferred", "TensorRT-LLM"),
    OptionalSignal(
        what="how many tokens the KV cache holds",
        signals=("capacity_tokens",),
        series=("trtllm_kv_cache_max_blocks",),
        how="trtllm-serve exports it with enable_iter_perf_stats",
    ),
    never_exported("steps, and how long prefill took", "steps", "trtllm-serve"),
)


LOGS: Final = Wordings(
    rows=(
        ("engine_dead", "error in event loop", ""),
        ("engine_dead", "executor worker died", ""),
        ("kv_exhausted", "no free blocks left", ""),
        ("kv_exhausted", "can't allocate new blocks", ""),
    ),
)

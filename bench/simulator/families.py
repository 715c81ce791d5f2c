"""The metric families of a vLLM engine, in the order of its page: one row per family.

Names, help texts, types and label values are those of recorded pages of vLLM 0.32.0; `in_0_12` marks the rows that
vLLM 0.12.0 has too (with three of the finish reasons).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Kind = Literal["gauge", "counter", "histogram"]
GAUGE: Final = "gauge"
COUNTER: Final = "counter"
HISTOGRAM: Final = "histogram"


@dataclass(frozen=True, slots=True)
class Family:
    """`key` finds the value in a rank's statistics ("" is always 0); `split` is a label and its (value, key) pairs."""

    name: str
    kind: Kind
    key: str
    help: str
    split: tuple[str, tuple[tuple[str, str], ...]] | None = None
    in_0_12: bool = True


FAMILIES: Final = (
    Family(
        "vllm:estimated_flops_per_gpu_total",
        COUNTER,
        "",
        "Estimated number of floating point operations per GPU (for Model Flops Utilization calculations).",
        in_0_12=False,
    ),
    Family(
        "vllm:estimated_read_bytes_per_gpu_total",
        COUNTER,
        "",
        "Estimated number of bytes read from memory per GPU (for Model Flops Utilization calculations).",
        in_0_12=False,
    ),
    Family(
        "vllm:estimated_write_bytes_per_gpu_total",
        COUNTER,
        "",
        "Estimated number of bytes written to memory per GPU (for Model Flops Utilization calculations).",
        in_0_12=False,
    ),
    Family("vllm:num_requests_running", GAUGE, "running", "Number of requests in model execution batches."),
    Family("vllm:num_requests_waiting", GAUGE, "waiting", "Number of requests waiting to be processed."),
    Family(
        "vllm:num_requests_waiting_by_reason",
        GAUGE,
        "",
        "Number of waiting requests by reason. Reason labels: 'capacity' = waiting for scheduling "
        "capacity; 'deferred' = deferred by transient constraints (LoRA budget, KV transfer, blocked "
        "status). Sum of all reasons equals vllm:num_requests_waiting.",
        split=("reason", (("capacity", "waiting"), ("deferred", ""))),
        in_0_12=False,
    ),
    Family(
        "vllm:engine_sleep_state",
        GAUGE,
        "",
        "Engine sleep state; awake = 0 means engine is sleeping; awake = 1 means engine is awake; "
        "weights_offloaded = 1 means sleep level 1; discard_all = 1 means sleep level 2.",
        split=(
            "sleep_state",
            (("awake", "awake"), ("weights_offloaded", "weights_offloaded"), ("discard_all", "discard_all")),
        ),
    ),
    Family("vllm:kv_cache_usage_perc", GAUGE, "usage", "KV-cache usage. 1 means 100 percent usage."),
    Family(
        "vllm:prefix_cache_queries_total",
        COUNTER,
        "prefix_queries",
        "Prefix cache queries, in terms of number of queried tokens.",
    ),
    Family(
        "vllm:prefix_cache_hits_total",
        COUNTER,
        "prefix_hits",
        "Prefix cache hits, in terms of number of cached tokens.",
    ),
    Family(
        "vllm:external_prefix_cache_queries_total",
        COUNTER,
        "",
        "External prefix cache queries from KV connector cross-instance cache sharing, in terms of number"
        " of queried tokens.",
    ),
    Family(
        "vllm:external_prefix_cache_hits_total",
        COUNTER,
        "",
        "External prefix cache hits from KV connector cross-instance cache sharing, in terms of number of"
        " cached tokens.",
    ),
    Family(
        "vllm:mm_cache_queries_total", COUNTER, "", "Multi-modal cache queries, in terms of number of queried items."
    ),
    Family("vllm:mm_cache_hits_total", COUNTER, "", "Multi-modal cache hits, in terms of number of cached items."),
    Family("vllm:num_preemptions_total", COUNTER, "preemptions", "Cumulative number of preemption from the engine."),
    Family("vllm:prompt_tokens_total", COUNTER, "prompt_tokens", "Number of prefill tokens processed."),
    Family(
        "vllm:prompt_tokens_by_source_total",
        COUNTER,
        "",
        "Number of prompt tokens by source.",
        split=(
            "source",
            (("local_compute", "prompt_computed"), ("local_cache_hit", "prompt_cached"), ("external_kv_transfer", "")),
        ),
        in_0_12=False,
    ),
    Family(
        "vllm:prompt_tokens_cached_total",
        COUNTER,
        "prompt_cached",
        "Number of cached prompt tokens (local + external).",
        in_0_12=False,
    ),
    Family(
        "vllm:prompt_tokens_cached_by_source_total",
        COUNTER,
        "",
        "Prefix-cache hit tokens by the cache tier that supplied them: device (local HBM), host "
        "(offloaded to DRAM), disk, p2p (transferred from another vLLM instance) or external_unspecified."
        " Counted at admission; sums to vllm:prefix_cache_hits + vllm:external_prefix_cache_hits.",
        split=(
            "source",
            (("device", "prompt_cached"), ("host", ""), ("p2p", ""), ("disk", ""), ("external_unspecified", "")),
        ),
        in_0_12=False,
    ),
    Family("vllm:generation_tokens_total", COUNTER, "generation_tokens", "Number of generation tokens processed."),
    Family(
        "vllm:request_success_total",
        COUNTER,
        "",
        "Count of successfully processed requests.",
        split=(
            "finished_reason",
            (
                ("stop", "finished_stop"),
                ("length", "finished_length"),
                ("abort", "finished_abort"),
                ("error", "finished_error"),
                ("repetition", "finished_repetition"),
            ),
        ),
    ),
    Family("vllm:request_prompt_tokens", HISTOGRAM, "prompt", "Number of prefill tokens processed."),
    Family("vllm:request_generation_tokens", HISTOGRAM, "generation", "Number of generation tokens processed."),
    Family("vllm:iteration_tokens_total", HISTOGRAM, "iteration", "Histogram of number of tokens per engine_step."),
    Family(
        "vllm:request_max_num_generation_tokens",
        HISTOGRAM,
        "max_tokens",
        "Histogram of maximum number of requested generation tokens.",
    ),
    Family("vllm:request_params_n", HISTOGRAM, "params_n", "Histogram of the n request parameter."),
    Family("vllm:request_params_max_tokens", HISTOGRAM, "max_tokens", "Histogram of the max_tokens request parameter."),
    Family("vllm:time_to_first_token_seconds", HISTOGRAM, "ttft", "Histogram of time to first token in seconds."),
    Family(
        "vllm:inter_token_latency_seconds", HISTOGRAM, "inter_token", "Histogram of inter-token latency in seconds."
    ),
    Family(
        "vllm:request_time_per_output_token_seconds",
        HISTOGRAM,
        "per_output_token",
        "Histogram of time_per_output_token_seconds per request.",
    ),
    Family("vllm:e2e_request_latency_seconds", HISTOGRAM, "e2e", "Histogram of e2e request latency in seconds."),
    Family(
        "vllm:request_queue_time_seconds", HISTOGRAM, "queue", "Histogram of time spent in WAITING phase for request."
    ),
    Family(
        "vllm:request_inference_time_seconds",
        HISTOGRAM,
        "inference",
        "Histogram of time spent in RUNNING phase for request.",
    ),
    Family(
        "vllm:request_prefill_time_seconds",
        HISTOGRAM,
        "prefill",
        "Histogram of time spent in PREFILL phase for request.",
    ),
    Family(
        "vllm:request_decode_time_seconds", HISTOGRAM, "decode", "Histogram of time spent in DECODE phase for request."
    ),
    Family(
        "vllm:request_num_preemptions",
        HISTOGRAM,
        "preemptions",
        "Histogram of the number of times a request was preempted.",
        in_0_12=False,
    ),
    Family(
        "vllm:request_prefill_kv_computed_tokens",
        HISTOGRAM,
        "prefill_computed",
        "Histogram of new KV tokens computed during prefill (excluding cached tokens).",
        in_0_12=False,
    ),
)

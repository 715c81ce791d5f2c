"""SGLang's metrics page, which it serves with `--enable-metrics`.

Its scheduler's series have the labels engine_type, tp_rank, pp_rank, moe_ep_rank and, with data parallelism, dp_rank;
those of its tokenizer (tokens, lengths and latencies of requests that ended) have none of these. Ranks of one engine
report the same batch, so the highest counts and nothing is summed over them. With priorities each queue has a series
per priority beside the whole, whose priority is empty.

The page comes from several processes: it has no process start. It does not have requests that were refused, nor how
long prefill took. `evicted_tokens_total` has no label of the rank, and each rank of tensor parallelism adds what it
evicts to it: it is that many times too large, and is not read.

Names, types and labels: tests/fixtures/sglang/inventory.json.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from kvpressure.model.samples import CacheConfig
from kvpressure.runtimes.runtime import GIB, Facts, Wordings, note_least
from kvpressure.runtimes.table import WHY_WAITING, OptionalSignal, PageFacts, Row, Table, never_exported

_ROUNDING: Final = 1e-6
_MAX_TOKENS: Final = 2**53
_WHOLE: Final = (("priority", ""),)
_DECODE_TOKENS: Final = 512.0
"""`--num-reserved-decode-tokens`, unless it is set; no series has it."""
_PASSES: Final = "sglang:cuda_graph_passes_total"


def cache_config(labels: Mapping[str, str], facts: PageFacts) -> CacheConfig:  # noqa: ARG001 - of every rank alone
    """Return the KV cache of one rank from the labels of `cache_config_info`: pages and tokens of a page."""
    size, pages = _count(labels, "page_size"), _count(labels, "num_pages")
    tokens = size * pages if size and pages else None
    tokens = tokens if tokens and tokens <= _MAX_TOKENS else None
    return CacheConfig(block_size=size, capacity_tokens=tokens, decode_tokens=_DECODE_TOKENS)


def _count(labels: Mapping[str, str], name: str) -> int | None:
    text = labels.get(name, "")
    return int(text) or None if text.isdecimal() and text.isascii() and len(text) < 17 else None


def complete(gauges: dict[str, float]) -> dict[str, float]:
    """Return the gauges with the queues of a decode engine: for room in its cache, and with room for KV to come."""
    known = {name: value for name, value in gauges.items() if not name.startswith("_")}
    if fetching := gauges.get("_in_transfer", 0.0):
        known["fetching"] = fetching
    if "waiting" in known:
        known["waiting"] += fetching + gauges.get("_for_room", 0.0) + gauges.get("_grammar", 0.0)
        if gauges.get("_grammar"):
            known["waiting_deferred"] = gauges["_grammar"] + fetching
    if "_available" in gauges and "_evictable" in gauges:
        known["free_tokens"] = gauges["_available"] + gauges["_evictable"]
    pools = {name: gauges[f"_{name}"] for name in ("state_usage", "window_usage") if gauges.get(f"_{name}")}
    if pools and "_full" in gauges:
        # `token_usage` is the largest of all pools: that of tokens is by itself.
        known |= {"kv_usage": gauges["_full"], **pools}
    return known


SGLANG: Final = Table(
    runtime="sglang",
    prefix="sglang:",
    spellings=("sglang:", "sglang_", "ray_sglang_"),
    relayed=frozenset({"ray_sglang_"}),
    gauges=(
        Row("running", ("sglang:num_running_reqs",), where=_WHOLE, merge="max"),
        Row("waiting", ("sglang:num_queue_reqs",), where=_WHOLE, merge="max"),
        Row("_for_room", ("sglang:num_decode_prealloc_queue_reqs",), where=_WHOLE, merge="max"),
        Row("_in_transfer", ("sglang:num_decode_transfer_queue_reqs",), where=_WHOLE, merge="max"),
        # That of running requests; cached prefixes that none of them uses can be evicted and do not count.
        Row("kv_usage", ("sglang:token_usage",), merge="max", most=1 + _ROUNDING),
        Row("_full", ("sglang:full_token_usage",), merge="max", most=1 + _ROUNDING),
        Row("_state_usage", ("sglang:mamba_usage",), merge="max", most=1 + _ROUNDING),
        Row("_window_usage", ("sglang:swa_token_usage",), merge="max", most=1 + _ROUNDING),
        Row("_grammar", ("sglang:num_grammar_queue_reqs",), merge="max"),
        # Those that a load of new weights has stopped.
        Row("updating", ("sglang:num_paused_reqs",), merge="max"),
        Row("_available", ("sglang:kv_available_tokens",), merge="max", most=_MAX_TOKENS),
        Row("_evictable", ("sglang:kv_evictable_tokens",), merge="max", most=_MAX_TOKENS),
        Row("reserve_ratio", ("sglang:new_token_ratio",), merge="max", most=1 + _ROUNDING),
    ),
    counters=(
        Row("preemptions", ("sglang:num_retracted_requests_total",), merge="max"),
        Row("preempted_prompt_tokens", ("sglang:num_retracted_input_tokens_total",), merge="max"),
        Row("preempted_output_tokens", ("sglang:num_retracted_output_tokens_total",), merge="max"),
        # The other counters of tokens move when a request ends; these with the batches, every few dozen steps.
        Row("prompt_tokens", ("sglang:realtime_tokens_total",), where=(("mode", "prefill_compute"),), merge="max"),
        Row("prompt_tokens", ("sglang:prompt_tokens_total",)),
        Row("found_prompt_tokens", ("sglang:realtime_tokens_total",), where=(("mode", "prefill_cache"),), merge="max"),
        # Each forward pass counts, with the graph of its kind or without; with speculation, no passes of draft models.
        Row("steps", (_PASSES,), merge="max", parts="mode"),
        Row("decode_steps", (_PASSES,), where=(("mode", "decode_*"),), merge="max", parts="mode"),
        Row("prefill_tokens", ("sglang:realtime_tokens_total",), where=(("mode", "prefill_compute"),), merge="max"),
        Row("generation_tokens", ("sglang:realtime_tokens_total",), where=(("mode", "decode"),), merge="max"),
        Row("generation_tokens", ("sglang:generation_tokens_total",)),
        Row("finished", ("sglang:num_requests_total",)),
        Row("aborted", ("sglang:num_aborted_requests_total",)),
        Row("prefix_queries", ("sglang:prompt_tokens_total",), slow=True),
        Row("prefix_hits", ("sglang:cached_tokens_total",), slow=True),
        Row("started", ("sglang:time_to_first_token_seconds_count",)),
        Row("finished_prompts", ("sglang:prompt_tokens_histogram_count",)),
        Row("finished_prompt_tokens", ("sglang:prompt_tokens_histogram_sum",)),
        Row("finished_output_tokens", ("sglang:generation_tokens_histogram_sum",)),
    ),
    server_gauges=(
        # With --enable-metrics, by the middleware of its HTTP server (sglang/srt/utils/common.py): a series per status.
        Row("server_errors", ("sglang:http_responses_total",), where=(("status_code", "5*"),)),
        Row("server_errors", ("dynamo_component_errors_total",)),
    ),
    histograms=(
        Row("e2e", ("sglang:e2e_request_latency_seconds",)),
        Row("ttft", ("sglang:time_to_first_token_seconds",)),
        Row("inter_token", ("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds")),
        Row("queue", ("sglang:queue_time_seconds",)),
        Row("request_prompt_tokens", ("sglang:prompt_tokens_histogram",)),
        Row("request_output_tokens", ("sglang:generation_tokens_histogram",)),
    ),
    info="sglang:cache_config_info",
    info_cache=cache_config,
    # Until 0.5.10 pages and their size were labels of an info metric; `max_total_num_tokens` is older than that.
    cache=(
        Row("capacity_tokens", ("sglang:max_total_num_tokens",), merge="max", most=_MAX_TOKENS),
        Row("block_size", ("sglang:page_size",), merge="max", most=_MAX_TOKENS),
        Row("max_model_len", ("sglang:context_len",), merge="max", most=_MAX_TOKENS),
    ),
    complete=complete,
    engine_label="dp_rank",
    role_label="engine_type",
    within_engine=frozenset({"le", "pid", "tp_rank", "pp_rank", "moe_ep_rank", "priority"}),
)


EVIDENCE: Final = (
    OptionalSignal(
        what=WHY_WAITING,
        signals=("waiting_deferred",),
        series=("sglang:num_grammar_queue_reqs",),
        how="SGLang 0.5.23 exports how many wait for a grammar",
    ),
    OptionalSignal(
        what="how many tokens the KV cache holds",
        signals=("capacity_tokens",),
        series=("sglang:max_total_num_tokens", "sglang:cache_config_info"),
        how="current versions of SGLang export it with --enable-metrics; or let kvpressure read the engine's log from "
        "its start on (logs in the settings)",
    ),
    OptionalSignal(
        what="steps",
        signals=("steps",),
        series=("sglang:cuda_graph_passes_total",),
        how="SGLang 0.5.23 exports it with --enable-metrics",
    ),
    never_exported("how long prefill took", "prefill_seconds", "SGLang"),
)


_NUMBER: Final = r"(\d{1,7}(?:\.\d{1,9})?)"


def _memory(facts: Facts, match: re.Match[str]) -> None:
    """Note the first pool of a start, which is the model's own; a draft model's comes after it. Its GB are GiB."""
    if facts.memory_bytes is None:
        facts.memory_bytes = sum(map(float, match.groups())) * GIB


LOGS: Final = Wordings(
    rows=(
        ("engine_dead", "scheduler hit an exception", ""),
        ("engine_dead", "detokenizermanager hit an exception", ""),
        ("engine_dead", "sigquit", r"received sigquit from a child process|sigquit received\."),
        ("engine_dead", "watchdog timeout (", r"\bwatchdog timeout \(self\."),
        ("preemption", "kv cache pool is full. retract requests", ""),
        ("preemption", "decode out of memory happened", ""),  # until 0.4.6
        ("kv_exhausted", "not enough memory. please try to increase --mem-fraction-static", ""),
        ("kv_exhausted", "leave no gpu memory for the kv cache", ""),
        (
            "kv_exhausted",
            "out of memory. try to lower your batch size",
            r"(?:prefill|decode) out of memory\. try to lower",
        ),
        ("kv_capacity", "kv cache is allocated.", r"\bkv cache is allocated\..{0,80}#tokens: \d"),
        ("kv_capacity", "max_total_num_tokens=", r"\bmax_total_num_tokens=\d{1,12}, "),
    ),
    words=("max_total_num_tokens=", "kv cache is allocated.", "server_args=serverargs("),
    facts=(
        (re.compile(r"\bmax_total_num_tokens=(\d{1,12}), "), note_least("tokens")),
        (re.compile(rf"\bkv cache is allocated\..{{0,120}}k size: {_NUMBER} gb, v size: {_NUMBER} gb"), _memory),
        (re.compile(rf"\bkv cache is allocated\..{{0,120}}kv size: {_NUMBER} gb"), _memory),
    ),
    banner="server_args=serverargs(",
    quotes=r"\b(?:receive|finish): obj=",
)

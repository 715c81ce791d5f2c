"""SGLang's Scheduler, made of its own parts as its constructor makes it, for one rank without a model or processes."""

import importlib
from collections import deque
from typing import Any

from tests.lab.regime import SglangFlags
from tests.lab.sglang.standins import DisaggregationMode
from tests.lab.stubs import Blank, StandIn

NULL = DisaggregationMode.NULL


def scheduler(flags: SglangFlags, streamer: Any) -> Any:
    """Return one that hands new tokens to `streamer`. What its constructor would set besides is None."""
    base = importlib.import_module("sglang.srt.managers.scheduler").Scheduler
    one = object.__new__(type("Scheduler", (base,), {"__getattr__": _absent, "get_prefill_adder_class": _adder_class}))
    one.waiting_queue, one.disaggregation_mode, one.device, one.page_size = [], NULL, "cpu", 1
    one.processed_tokens_counter = one.forward_ct = one.max_prefill_bs = one.total_prefill_busy_us = 0
    one.total_prefill_uncached_tokens = one._prefill_decode_interval_remaining = one.prefill_decode_interval = 0
    one.decode_moment_totals, one._pause_intervals, one.kv_shard_widening = [0.0] * 6, deque(), 1
    one.chunked_prefill_size = flags.chunked_prefill_size if flags.chunked_prefill_size > 0 else None
    one.is_mixed_chunk = one.chunked_prefill_size is not None and flags.enable_mixed_chunk
    one.max_total_num_tokens, one.max_prefill_tokens = flags.max_total_tokens, flags.max_prefill_tokens
    one.max_running_requests = flags.max_running_requests
    one.max_req_len = min(flags.context_length - 1, flags.max_total_tokens - 1)
    one.model_config = Blank(vocab_size=10**9, is_encoder_decoder=False, context_len=flags.context_length)
    one.spec_algorithm = Blank(is_none=lambda: True, supports_grammar_overlap=lambda: False)
    one.tp_worker = Blank(model_runner=Blank(attn_backend=None, prefill_aware_swa=False))
    one.dp_attn_adapter = Blank(
        maybe_prepare_mlp_sync_batch=lambda batch, **_: batch, maybe_convert_decode_to_extend=lambda batch: batch
    )
    one.ngram_embedding_manager = Blank(prepare_for_forward=lambda batch, **_: batch)
    one.beam_coordinator = Blank(
        pending_member_rows=lambda _: 0, retire_group=lambda _: None, commit_decode=lambda _: ()
    )
    one.grammar_manager = _NoGrammars()
    one.load_publisher = one.kv_events_publisher = one.load_inquirer = StandIn()
    one.load_inquirer = Blank(_get_num_pending_tokens=lambda **_: 0, get_loads=None)
    one.session_controller = Blank(sessions={})
    _add_pools(one, flags)
    _add_parts(one, flags, streamer)
    return one


class _NoGrammars:
    def __len__(self) -> int:
        return 0

    def has_waiting_grammars(self) -> bool:
        return False


def _absent(_: Any, name: str) -> None:
    if name.startswith("__"):
        raise AttributeError(name)


def _adder_class(self: Any) -> Any:
    return self.adder_class


def _add_pools(one: Any, flags: SglangFlags) -> None:
    """The pool's slots, the rows of the requests, and the radix cache over them, of the kinds that SGLang takes."""
    memory = importlib.import_module("sglang.srt.mem_cache.memory_pool")
    allocator = importlib.import_module("sglang.srt.mem_cache.allocator.token").TokenToKVPoolAllocator
    params = importlib.import_module("sglang.srt.mem_cache.cache_init_params").CacheInitParams
    cache = importlib.import_module("sglang.srt.mem_cache.unified_radix_cache").UnifiedRadixCache
    full = importlib.import_module("sglang.srt.mem_cache.unified_cache.component_type").ComponentType.FULL
    one.req_to_token_pool = memory.ReqToTokenPool(flags.max_running_requests, flags.context_length + 4, "cpu", False)
    one.token_to_kv_pool_allocator = allocator(flags.max_total_tokens, None, "cpu", StandIn(), need_sort=False)
    one.tree_cache = cache(
        params(
            disable=flags.disable_radix_cache,
            req_to_token_pool=one.req_to_token_pool,
            token_to_kv_pool_allocator=one.token_to_kv_pool_allocator,
            page_size=1,
            enable_metrics=True,
            chunked_prefill_size=one.chunked_prefill_size,
            tree_components=(full,),
            tree_core_backend="python",
        )
    )


def _add_parts(one: Any, flags: SglangFlags, streamer: Any) -> None:
    """The parts that decide, count and write the page, in the order of SGLang's constructor."""
    where = "sglang.srt.managers"
    components = f"{where}.scheduler_components"
    batches, policies = (
        importlib.import_module(f"{where}.schedule_batch"),
        importlib.import_module(f"{where}.schedule_policy"),
    )
    collectors = importlib.import_module("sglang.srt.observability.metrics_collector")
    context = collectors.SchedulerMetricsCollector.init_new(
        server_args=None, enable_priority_scheduling=False, enable_lora=False, enable_hierarchical_cache=False
    )
    one.metrics_collector = context.collector
    one.metrics_collector.emit_constants(
        **dict.fromkeys(("max_total_num_tokens_swa", "max_running_requests_under_SLO")),
        **dict.fromkeys(("weight_memory_usage_gb", "kv_cache_memory_usage_gb", "startup_available_gpu_memory_gb"), 0.0),
        max_total_num_tokens=flags.max_total_tokens,
        graph_memory_usage_gb={},
        page_size=1,
        num_pages=flags.max_total_tokens,
        context_len=flags.context_length,
    )
    one.running_batch = batches.ScheduleBatch(reqs=[], batch_is_full=False)
    one.pool_stats_observer = importlib.import_module(f"{components}.pool_stats_observer").SchedulerPoolStatsObserver(
        **{name: getattr(one, name) for name in ("tree_cache", "token_to_kv_pool_allocator", "req_to_token_pool")},
        **dict.fromkeys(("hisparse_coordinator", "full_tokens_per_layer", "swa_tokens_per_layer")),
        **dict.fromkeys(("is_hybrid_swa", "is_hybrid_ssm", "enable_hisparse"), False),
        session_controller=one.session_controller,
        max_total_num_tokens=flags.max_total_tokens,
    )
    reporter = importlib.import_module(f"{components}.metrics_reporter").SchedulerMetricsReporter
    one.metrics_reporter = reporter(
        scheduler=one, metrics_collector_context=context, metrics_collector=one.metrics_collector
    )
    one.policy = policies.SchedulePolicy(flags.schedule_policy, one.tree_cache, False, False, False)
    one.adder_class = policies.PrefillAdder
    tracker = importlib.import_module(f"{components}.new_token_ratio_tracker").NewTokenRatioTracker
    one.new_token_ratio_tracker = tracker.from_config()
    processor = importlib.import_module(f"{components}.batch_result_processor").SchedulerBatchResultProcessor
    of_scheduler = ("token_to_kv_pool_allocator", "tree_cache", "req_to_token_pool", "metrics_collector")
    one.batch_result_processor = processor(
        **{
            name: getattr(one, name) for name in (*of_scheduler, "metrics_reporter", "model_config", "beam_coordinator")
        },
        **dict.fromkeys(("hisparse_coordinator", "decode_offload_manager", "draft_worker", "model_worker")),
        **dict.fromkeys(("logprob_result_processor", "abort_request")),
        is_generation=True,
        disaggregation_mode=NULL,
        enable_overlap=False,
        enable_overlap_mlx=False,
        output_streamer=streamer,
    )

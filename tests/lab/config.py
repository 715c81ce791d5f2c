"""vLLM's configuration objects, as far as the scheduler and its metrics read them, from a regime's flags."""

import ast
import functools
import importlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.lab.regime import Flags
from tests.lab.stubs import Blank

MODEL: Final = "lab"
HEADS: Final = 8
HEAD_SIZE: Final = 128
BYTES_PER_TOKEN: Final = 2 * HEADS * HEAD_SIZE * 2
"""Of one group of layers: keys and values of two bytes each. What a token weighs changes no decision."""


class CacheConfig(Blank):
    """`CacheConfig` with `metrics_info`: every field as text, as `vllm:cache_config_info` shows it."""

    def metrics_info(self) -> dict[str, str]:
        """Label names and values."""
        return {key: str(value) for key, value in vars(self).items()}


def vllm_config(flags: Flags, package: Path, *, kv_role: str | None) -> Any:
    """The whole configuration. What is not set is None, which is what most switches are when off."""
    spec = _speculative(flags.num_speculative_tokens)
    return Blank(
        scheduler_config=_scheduler(flags),
        cache_config=_cache(flags, package),
        model_config=Blank(
            max_model_len=flags.max_model_len,
            served_model_name=MODEL,
            runner_type=flags.runner,
            is_diffusion=False,
            uses_mrope=False,
            is_encoder_decoder=False,
            supports_multimodal_inputs=bool(flags.encoder_budget),
            enable_return_routed_experts=False,
        ),
        lora_config=Blank(max_loras=flags.max_loras) if flags.max_loras else None,
        observability_config=Blank(
            show_hidden_metrics=False,
            show_hidden_metrics_for_version=None,
            kv_cache_metrics=flags.kv_cache_metrics,
            kv_cache_metrics_sample=0.01,
            per_request_spec_decode_metrics="none",
        ),
        parallel_config=Blank(
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            pipeline_parallel_size=1,
            tensor_parallel_size=1,
            data_parallel_size=1,
            data_parallel_index=0,
            data_parallel_rank=0,
        ),
        speculative_config=spec,
        num_speculative_tokens=flags.num_speculative_tokens,
        num_lookahead_tokens=0,
        num_prefill_lookahead_tokens=0,
        num_hash_lookahead_tokens=0,
        max_in_flight_tokens=flags.max_num_batched_tokens,
        max_concurrent_batches=1,
        kv_transfer_config=_transfer(kv_role),
        ec_manager_config=Blank(get_encoder_cache_manager_obj=lambda: None),
        aux_output_config=Blank(enabled=False),
        attention_config=Blank(),
        device_config=Blank(device_type="cuda"),
        use_v2_model_runner=False,
        is_mm_encoder_only=False,
    )


def kv_cache_config(flags: Flags) -> Any:
    """One group of full-attention layers, or groups with sliding windows that draw from the same pool."""
    interface = importlib.import_module("vllm.v1.kv_cache_interface")
    shape = {"block_size": flags.block_size, "num_kv_heads": HEADS, "head_size": HEAD_SIZE, "dtype": "float16"}
    full = [("full", interface.FullAttentionSpec(**shape))]
    windows = [
        (f"window{group}", interface.SlidingWindowSpec(**shape, sliding_window=flags.sliding_window))
        for group in range(flags.window_groups)
    ]
    chosen = {"full": full, "window": windows[:1], "hybrid": full + windows}[flags.layers]
    groups = [interface.KVCacheGroupSpec([name], spec) for name, spec in chosen]
    return interface.KVCacheConfig(num_blocks=flags.num_gpu_blocks, kv_cache_tensors=[], kv_cache_groups=groups)


def tell_capacity(config: Any, kv_config: Any) -> None:
    """The tokens that the pool holds, as `vllm:cache_config_info` tells them; before 0.30 it did not."""
    utils = importlib.import_module("vllm.v1.core.kv_cache_utils")
    told: Callable[[Any, Any], tuple[int, float]] | None = getattr(utils, "get_kv_cache_capacity", None)
    if told is not None:
        config.cache_config.kv_cache_size_tokens, config.cache_config.kv_cache_max_concurrency = told(config, kv_config)


def accepted(function: Callable[..., Any], **named: Any) -> dict[str, Any]:
    """Those arguments that this version's function knows."""
    known = _parameters(getattr(function, "__func__", function))
    return {name: value for name, value in named.items() if name in known}


@functools.cache
def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def _scheduler(flags: Flags) -> Any:
    return Blank(
        max_num_seqs=flags.max_num_seqs,
        max_num_active_seqs=flags.max_num_active_seqs,
        max_num_batched_tokens=flags.max_num_batched_tokens,
        max_num_scheduled_tokens=None,
        max_model_len=flags.max_model_len,
        policy=flags.scheduling_policy,
        enable_chunked_prefill=flags.enable_chunked_prefill,
        long_prefill_token_threshold=flags.long_prefill_token_threshold,
        long_prefill_token_threshold_adaptive=False,
        prefill_schedule_interval=flags.prefill_schedule_interval,
        watermark=flags.watermark,
        scheduler_reserve_full_isl=flags.scheduler_reserve_full_isl,
        disable_chunked_mm_input=False,
        async_scheduling=False,
    )


def _cache(flags: Flags, package: Path) -> CacheConfig:
    """This version's fields with their defaults, read from its source; then what the flags say."""
    config = CacheConfig(**_fields(package / "config" / "cache.py", "CacheConfig"))
    told = {
        "block_size": flags.block_size,
        "num_gpu_blocks": flags.num_gpu_blocks,
        "enable_prefix_caching": flags.enable_prefix_caching,
        "gpu_memory_utilization": flags.gpu_memory_utilization,
        "sliding_window": flags.sliding_window if flags.layers == "window" else None,
    }
    if hasattr(config, "kv_cache_memory_bytes"):
        told["kv_cache_memory_bytes"] = flags.num_gpu_blocks * flags.block_size * BYTES_PER_TOKEN
    vars(config).update(told)
    return config


def _fields(source: Path, name: str) -> dict[str, Any]:
    tree = ast.parse(source.read_text())
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    rows = (node for node in found.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name))
    return {row.target.id: _default(row.value) for row in rows if not _of_the_class(row)}  # type: ignore[union-attr]


def _of_the_class(row: ast.AnnAssign) -> bool:
    return "ClassVar" in ast.unparse(row.annotation)


def _default(value: ast.expr | None) -> Any:
    """`Field(default=...)` or a literal; None for what is computed when the engine starts."""
    if isinstance(value, ast.Call):
        value = next((word.value for word in value.keywords if word.arg == "default"), None)
    try:
        return None if value is None else ast.literal_eval(value)
    except ValueError:
        return None


def _speculative(tokens: int) -> Any:
    if not tokens:
        return None
    return Blank(
        num_speculative_tokens=tokens,
        method="ngram",
        max_num_new_slots_for_drafting=0,
        use_eagle=lambda: False,
        use_eagle_block_drop=lambda: False,
        needs_eagle_block_drop=lambda: False,
        uses_draft_model=lambda: False,
    )


def _transfer(role: str | None) -> Any:
    if role is None:
        return None
    return Blank(
        kv_load_failure_policy="recompute", is_kv_consumer=role != "kv_producer", is_kv_producer=role == "kv_producer"
    )

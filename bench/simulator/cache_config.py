"""`vllm:cache_config_info`: the cache configuration as labels, as recorded from vLLM 0.32.0 and 0.12.0."""

from __future__ import annotations

from typing import Final

from bench.simulator.config import EngineConfig

_V0_32: Final = {
    "_block_size_resolved": "True",
    "block_size": "{block_size}",
    "cache_dtype": "auto",
    "cache_hit_alignment_tokens": "None",
    "effective_attention_block_size": "{block_size}",
    "enable_mamba_shared_prefix_checkpoint": "False",
    "enable_prefix_caching": "True",
    "engine": "{engine}",
    "gpu_memory_utilization": "{gpu_memory_utilization}",
    "hash_block_size": "None",
    "is_attention_free": "False",
    "kv_cache_dtype_skip_layers": "[]",
    "kv_cache_layout": "None",
    "kv_cache_max_concurrency": "{max_concurrency}",
    "kv_cache_memory_bytes": "{memory_bytes}",
    "kv_cache_size_tokens": "{size_tokens}",
    "kv_offloading_backend": "native",
    "kv_offloading_size": "None",
    "kv_sharing_fast_prefill": "False",
    "mamba_block_size": "None",
    "mamba_cache_dtype": "auto",
    "mamba_cache_mode": "none",
    "mamba_page_size_padded": "None",
    "mamba_ssm_cache_dtype": "float32",
    "num_cpu_blocks": "None",
    "num_gpu_blocks": "{num_gpu_blocks}",
    "num_gpu_blocks_override": "{override}",
    "prefix_cache_retention_interval": "0",
    "prefix_caching_hash_algo": "sha256",
    "prefix_match_unit": "None",
    "replayssm_buffer_len": "16",
    "skip_page_size_padded": "None",
    "sliding_window": "None",
    "swa_bounded_replay": "True",
    "use_kda_recoverssm": "False",
    "use_replayssm": "False",
    "user_specified_block_size": "True",
}
_V0_12: Final = {
    "block_size": "{block_size}",
    "cache_dtype": "auto",
    "calculate_kv_scales": "False",
    "cpu_offload_gb": "0.0",
    "enable_prefix_caching": "True",
    "engine": "{engine}",
    "gpu_memory_utilization": "{gpu_memory_utilization}",
    "is_attention_free": "False",
    "kv_cache_memory_bytes": "{memory_bytes}",
    "kv_offloading_backend": "None",
    "kv_offloading_size": "None",
    "kv_sharing_fast_prefill": "False",
    "mamba_block_size": "None",
    "mamba_cache_dtype": "auto",
    "mamba_page_size_padded": "None",
    "mamba_ssm_cache_dtype": "auto",
    "num_cpu_blocks": "None",
    "num_gpu_blocks": "{num_gpu_blocks}",
    "num_gpu_blocks_override": "{override}",
    "prefix_caching_hash_algo": "sha256",
    "sliding_window": "None",
    "swap_space": "4.0",
}


def cache_config_labels(config: EngineConfig, engine: int) -> str:
    """The label set between the braces. With several ranks `num_gpu_blocks` is their sum, as seen on a real page."""
    usable = config.block_size * config.num_blocks
    values = {
        "block_size": config.block_size,
        "engine": engine,
        "gpu_memory_utilization": config.gpu_memory_utilization,
        "num_gpu_blocks": config.num_blocks * config.ranks,
        "override": "None",
        "size_tokens": usable,
        "max_concurrency": usable / config.max_model_len,
        "memory_bytes": config.cache_memory_bytes,
    }
    rows = _V0_12 if config.version == "0.12.0" else _V0_32
    return ",".join(f'{name}="{text.format(**values)}"' for name, text in rows.items())

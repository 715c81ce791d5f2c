"""Which tables of step times are shipped."""

from __future__ import annotations

from typing import Final

from kvpressure.capacity.silicon import Made

TABLES: Final = (
    Made("llama-3.1-8b.h100_sxm", "meta-llama/Meta-Llama-3.1-8B", "h100_sxm", 32),
    Made("llama-3.1-8b.l40s", "meta-llama/Meta-Llama-3.1-8B", "l40s", 32),
    Made("llama-3.1-8b.l40s.kv8", "meta-llama/Meta-Llama-3.1-8B", "l40s", 32, kv_bits=8),
    Made("llama-3.1-8b.b200_sxm", "meta-llama/Meta-Llama-3.1-8B", "b200_sxm", 32),
    Made("llama-3.1-8b.a100_sxm", "meta-llama/Meta-Llama-3.1-8B", "a100_sxm", 32),
    Made("llama-3.1-70b.h100_sxm.tp4", "meta-llama/Meta-Llama-3.1-70B", "h100_sxm", 80, tensor_parallel=4),
    Made("qwen3-8b.h100_sxm", "Qwen/Qwen3-8B", "h100_sxm", 36),
    Made("qwen3-32b.h200_sxm", "Qwen/Qwen3-32B", "h200_sxm", 64),
    Made("qwen3-32b.h100_sxm.tp2", "Qwen/Qwen3-32B", "h100_sxm", 64, tensor_parallel=2),
    Made("qwen3-32b-fp8.h100_sxm.kv8", "Qwen/Qwen3-32B-FP8", "h100_sxm", 64, weight_bits=8, kv_bits=8),
    Made("qwen3-30b-a3b.h100_sxm", "Qwen/Qwen3-30B-A3B", "h100_sxm", 48, experts=True),
    Made(
        "qwen3-30b-a3b-fp8.h100_sxm.kv8",
        "Qwen/Qwen3-30B-A3B-FP8",
        "h100_sxm",
        48,
        weight_bits=8,
        kv_bits=8,
        experts=True,
    ),
    Made("qwen3-30b-a3b.h200_sxm.tp2", "Qwen/Qwen3-30B-A3B", "h200_sxm", 48, tensor_parallel=2, experts=True),
    Made("llama-3.1-8b.h200_sxm", "meta-llama/Meta-Llama-3.1-8B", "h200_sxm", 32),
    Made("llama-3.1-70b.a100_sxm.tp4", "meta-llama/Meta-Llama-3.1-70B", "a100_sxm", 80, tensor_parallel=4),
    Made("llama-3.1-70b.h200_sxm.tp2", "meta-llama/Meta-Llama-3.1-70B", "h200_sxm", 80, tensor_parallel=2),
    Made("llama-3.1-70b.b200_sxm.tp2", "meta-llama/Meta-Llama-3.1-70B", "b200_sxm", 80, tensor_parallel=2),
    Made("qwen3-8b.a100_sxm", "Qwen/Qwen3-8B", "a100_sxm", 36),
    Made("qwen3-8b.l40s", "Qwen/Qwen3-8B", "l40s", 36),
    Made("qwen3-8b.h200_sxm", "Qwen/Qwen3-8B", "h200_sxm", 36),
    Made("qwen3-32b.a100_sxm.tp2", "Qwen/Qwen3-32B", "a100_sxm", 64, tensor_parallel=2),
    Made("qwen3-32b.b200_sxm", "Qwen/Qwen3-32B", "b200_sxm", 64),
    Made("qwen3-30b-a3b.h200_sxm", "Qwen/Qwen3-30B-A3B", "h200_sxm", 48, experts=True),
    Made("qwen3-30b-a3b.b200_sxm", "Qwen/Qwen3-30B-A3B", "b200_sxm", 48, experts=True),
)

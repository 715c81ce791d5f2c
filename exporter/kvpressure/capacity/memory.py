"""The memory of one engine's GPUs, and what weights, activations and the rest take of it before the KV cache."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final

from kvpressure.capacity.arithmetic import GIB, Step, number, size
from kvpressure.capacity.geometry import Geometry
from kvpressure.capacity.parallel import Parallel, stages
from kvpressure.runtimes.registry import ASSUMED
from kvpressure.runtimes.runtime import Runtime

OUTSIDE_BYTES: Final = 0.25 * GIB
"""What the CUDA context takes outside torch on one GPU: logs say 0.05 to 0.25 GiB."""
COMMUNICATION_BYTES: Final = 0.25 * GIB
"""What NCCL and the buffers of its all-reduce take beside it where several GPUs serve one model."""
GRAPH_BYTES: Final = 0.4 * GIB
"""CUDA graphs, which servers now take off the cache: logs say 0.1 to 0.6 GiB for most models."""

_SAMPLER_BYTES: Final = 37
"""Per sequence and word of the vocabulary while the sampler is profiled: logits in 16 and 32 bits, their sort with
64-bit indices, softmax, cumulated sum and noise. Logged peaks of 1.19 to 1.45 GiB for 256 sequences of Llama 3 and Qwen
2.5 make 38 to 41, 7.4 GiB beside the weights of gpt-oss-120b for 1,024 make 35 to 37, at 1,024 tokens a step as at
8,192 (decision 0041)."""
_TILE_WIDTH: Final = 256
_TILE_DEPTH: Final = 128
"""Columns and rows that the kernels of MXFP4 pad experts to: 2,880 x 2,880 become 3,072 x 2,944."""

_ACTIVATION_BYTES: Final = 2 * 3
"""Per token and unit of width, at the widest moment of a layer: three 16-bit copies each of the MLP's and the hidden
width (gate, up and their product; input, residual and output). Within 1 % of what was measured for Llama-3.1-8B."""


@dataclass(frozen=True, slots=True)
class Memory:
    """The GPUs of one engine and how it uses them; `gpu` is their name where it was given.

    `gpu_memory_bytes` has one value for all GPUs or one for each; the smallest counts, for ranks get equal shares. It
    is empty where `kv_cache_bytes` says all. `max_num_seqs` is None for the runtime's default on such a GPU.
    `weights_bytes` (whole model) and `kv_cache_bytes` (per GPU, as the log says) replace the estimates when they are
    known.
    """

    gpu_memory_bytes: tuple[float, ...]
    tensor_parallel: int = 1
    gpu_memory_utilization: float = 0.9
    max_num_batched_tokens: int | None = None
    weights_bytes: float | None = None
    kv_cache_bytes: float | None = None
    runtime: Runtime = ASSUMED
    gpu: str = ""
    pipeline_parallel: int = 1
    data_parallel: int = 1
    expert_parallel: bool = False
    max_num_seqs: int | None = None

    @property
    def sequences(self) -> int:
        """The sequences that the runtime makes room for in its sampler."""
        if self.max_num_seqs is not None:
            return self.max_num_seqs
        return self.runtime.audit.default_sequences(self.gpu, self.smallest_gpu_bytes) or 0

    @property
    def parallel(self) -> Parallel:
        """How the model is divided among the GPUs."""
        return Parallel(self.tensor_parallel, self.pipeline_parallel, self.data_parallel, expert=self.expert_parallel)

    @property
    def smallest_gpu_bytes(self) -> float:
        """The GPU with the least memory: the others cannot use more."""
        return min(self.gpu_memory_bytes)

    def at(self, utilization: float) -> Memory:
        """Return the same GPUs at another utilization; a measured pool shrinks by the difference."""
        given_up = (self.gpu_memory_utilization - utilization) * self.smallest_gpu_bytes
        measured = None if self.kv_cache_bytes is None else self.kv_cache_bytes - given_up
        return replace(self, gpu_memory_utilization=utilization, kv_cache_bytes=measured)


def activation_bytes(geometry: Geometry, batched_tokens: int, tensor_parallel: int) -> float:
    """Return the peak activation bytes on one GPU in a step of `batched_tokens`; the ranks share the MLP's width."""
    width = geometry.intermediate_size / tensor_parallel + geometry.hidden_size
    return _ACTIVATION_BYTES * batched_tokens * width


def sampler_bytes(geometry: Geometry, sequences: int) -> float:
    """Return the peak of sampling for so many sequences; every GPU has the whole vocabulary's logits."""
    return _SAMPLER_BYTES * sequences * geometry.vocabulary


def padding_bytes(geometry: Geometry, memory: Memory) -> float:
    """Return what experts take on one GPU beyond their weights, where the kernels store them in whole tiles."""
    weights, parallel = geometry.weights, memory.parallel
    if weights is None or memory.weights_bytes is not None or not geometry.padded_experts:
        return 0.0
    ranks = 1 if parallel.expert else parallel.tensor
    width, depth = geometry.hidden_size, geometry.moe_intermediate_size / ranks
    stored = _tiles(width, _TILE_WIDTH) * _tiles(depth, _TILE_DEPTH) / (width * depth)
    experts = weights.experts.parameters * weights.experts.bits / 8 / (parallel.tensor * parallel.data)
    return experts * (stored - 1.0) / parallel.pipeline


def _tiles(size: float, tile: int) -> int:
    return math.ceil(size / tile) * tile


def weights_step(geometry: Geometry, memory: Memory, stage: range | None = None) -> Step:
    """Return the weights on one GPU of a stage, without one of the fullest.

    Raises ValueError where neither their size nor an estimate is known.
    """
    parallel, weights = memory.parallel, geometry.weights
    if stage is None and parallel.pipeline > 1:
        every = (
            weights_step(geometry, memory, stage_layers) for stage_layers in stages(geometry.layers, parallel.pipeline)
        )
        return max(every, key=attrgetter("value"))
    if memory.weights_bytes is not None:
        ranks = parallel.tensor * parallel.pipeline
        split = "" if ranks == 1 else f" / {ranks} GPUs"
        return Step("Weights", f"{size(memory.weights_bytes)} as given{split}", memory.weights_bytes / ranks, "bytes")
    if weights is None:
        raise ValueError("neither the weights' bytes nor an estimate of them is given")
    layers = range(geometry.layers) if stage is None else stage
    share = len(layers) / geometry.layers
    begins = layers.start == 0
    ends = layers.stop == geometry.layers
    # A stage at an end of the model holds one of the two embeddings, or the one matrix that serves for both.
    embedded = float(begins or ends) if weights.tied else 0.5 * (begins + ends)
    divided: dict[tuple[float, int], float] = {}
    for part, of_it, among in (
        (weights.embeddings, embedded, parallel.tensor),
        (weights.layers, share, parallel.tensor),
        (weights.experts, share, parallel.tensor * parallel.data),
        (weights.tower, float(begins), parallel.tensor),
        (weights.draft, float(ends), parallel.tensor),
    ):
        if part.parameters and of_it:
            divided[part.bits, among] = divided.get((part.bits, among), 0.0) + part.parameters * of_it
    formula = " + ".join(_term(count, bits, among) for (bits, among), count in divided.items())
    formula = formula.replace(" G x", " G parameters x", 1)
    value = sum(count * bits / 8 / among for (bits, among), count in divided.items())
    return Step("Weights", formula, value, "bytes")


def _term(parameters: float, bits: float, among: int) -> str:
    each = f"{bits / 8:g} B" if bits % 8 == 0 else f"{bits:g} bits / 8"
    return f"{parameters / 1e9:.3f} G x {each}" + (f" / {among} GPUs" if among > 1 else "")


def overhead_steps(geometry: Geometry, memory: Memory, batched_tokens: int) -> list[Step]:
    """Return what else is taken of one GPU before the cache: padding, the peak of a step, graphs, what is outside."""
    if memory.runtime.planning.activations_outside:
        return []
    steps = []
    if padding := padding_bytes(geometry, memory):
        steps.append(Step("Padding of experts", f"tiles of {_TILE_WIDTH} x {_TILE_DEPTH}", padding, "bytes"))
    several = memory.parallel.gpus > 1
    outside = OUTSIDE_BYTES + (COMMUNICATION_BYTES if several else 0.0)
    named = "CUDA context, NCCL" if several else "CUDA context"
    return [
        *steps,
        _peak_step(geometry, memory, batched_tokens),
        Step("CUDA graphs", "as logs say of most models", GRAPH_BYTES, "bytes"),
        Step("Outside torch", named, outside, "bytes"),
    ]


def _peak_step(geometry: Geometry, memory: Memory, batched_tokens: int) -> Step:
    """Return the larger of the two peaks that the runtime profiles: a step's activations, and sampling."""
    ranks = memory.parallel.tensor
    activations = activation_bytes(geometry, batched_tokens, ranks)
    sampler = sampler_bytes(geometry, memory.sequences)
    if sampler > activations:
        formula = f"{number(memory.sequences)} sequences x {number(geometry.vocabulary)} words x {_SAMPLER_BYTES} B"
        return Step("Sampler", formula, sampler, "bytes")
    inner = number(geometry.intermediate_size) + (f" / {ranks}" if ranks > 1 else "")
    formula = f"{number(batched_tokens)} batched tokens x 3 x ({inner} + {number(geometry.hidden_size)}) x 2 B"
    return Step("Activations", formula, activations, "bytes")

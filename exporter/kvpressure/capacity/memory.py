"""The memory of one engine's GPUs, and what weights, activations and the rest take of it before the KV cache."""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final

from kvpressure.capacity.arithmetic import GIB, Step, number, size
from kvpressure.capacity.geometry import Geometry
from kvpressure.capacity.parallel import Parallel, stages
from kvpressure.runtimes.registry import ASSUMED
from kvpressure.runtimes.runtime import Runtime

FIXED_RESERVE_BYTES: Final = 1.0 * GIB
"""CUDA context, NCCL, CUDA graphs and fragmentation on one GPU. Logged were 0.9 GiB for Llama-2-7B on an A100 and
0.2-0.4 GiB outside torch plus 0.4 GiB of graphs since; some models' graphs take several (decision 0041)."""

_ACTIVATION_BYTES: Final = 2 * 3
"""Per token and unit of width, at the widest moment of a layer: three 16-bit copies each of the MLP's and the hidden
width (gate, up and their product; input, residual and output). Within 1 % of what was measured for Llama-3.1-8B."""


@dataclass(frozen=True, slots=True)
class Memory:
    """The GPUs of one engine and how it uses them; `gpu` is their name where it was given.

    `gpu_memory_bytes` has one value for all GPUs or one for each; the smallest counts, for ranks get equal shares.
    `weights_bytes` (whole model), `reserve_bytes` (activations and the rest, per GPU) and `kv_cache_bytes` (per GPU,
    as the log says) replace the estimates when they are known.
    """

    gpu_memory_bytes: tuple[float, ...]
    tensor_parallel: int = 1
    gpu_memory_utilization: float = 0.9
    max_num_batched_tokens: int | None = None
    weights_bytes: float | None = None
    reserve_bytes: float | None = None
    kv_cache_bytes: float | None = None
    runtime: Runtime = ASSUMED
    gpu: str = ""
    pipeline_parallel: int = 1
    data_parallel: int = 1
    expert_parallel: bool = False

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


def weights_step(geometry: Geometry, memory: Memory, stage: range | None = None) -> Step:
    """Return the weights on one GPU of a stage, without one of the fullest.

    Raises ValueError where neither their size nor an estimate is known.
    """
    parallel, weights = memory.parallel, geometry.weights
    if stage is None and parallel.pipeline > 1:
        every = (weights_step(geometry, memory, one) for one in stages(geometry.layers, parallel.pipeline))
        return max(every, key=attrgetter("value"))
    if memory.weights_bytes is not None:
        ranks = parallel.tensor * parallel.pipeline
        split = "" if ranks == 1 else f" / {ranks} GPUs"
        return Step("Weights", f"{size(memory.weights_bytes)} as given{split}", memory.weights_bytes / ranks, "bytes")
    if weights is None:
        raise ValueError("neither the weights' bytes nor an estimate of them is given")
    layers = range(geometry.layers) if stage is None else stage
    share, begins, ends = len(layers) / geometry.layers, layers.start == 0, layers.stop == geometry.layers
    # A stage at an end of the model holds one of the two embeddings, or the one matrix that serves for both.
    embedded = float(begins or ends) if weights.tied else 0.5 * (begins + ends)
    divided: dict[tuple[float, int], float] = {}
    for part, of_it, among in (
        (weights.embeddings, embedded, parallel.tensor),
        (weights.layers, share, parallel.tensor),
        (weights.experts, share, parallel.tensor * parallel.data),
        (weights.tower, float(begins), parallel.tensor),
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
    """Return what else is taken of one GPU before the cache: the peak of the activations, and a fixed reserve."""
    if memory.runtime.planning.activations_outside:
        return []
    if memory.reserve_bytes is not None:
        return [Step("Activations and the rest", "as given", memory.reserve_bytes, "bytes")]
    ranks = memory.parallel.tensor
    inner = number(geometry.intermediate_size) + (f" / {ranks}" if ranks > 1 else "")
    formula = f"{number(batched_tokens)} batched tokens x 3 x ({inner} + {number(geometry.hidden_size)}) x 2 B"
    return [
        Step("Activations", formula, activation_bytes(geometry, batched_tokens, ranks), "bytes"),
        Step("Fixed reserve", "CUDA context, graphs, NCCL", FIXED_RESERVE_BYTES, "bytes"),
    ]

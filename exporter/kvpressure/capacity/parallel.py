"""How a model is divided among GPUs: the stages of a pipeline, and what a server would refuse."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from kvpressure.capacity.geometry import Geometry
from kvpressure.runtimes.runtime import Runtime

_MAX_RANKS: Final = 64


class RefusedError(ValueError):
    """The server would refuse to start so; a line of the message for each reason and what to do instead."""

    def __init__(self, reasons: list[str]) -> None:
        super().__init__("\n".join(reasons))


@dataclass(frozen=True, slots=True)
class Parallel:
    """GPUs of one engine: `tensor` x `pipeline` of them hold the model, `data` ranks of those have a pool each.

    `expert` says that whole experts are placed on GPUs. Either way the experts are divided among all of them.
    """

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: bool = False

    @property
    def gpus(self) -> int:
        """The number of GPUs."""
        return self.tensor * self.pipeline * self.data


def stages(layers: int, pipeline: int) -> list[range]:
    """Return the layers of equal stages; leftover ones go to the last stages but one, backwards, as the servers do."""
    counts = [layers // pipeline] * pipeline
    for behind in range(2, layers % pipeline + 2):
        counts[-behind] += 1
    ends = [0, *itertools.accumulate(counts)]
    return [range(first, last) for first, last in itertools.pairwise(ends)]


def possible_tensor_parallel(geometry: Geometry) -> list[int]:
    """Return the numbers of GPUs that the model's heads can be divided among, ascending."""
    return [ranks for ranks in range(1, _MAX_RANKS + 1) if not list(_heads_refused(geometry, ranks))]


def refusals(geometry: Geometry, parallel: Parallel, runtime: Runtime) -> Iterator[str]:
    """Yield why the runtime would not start the model with these ranks, and what to do; nothing where it would."""
    flags, title = runtime.planning.flags, runtime.title
    for why in _heads_refused(geometry, parallel.tensor):
        usual = ", ".join(str(ranks) for ranks in possible_tensor_parallel(geometry) if ranks <= 16)
        yield f"{flags['tensor_parallel']} {parallel.tensor} {why}: {title} refuses it; use one of {usual}"
    if parallel.pipeline > geometry.layers:
        yield (
            f"{flags['pipeline_parallel']} {parallel.pipeline} is more than the model's {geometry.layers} layers: "
            f"{title} refuses it; use {geometry.layers} at most"
        )
    if parallel.expert and not geometry.experts:
        yield f"{flags['expert_parallel']}: this model has no experts, {title} refuses it; leave it out"
    yield from _blocks_refused(geometry, parallel, runtime)


def length_refused(geometry: Geometry, limit: int | None, runtime: Runtime) -> Iterator[str]:
    """Yield why a limit above the model's own length is refused, where nothing scales its positions."""
    own, flag = geometry.max_model_len, runtime.planning.flags["max_model_len"]
    if limit is not None and own is not None and limit > own and not geometry.stretched:
        yield f"{flag} {limit} is above the model's own {own}: {runtime.title} refuses it; use {own} at most"


def _heads_refused(geometry: Geometry, ranks: int) -> Iterator[str]:
    if geometry.attention_heads % ranks:
        yield f"does not divide the model's {geometry.attention_heads} attention heads"
    for heads in sorted({group.kv_heads for group in geometry.groups if not group.latent}):
        if heads % ranks and ranks % heads:
            yield f"neither divides the model's {heads} KV heads nor is a multiple of them"


def _blocks_refused(geometry: Geometry, parallel: Parallel, runtime: Runtime) -> Iterator[str]:
    """Yield why the ranks are refused: each one's slice of a matrix must be whole quantization blocks."""
    block = geometry.quantized_in
    width = geometry.moe_intermediate_size if geometry.experts else geometry.intermediate_size
    ranks = parallel.tensor * (parallel.data if geometry.experts else 1)
    if block is None or (geometry.experts and parallel.expert) or width % ranks == 0 == width // ranks % block:
        return
    fits = max((n for n in possible_tensor_parallel(geometry) if width % n == 0 == width // n % block), default=1)
    flags, what = runtime.planning.flags, "an expert" if geometry.experts else "the MLP"
    instead = f", or {flags['expert_parallel']}" if geometry.experts else ""
    yield (
        f"{width} columns of {what} among {ranks} GPUs are no whole blocks of {block} (scales of its FP8): "
        f"{runtime.title} refuses it; use {flags['tensor_parallel']} {fits}{instead}"
    )

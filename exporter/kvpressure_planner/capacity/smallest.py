"""The smallest pool of an engine's stages, and the fewest GPUs for which something holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from kvpressure.capacity import parallel
from kvpressure.capacity.arithmetic import Step
from kvpressure.capacity.geometry import Geometry, KvCost
from kvpressure.capacity.memory import Memory
from kvpressure.capacity.parallel import Parallel
from kvpressure.capacity.pool import BytePool, pool_from_memory, whole_blocks
from kvpressure_planner.capacity.case import PlannedTraffic

_MAX_TENSOR_PARALLEL: Final = 16
_MAX_PIPELINE: Final = 16


def smallest_pool(
    geometry: Geometry, cost: KvCost, memory: Memory, traffic: PlannedTraffic, batched_tokens: int
) -> tuple[BytePool, tuple[Step, ...]]:
    """Return the pool of one engine: that of the pipeline stage which holds the fewest requests."""
    if geometry.state is not None:
        geometry = replace(geometry, state=geometry.state.on(memory.gpu))
    cost = geometry.costing(cost.value_bytes, memory.tensor_parallel, cost.requested_block_tokens)
    if memory.pipeline_parallel == 1:
        return pool_from_memory(geometry, cost, memory, batched_tokens)
    found = []
    for stage in parallel.stages(geometry.layers, memory.pipeline_parallel):
        part = geometry.stage(stage)
        if part.groups:
            costing = part.costing(cost.value_bytes, memory.tensor_parallel, cost.requested_block_tokens)
            found.append(pool_from_memory(geometry, costing, memory, batched_tokens, stage))
    return min(found, key=lambda one: one[0].fit(whole_blocks(traffic.request_p95, one[0].block_tokens), 1e6))


def smallest_tensor_parallel(geometry: Geometry, memory: Memory, fits: Callable[[Memory], bool]) -> Parallel | None:
    """Return the fewest GPUs of this kind for which `fits` is true, None where no usual number is enough.

    First more of them side by side, then also one behind the other.
    """
    least = memory.tensor_parallel
    ranks = [n for n in parallel.possible_tensor_parallel(geometry) if least <= n <= _MAX_TENSOR_PARALLEL]
    pipelines = range(memory.pipeline_parallel, min(_MAX_PIPELINE, geometry.layers) + 1)
    for pipeline in pipelines:
        for tensor in ranks if pipeline == memory.pipeline_parallel else ranks[-1:]:
            used = replace(
                memory,
                tensor_parallel=tensor,
                pipeline_parallel=pipeline,
                gpu_memory_bytes=tuple(sorted(memory.gpu_memory_bytes)[:1]),
            )
            if not list(parallel.refusals(geometry, used.parallel, memory.runtime)) and fits(used):
                return used.parallel
    return None

"""The GPUs of an engine as a driver would report them."""

from __future__ import annotations

import random

from bench.simulator.config import EngineConfig, GpuConfig
from bench.simulator.scheduler import Rank
from bench.simulator.stats import SAMPLE_SECONDS
from kvpressure.model.samples import GpuSample


class GpuReader:
    """Reads the ranks' activity. Memory is the preallocated share, plus activations beyond the profiled ones."""

    def __init__(self, config: EngineConfig, rng: random.Random) -> None:
        self._config = config
        self._since = 0.0
        self._growth_bytes = 0.0
        prefix = f"{rng.getrandbits(32):08x}"
        self._uuid = "GPU-" + prefix + "-0000-4000-8000-{:012x}"

    def note_tokens(self, tokens: int) -> None:
        """Long requests make the caching allocator keep a little more for itself (up to 1 % of the device)."""
        if self._config.gpu:
            ceiling = 0.01 * self._config.gpu.memory_bytes
            self._growth_bytes = min(ceiling, max(self._growth_bytes, ceiling * tokens / self._config.max_model_len))

    def read(self, clock: float, start: float, ranks: list[Rank]) -> list[GpuSample]:
        """One sample per GPU at virtual second `clock`; utilization covers the time since the last read."""
        gpu = self._config.gpu
        if gpu is None:
            return []
        samples = [
            sample for number, rank in enumerate(ranks) for sample in self._of_rank(rank, number, gpu, clock, start)
        ]
        self._since = clock
        return samples

    def _of_rank(self, rank: Rank, number: int, gpu: GpuConfig, clock: float, start: float) -> list[GpuSample]:
        elapsed = max(clock - self._since, SAMPLE_SECONDS)
        busy = rank.activity.busy_ratios(self._since, clock)
        mean_busy = sum(busy) / len(busy) if busy else 0.0
        compute, memory = (min(1.0, seconds / elapsed) for seconds in rank.activity.take_seconds())
        used = gpu.memory_bytes * self._config.gpu_memory_utilization + gpu.other_bytes + self._growth_bytes
        return [
            GpuSample(
                t=start + clock,
                uuid=self._uuid.format(index),
                index=str(index),
                vendor=gpu.vendor,
                name=gpu.name,
                driver_version=gpu.driver_version,
                memory_used_bytes=min(used, gpu.memory_bytes),
                memory_total_bytes=gpu.memory_bytes,
                utilization=busy,
                sm_active_ratio=max(compute, memory, 0.9 * mean_busy),
                tensor_active_ratio=compute,
                dram_active_ratio=memory,
            )
            for index in range(number * gpu.per_rank, (number + 1) * gpu.per_rank)
        ]

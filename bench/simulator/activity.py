"""What the GPU did: busy time in the driver's sampling intervals, compute and memory time in between reads."""

from __future__ import annotations

from collections import deque

from bench.simulator.cost import StepTime

SAMPLE_SECONDS = 1 / 6
"""NVML's shortest averaging interval of GPU utilization."""


class Activity:
    """Seconds busy per sampling interval (the last 60 kept), and seconds of compute and memory since the last read."""

    def __init__(self) -> None:
        self.compute_seconds = 0.0
        self.memory_seconds = 0.0
        self._bins: deque[list[float]] = deque(maxlen=60)
        self._seen = 0.0

    def record(self, start: float, end: float, time: StepTime) -> None:
        """Steps of this kind ran from `start` to `end`; what was recorded before is not counted twice."""
        start, self._seen = max(start, self._seen), max(end, self._seen)
        if end <= start:
            return
        share = (end - start) / time.seconds
        self.compute_seconds += time.compute * share
        self.memory_seconds += time.memory * share
        busy = min(1.0, time.busy / time.seconds)
        at = start
        while at < end:
            number = int(at / SAMPLE_SECONDS)
            until = min(end, (number + 1) * SAMPLE_SECONDS)
            if until <= at:
                number, until = number + 1, min(end, (number + 2) * SAMPLE_SECONDS)
            self._add(number, (until - at) * busy)
            at = until

    def take_seconds(self) -> tuple[float, float]:
        """Seconds of compute and of memory traffic since the last call."""
        taken = self.compute_seconds, self.memory_seconds
        self.compute_seconds = self.memory_seconds = 0.0
        return taken

    def busy_ratios(self, since: float, until: float) -> tuple[float, ...]:
        """Share of time busy in each interval that lies wholly in [since, until), oldest first."""
        busy = {int(number): seconds for number, seconds in self._bins}
        first, last = -int(-since // SAMPLE_SECONDS), int(until / SAMPLE_SECONDS)
        return tuple(min(1.0, busy.get(number, 0.0) / SAMPLE_SECONDS) for number in range(max(first, last - 60), last))

    def _add(self, number: int, seconds: float) -> None:
        if self._bins and self._bins[-1][0] == number:
            self._bins[-1][1] += seconds
        else:
            self._bins.append([number, seconds])

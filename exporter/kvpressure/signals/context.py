"""What beside an engine's own window its values depend on, among it the bounded history of its GPUs. PURE."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from kvpressure.config.thresholds import Thresholds
from kvpressure.model.record import record
from kvpressure.model.samples import GpuSample
from kvpressure.signals.points import Line, line, stepped_back
from kvpressure.signals.windows import MAX_POINTS


class GpuWindow:
    """The recent history of one GPU: its newest sample and the driver's utilization samples over `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.samples: deque[GpuSample] = deque(maxlen=MAX_POINTS)
        self._totals: deque[tuple[float, float, int]] = deque()
        self.utilization: float | None = None
        """Mean of the driver's own samples over the window; None when the newest reading has none."""
        self.memory_trend: Line | None = None
        """Straight line through the used bytes of the window; None with too few."""

    @property
    def last(self) -> GpuSample:
        """The newest sample; raises IndexError before the first."""
        return self.samples[-1]

    def add(self, sample: GpuSample) -> None:
        """Take one reading in; one no newer than the last is dropped, and a clock set back empties the window."""
        if self.samples and stepped_back(self.samples[-1].t, sample.t):
            self.samples.clear()
            self._totals.clear()
        if self.samples and sample.t <= self.samples[-1].t:
            return
        self.samples.append(sample)
        while self.samples[0].t < sample.t - self.seconds:
            self.samples.popleft()
        self._totals.append((sample.t, sum(sample.utilization), len(sample.utilization)))
        while self._totals[0][0] < self.samples[0].t:
            self._totals.popleft()
        self.utilization = self.utilization_since(self.samples[0].t)
        used = ((sample.t, sample.memory_used_bytes) for sample in self.samples)
        self.memory_trend = line([(t, value) for t, value in used if value is not None])

    def utilization_since(self, since: float) -> float | None:
        """Return the mean of the driver's own samples since `since`; None when the newest reading has none."""
        if not self.last.utilization:
            return None
        total, count = 0.0, 0
        for t, added, number in reversed(self._totals):
            if t < since:
                break
            total, count = total + added, count + number
        return total / count if count else None

    def mean(self, read: Callable[[GpuSample], float | None]) -> float | None:
        """Return the mean over the window of what `read` takes from a sample; None when the newest has none."""
        if read(self.last) is None:
            return None
        values = [value for sample in self.samples if (value := read(sample)) is not None]
        return sum(values) / len(values)


@record
class Context:
    """What beside the engine's own window a derived value depends on.

    `gpus` are the GPUs known to serve this engine and no other, `bytes_per_token` overrides what the page says,
    `baseline` holds what is known of the engine's own healthy state, by the names of `baseline.Baseline`.
    `max_num_seqs` and `max_num_batched_tokens` are limits of the engine, None where unknown; `role` is what it was
    started as, `PREFILL`, `DECODE` or "". `requested_tokens` is that of `reserve.RequestedTokens`.
    """

    thresholds: Thresholds
    gpus: Sequence[GpuWindow] = ()
    bytes_per_token: float | None = None
    baseline: Mapping[str, float] = field(default_factory=dict)
    max_num_seqs: float | None = None
    max_num_batched_tokens: float | None = None
    role: str = ""
    requested_tokens: float = 0.0

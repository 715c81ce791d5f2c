"""The engine's own healthy p95 latencies, so that an inflation is measured against itself and no table of models."""

from __future__ import annotations

from collections.abc import Mapping

from kvpressure.derive.latency import KINDS, p95
from kvpressure.thresholds import Thresholds
from kvpressure.windows import EngineWindow

LN2 = 0.6931471805599453


class Baseline:
    """Mean healthy p95 per latency kind, aged exponentially; frozen whenever the engine is not calm.

    An incident therefore never becomes the norm. A kind has a value once it was seen healthy for
    `baseline_min_seconds`.
    """

    def __init__(self, thresholds: Thresholds) -> None:
        self._limits = thresholds
        self._mean: dict[str, float] = {}
        self._seen_seconds: dict[str, float] = {}
        self._t: float | None = None

    def values(self) -> Mapping[str, float]:
        """Healthy p95 in seconds by kind, for the kinds with enough evidence."""
        enough = self._limits.baseline_min_seconds
        return {kind: mean for kind, mean in self._mean.items() if self._seen_seconds[kind] >= enough}

    def update(self, window: EngineWindow, *, calm: bool) -> None:
        """Let the newest window count for the time since the previous one, if it was calm."""
        elapsed = 0.0 if self._t is None else min(window.t - self._t, window.seconds)
        self._t = window.t
        if not calm or elapsed <= 0:
            return
        horizon = self._limits.baseline_half_life_seconds / LN2
        for kind in KINDS:
            now = p95(window.histogram(kind))
            if now is None:
                continue
            seen = self._seen_seconds.get(kind, 0.0) + elapsed
            mean = self._mean.get(kind, now)
            self._mean[kind] = mean + (now - mean) * elapsed / min(seen, horizon)
            self._seen_seconds[kind] = seen


def calm(window: EngineWindow, admission_blocked_ratio: float | None) -> bool:
    """True when the window shows the engine serving with nothing in its way: demand, no queue, no preemption."""
    running, waiting = window.mean("running"), window.mean("waiting")
    if not running or waiting is None or waiting >= 1.0:
        return False
    return not admission_blocked_ratio and not window.delta("preemptions")

"""The engine's own healthy latencies and batch, so that it is measured against itself and no table of models."""

from __future__ import annotations

import math
from collections.abc import Mapping

from kvpressure.config.thresholds import Thresholds
from kvpressure.model.values import Derived, at
from kvpressure.signals.latency import ANSWER_TOKENS, KINDS

BATCH = "batch"
STEP_TOKENS = "step_tokens"


class Baseline:
    """Mean of healthy p95s: of each latency kind, in seconds, the batch and output length; and of a step's tokens.

    Aged exponentially, and frozen whenever the engine is not healthy, so that an incident never becomes the norm; a
    latency that is inflated against what is known so far is left out, since its incident may not have been told yet;
    end to end, that is beyond what longer answers explain.
    A value is given once it was seen healthy for `baseline_min_seconds`.
    """

    def __init__(self, thresholds: Thresholds) -> None:
        self.thresholds = thresholds
        self._mean: dict[str, float] = {}
        self._seen_seconds: dict[str, float] = {}
        self._t: float | None = None

    def values(self) -> Mapping[str, float]:
        """Return the healthy p95 of what there is enough evidence for, by latency kind, `batch` and so on."""
        enough = self.thresholds.baseline_min_seconds
        return {name: mean for name, mean in self._mean.items() if self._seen_seconds[name] >= enough}

    def growth(self, answer_tokens: float | None) -> float:
        """How many times as long as healthy ones answers are now (p95), at least 1; 1 where it is not known."""
        healthy = self._mean.get(ANSWER_TOKENS)
        return max(1.0, answer_tokens / healthy) if answer_tokens is not None and healthy else 1.0

    def update(
        self, t: float, derived: Derived, step_tokens: float | None, answer_tokens: float | None, *, healthy: bool
    ) -> None:
        """Let the values derived at `t` count for the time since the last update, if the engine is healthy.

        `answer_tokens` is the p95 of output length over the same window as the latencies.
        """
        elapsed = 0.0 if self._t is None else min(t - self._t, self.thresholds.baseline_min_seconds)
        self._t = t
        if healthy and elapsed > 0:
            explained = {"e2e": self.growth(answer_tokens)}
            for kind in KINDS:
                self._add(kind, at(derived, "latency_seconds", kind, "0.95"), elapsed, explained.get(kind, 1.0))
            self._add(ANSWER_TOKENS, answer_tokens, elapsed)
            self._add(BATCH, at(derived, "effective_batch_size_quantile", "0.95"), elapsed)
            self._add(STEP_TOKENS, step_tokens, elapsed)

    def _add(self, name: str, value: float | None, elapsed: float, explained: float = 1.0) -> None:
        if value is None:
            return
        mean = self._mean.get(name, value)
        if name in KINDS and value >= explained * self.thresholds.latency_inflated_min_factor * mean > 0:
            return
        seen = self._seen_seconds.get(name, 0.0) + elapsed
        self._mean[name] = mean + (value - mean) * elapsed / min(
            seen, self.thresholds.baseline_half_life_seconds / math.log(2)
        )
        self._seen_seconds[name] = seen

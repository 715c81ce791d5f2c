"""The engine's own healthy latencies and batch, so that it is measured against itself and no table of models."""

from __future__ import annotations

import math
from collections.abc import Mapping

from kvpressure.config.thresholds import Thresholds
from kvpressure.model.values import Derived, at
from kvpressure.signals.latency import ANSWER_TOKENS, KINDS, MEAN_GAP

BATCH = "batch"
STEP_TOKENS = "step_tokens"
KV_USAGE = "kv_usage"
NAMES = frozenset({*KINDS, ANSWER_TOKENS, MEAN_GAP, BATCH, KV_USAGE, STEP_TOKENS})

_LATENCIES = frozenset({*KINDS, MEAN_GAP})

Healthy = Mapping[str, tuple[float, float]]
"""By name: the mean, and for how many healthy seconds it was read."""


class Baseline:
    """Mean of healthy p95s: of latencies, the batch and output length; of a step's tokens and of the KV cache in use.

    And of the mean time between two tokens.

    Aged exponentially, and frozen whenever the engine is not healthy, so that an incident never becomes the norm; a
    latency that is inflated against what is known so far is left out, since no verdict may name its incident yet; end
    to end, that is beyond what longer answers explain.
    A value is given once it was read for `baseline_min_seconds` while the engine was healthy.
    """

    def __init__(self) -> None:
        self._mean: dict[str, float] = {}
        self._known_seconds: dict[str, float] = {}
        self._t: float | None = None

    def saved(self) -> Healthy:
        """Return all that is known, to be restored where the state of engines is made anew."""
        return {name: (mean, self._known_seconds[name]) for name, mean in self._mean.items()}

    def restore(self, healthy: Healthy) -> None:
        """Go on from what was known before."""
        self._mean = {name: mean for name, (mean, _) in healthy.items()}
        self._known_seconds = {name: seconds for name, (_, seconds) in healthy.items()}

    def values(self, thresholds: Thresholds) -> Mapping[str, float]:
        """Return the healthy p95 of what there is enough evidence for, by latency kind, `batch` and so on."""
        enough = thresholds.baseline.min_seconds
        return {name: mean for name, mean in self._mean.items() if self._known_seconds[name] >= enough}

    def update(
        self,
        t: float,
        derived: Derived,
        step_tokens: float | None,
        answer_tokens: float | None,
        inter_token_mean: float | None,
        thresholds: Thresholds,
        *,
        healthy: bool,
    ) -> None:
        """Let the values derived at `t` count for the time since the last update, if the engine is healthy.

        `answer_tokens` is the p95 of output length over the same window as the latencies, `inter_token_mean` seconds.
        """
        elapsed = 0.0 if self._t is None else min(t - self._t, thresholds.baseline.min_seconds)
        self._t = t
        if not healthy or elapsed <= 0:
            return
        # How many times as long as healthy ones answers are now, where that is known.
        usual = self._mean.get(ANSWER_TOKENS)
        longer = max(1.0, answer_tokens / usual) if answer_tokens is not None and usual else 1.0
        latencies = {kind: at(derived, "latency_seconds", kind, "0.95") for kind in KINDS}
        values = {
            **latencies,
            MEAN_GAP: inter_token_mean,
            ANSWER_TOKENS: answer_tokens,
            BATCH: at(derived, "effective_batch_size_quantile", "0.95"),
            STEP_TOKENS: step_tokens,
            KV_USAGE: at(derived, "kv_cache_usage_ratio"),
        }
        for name, value in values.items():
            if value is None:
                continue
            mean = self._mean.get(name, value)
            explained = longer if name == "e2e" else 1.0
            if name in _LATENCIES and value >= explained * thresholds.symptoms.latency_inflated_min_factor * mean > 0:
                continue
            seconds = self._known_seconds[name] = self._known_seconds.get(name, 0.0) + elapsed
            lately = min(seconds, thresholds.baseline.half_life_seconds / math.log(2))
            self._mean[name] = mean + (value - mean) * elapsed / lately

"""Prompt tokens that are computed again because the pool did not keep them: hits now against the engine's own past."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field
from typing import Final

from kvpressure.config.thresholds import Thresholds
from kvpressure.model.record import record
from kvpressure.model.values import Derived, at
from kvpressure.signals.lengths import typical_prompt_tokens
from kvpressure.signals.prefix_cache import free_tokens, written_tokens
from kvpressure.signals.windows import EngineWindow

OCTAVES: Final = 24
"""Turnovers of a second up to half a year; whatever lies beyond counts as the last."""


@record
class Hits:
    """The prefix cache over one window: turnover in seconds, hits 0..1 and the mean length of prompts in tokens."""

    turnover_seconds: float
    ratio: float
    prompt_tokens: float


@record
class Eviction:
    """What evictions cost now; None where not known.

    `hit_ratio` is that of the window, `hit_ratio_before` what the same engine had while its cache turned over more
    slowly. `recomputed_ratio` is the share of the computed prompt tokens that were found then, `time_ratio` the same
    as a share of the engine's time. `turnovers` is how often the cache was written over since hits fell: below 1, what
    is missing may have been reset or lost in a restart rather than evicted.

    Where they are known `by_events` (`kv_events`), the ratios are exact but for `error_ratio` of sampling, nothing is
    compared with the past, and `hit_ratio_by_pool` has the hits of larger pools.
    """

    turnover_seconds: float | None = None
    hit_ratio: float | None = None
    hit_ratio_before: float | None = None
    recomputed_ratio: float | None = None
    time_ratio: float | None = None
    turnovers: float = 0.0
    by_events: bool = False
    error_ratio: float = 0.0
    hit_ratio_by_pool: Mapping[float, float] = field(default_factory=dict)


class HitCurve:
    """Hit ratio by cache turnover, as this engine had it: means by octave of turnover, the recent past counting most.

    The curve is what tells eviction from prompts that are new: only where the same engine found more while its cache
    was turned over more slowly, at prompts that were no longer than now, is it the turnover that costs the hits.
    """

    def __init__(self) -> None:
        self._octaves: dict[int, _Mean] = {}
        self._t: float | None = None
        self._turnovers = 0.0
        self._written: float | None = None
        self.before: float | None = None
        """Hits of the engine while its cache turned over more slowly than it did last; None where not known."""
        self.before_factor: float | None = None
        """How many times more slowly that was, at least."""

    def restarted(self) -> None:
        """Another process answers, whose cache is empty: hits fall, and nothing was evicted."""
        self._turnovers = 0.0

    def take(self, t: float, window: EngineWindow, derived: Derived, thresholds: Thresholds) -> Eviction:
        """Return what evictions cost at `t` (unix seconds), and remember the hits of the window."""
        now = _hits(window, derived)
        elapsed = 0.0 if self._t is None else min(t - self._t, thresholds.baseline_min_seconds)
        self._t = t
        turned = self._turned(window)
        if now is None:
            # Nothing is written or asked for: that neither ends nor prolongs what was before.
            return Eviction()
        before = self.before = self._before(now, thresholds)
        recomputed = None if before is None else max(0.0, before - now.ratio) / (1.0 - now.ratio)
        fallen = recomputed is not None and recomputed >= thresholds.eviction_recomputed_min_ratio
        self._turnovers = self._turnovers + turned if fallen else 0.0
        self._remember(now, elapsed, thresholds)
        return Eviction(
            turnover_seconds=now.turnover_seconds,
            hit_ratio=now.ratio,
            hit_ratio_before=before,
            recomputed_ratio=recomputed,
            time_ratio=time_ratio(window, recomputed),
            turnovers=self._turnovers,
        )

    def _turned(self, window: EngineWindow) -> float:
        """Return how often the cache was written over since the last poll: of means over a window none is so exact."""
        written, free, last = written_tokens(window.points[-1].counters), free_tokens(window), self._written
        self._written = written
        return max(0.0, written - last) / free if free and written is not None and last is not None else 0.0

    def _before(self, now: Hits, thresholds: Thresholds) -> float | None:
        """Return the best hits at turnovers that were clearly longer; None where too little was seen of any.

        Of each octave and all beyond it the mean: a quiet hour visits many octaves, each for a short while.
        """
        best: float | None = None
        self.before_factor = None
        seconds = hits = tokens = 0.0
        for octave in sorted(self._octaves, reverse=True):
            if octave <= _octave(now.turnover_seconds):
                break
            mean = self._octaves[octave]
            seconds += mean.seconds
            hits += mean.seconds * mean.ratio
            tokens += mean.seconds * mean.prompt_tokens
            comparable = tokens <= seconds * now.prompt_tokens * _SAME_LENGTH
            enough = seconds >= thresholds.eviction_known_min_seconds and comparable
            if enough and (best is None or hits / seconds > best):
                best, self.before_factor = hits / seconds, 2.0**octave / now.turnover_seconds
        return best

    def _remember(self, now: Hits, elapsed: float, thresholds: Thresholds) -> None:
        if elapsed > 0:
            mean = self._octaves.setdefault(_octave(now.turnover_seconds), _Mean())
            mean.add(now, elapsed, thresholds.eviction_half_life_seconds)


_SAME_LENGTH: Final = 2.0
"""Sessions that grow have longer prompts every minute, and new ones begin again: a mean may halve between the two."""


class _Mean:
    """Time-weighted means of one octave, the last half-life counting half."""

    __slots__ = ("prompt_tokens", "ratio", "seconds")

    def __init__(self) -> None:
        self.ratio = self.prompt_tokens = self.seconds = 0.0

    def add(self, now: Hits, elapsed: float, half_life_seconds: float) -> None:
        self.seconds += elapsed
        share = elapsed / min(self.seconds, half_life_seconds / math.log(2))
        self.ratio += (now.ratio - self.ratio) * share
        self.prompt_tokens += (now.prompt_tokens - self.prompt_tokens) * share


def _hits(window: EngineWindow, derived: Derived) -> Hits | None:
    turnover, ratio = at(derived, "cache_turnover_seconds"), at(derived, "prefix_cache_hit_ratio")
    prompt = typical_prompt_tokens(window)
    if not turnover or ratio is None or ratio >= 1.0 or prompt is None:
        return None
    return Hits(turnover, ratio, prompt)


def time_ratio(window: EngineWindow, recomputed: float | None) -> float | None:
    """Return the share of the engine's time that goes into prompt tokens computed again.

    While on average n requests are between admission and first token (Little's law), prompts are computed for a share
    min(1, n) of the time at most.
    """
    prefilling = window.rate("prefill_seconds")
    return None if prefilling is None or recomputed is None else recomputed * min(1.0, prefilling)


def _octave(seconds: float) -> int:
    return min(OCTAVES, max(0, math.floor(math.log2(max(seconds, 1.0)))))

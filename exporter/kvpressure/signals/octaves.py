"""Hits by how slowly the cache turned over: what an engine, or all replicas of a model, found at each turnover."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from kvpressure.config.thresholds import Thresholds
from kvpressure.model.record import record

OCTAVES: Final = 24
"""Turnovers of a second up to half a year; whatever lies beyond counts as the last."""

SHOWN_OCTAVES: Final = 3
"""So many octaves of the curve are one series, up to `MAX_SHOWN`: the last is of all turnovers beyond."""

MAX_SHOWN: Final = 4

_SAME_LENGTH: Final = 2.0
"""Sessions that grow have longer prompts every minute, and new ones begin again: a mean may halve between the two."""


@record
class Hits:
    """The prefix cache over one window: turnover in seconds, hits 0..1 and the mean length of prompts in tokens.

    `computed` are the prompt tokens computed a second.
    """

    turnover_seconds: float
    ratio: float
    prompt_tokens: float
    computed: float


class Octaves:
    """Hit ratio by cache turnover: means by octave of turnover, the recent past counting most."""

    def __init__(self) -> None:
        self._means: dict[int, _Mean] = {}

    def remember(self, now: Hits, elapsed: float, half_life_seconds: float) -> None:
        """Take in what was so for `elapsed` seconds."""
        if elapsed > 0:
            self._means.setdefault(_octave(now.turnover_seconds), _Mean()).add(now, elapsed, half_life_seconds)

    def beyond(self, now: Hits, thresholds: Thresholds, known: int = 0) -> tuple[float, float] | None:
        """Return the best hits at turnovers that were clearly longer; None where too little is known of any.

        And how many times longer these were, at least.

        Longer than now, and than the octave `known`. Of each octave and all beyond it the mean: a quiet hour visits
        many octaves, each for a short while.
        """
        best: tuple[float, float] | None = None
        seconds = hits = tokens = 0.0
        shortest = max(known, _octave(now.turnover_seconds))
        for octave in sorted(self._means, reverse=True):
            if octave <= shortest:
                break
            mean = self._means[octave]
            seconds += mean.seconds
            hits += mean.seconds * mean.ratio
            tokens += mean.seconds * mean.prompt_tokens
            comparable = tokens <= seconds * now.prompt_tokens * _SAME_LENGTH
            enough = seconds >= thresholds.eviction.known_min_seconds and comparable
            if enough and (best is None or hits / seconds > best[0]):
                best = hits / seconds, 2.0**octave / now.turnover_seconds
        return best

    def longest(self, thresholds: Thresholds) -> int:
        """Return the highest octave from which on enough is known; 0 where there is none."""
        seconds = 0.0
        for octave in sorted(self._means, reverse=True):
            seconds += self._means[octave].seconds
            if seconds >= thresholds.eviction.known_min_seconds:
                return octave
        return 0

    def of_others(self, now: Hits, own: Octaves, thresholds: Thresholds) -> float | None:
        """Return the best hits of the others than `own` at turnovers and prompts no longer than now; None as above."""
        best: float | None = None
        longest = _octave(now.turnover_seconds)
        for octave, all_of_them in self._means.items():
            mine = own._means.get(octave, _NO_TIME)
            seconds = all_of_them.seconds - mine.seconds
            if octave > longest or seconds < thresholds.eviction.known_min_seconds:
                continue
            hits = (all_of_them.ratio * all_of_them.seconds - mine.ratio * mine.seconds) / seconds
            tokens = (all_of_them.prompt_tokens * all_of_them.seconds - mine.prompt_tokens * mine.seconds) / seconds
            if tokens <= now.prompt_tokens * _SAME_LENGTH:
                best = max(best or 0.0, min(1.0, hits))
        return best

    def curve(self, least_seconds: float) -> Mapping[float, float]:
        """Return the hit ratio by the least turnover (seconds) of groups of octaves that were read for so long."""
        together: dict[int, _Mean] = {}
        for octave, mean in self._means.items():
            total = together.setdefault(min(octave // SHOWN_OCTAVES, MAX_SHOWN - 1), _Mean())
            total.seconds += mean.seconds
            total.ratio += (mean.ratio - total.ratio) * mean.seconds / total.seconds
        return {
            2.0 ** (SHOWN_OCTAVES * step): total.ratio
            for step, total in sorted(together.items())
            if total.seconds >= least_seconds
        }


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


_NO_TIME: Final = _Mean()


def _octave(seconds: float) -> int:
    if seconds >= 2.0**OCTAVES:  # infinitely many where next to nothing is written
        return OCTAVES
    return 0 if seconds <= 1.0 else math.floor(math.log2(seconds))

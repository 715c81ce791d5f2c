"""Prompt tokens that are computed again because the pool did not keep them: hits now against those at longer turnovers.

What was found at longer turnovers is known of the engine's own past, else of other replicas of its model.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import field
from typing import Final

from kvpressure.config.thresholds import Thresholds
from kvpressure.model.family import engine_family, json_value
from kvpressure.model.record import changed, record
from kvpressure.model.values import Derived, at, known
from kvpressure.signals.lengths import typical_prompt_tokens
from kvpressure.signals.octaves import Hits, Octaves
from kvpressure.signals.points import Polls
from kvpressure.signals.prefix_cache import (
    computed_prompt_tokens_per_second,
    computed_rate,
    free_tokens,
    hit_ratio,
    missed_tokens,
    written_tokens,
)
from kvpressure.signals.windows import EngineWindow

FAMILIES: Final = (
    json_value(
        "recomputed_prompt_tokens_per_second",
        "Estimated prompt tokens per second that are computed again after eviction, from the hit ratio at longer "
        "cache turnovers; absent if no longer turnover was observed.",
    ),
    engine_family("recomputed_time_ratio", "Share of the engine's time spent on recomputed prompt tokens."),
    engine_family(
        "prefix_cache_turnover_hit_ratio",
        "Prefix hit ratio of this engine while its cache turned over in turnover_seconds or more, up to the next; mean "
        "with a half-life of four hours.",
        "turnover_seconds",
    ),
)


@record
class Eviction:
    """What evictions cost now; None where not known.

    `hit_ratio` is that of the window, `hit_ratio_before` what the same engine had while its cache turned over more
    slowly. `recomputed_ratio` is the share of the computed prompt tokens that were found then, `time_ratio` the same
    as a share of the engine's time. `newest` has both of the window and of the last seconds, where each miss is read;
    `lasting_time_ratio` is what a verdict is made of (`LastingHarm`). `turnovers` is how often the cache was written
    over since hits fell: below 1, what is missing may have been reset or lost in a restart rather than evicted.

    Where they are known `by_events` (`kv_events`), the ratios are exact but for `error_ratio` of sampling, nothing is
    compared with the past, and `hit_ratio_by_pool` has the hits of larger pools.

    `by_siblings` says that it is other replicas of the model that had `hit_ratio_before`, `time_by_rate` that the page
    does not time prompts, so that the time is that at the highest rate at which this engine has computed them.
    `hit_ratio_elsewhere` are the best hits of other replicas whose cache turns over no more slowly than this one.
    """

    turnover_seconds: float | None = None
    hit_ratio: float | None = None
    hit_ratio_before: float | None = None
    recomputed_ratio: float | None = None
    time_ratio: float | None = None
    newest: tuple[tuple[float, float], ...] | None = None
    lasting_time_ratio: float | None = None
    turnovers: float = 0.0
    by_events: bool = False
    error_ratio: float = 0.0
    hit_ratio_by_pool: Mapping[float, float] = field(default_factory=dict)
    by_siblings: bool = False
    time_by_rate: bool = False
    hit_ratio_elsewhere: float | None = None

    @property
    def evidence(self) -> str:
        """What this rests on, as a phrase."""
        if self.by_events:
            return "KV events"
        return "other replicas of the model" if self.by_siblings else "this engine's own past"


NOTHING_EVICTED: Final = Eviction()
"""As far as is known."""


def lasts(eviction: Eviction, thresholds: Thresholds) -> bool:
    """Return whether the cache was written over since hits fell: what is missing was not reset, nor lost."""
    return eviction.turnovers >= thresholds.eviction.turnover_min_count


class LastingHarm:
    """The share of time that evictions took, what did not last left out, and for a while after."""

    def __init__(self) -> None:
        self._newest: deque[tuple[float, float]] = deque()
        self._highest: deque[tuple[float, float]] = deque()
        """Readings that no later one reached."""

    def restarted(self) -> None:
        """Forget what another process computed again: the one that answers now did not."""
        self._newest.clear()
        self._highest.clear()

    def take(self, t: float, eviction: Eviction, thresholds: Thresholds) -> Eviction:
        """Return what was found at `t` (unix seconds) with the highest share that lasted for a few seconds lately.

        What is not known neither ends nor prolongs what was before.
        """
        newest, highest = self._newest, self._highest
        means = eviction.newest or ((eviction.recomputed_ratio, eviction.time_ratio),)
        shares = [
            share if recomputed >= thresholds.eviction.recomputed_min_ratio and lasts(eviction, thresholds) else 0.0
            for recomputed, share in means
            if recomputed is not None and share is not None
        ]
        if shares:
            newest.append((t, max(shares)))
            while newest[0][0] <= t - LASTING_SECONDS:
                newest.popleft()
            least = min(share for _, share in newest) if eviction.newest is None else newest[-1][1]
            while highest and highest[-1][1] <= least:
                highest.pop()
            highest.append((t, least))
        while highest and highest[0][0] < t - thresholds.eviction.stays_seconds:
            highest.popleft()
        return changed(eviction, lasting_time_ratio=highest[0][1]) if highest else eviction


LASTING_SECONDS: Final = 8.0
"""A few long prompts take all of a shorter time in a production chat; a page counts them at their end."""


class HitCurve:
    """What is remembered of one engine's hits, and `siblings`: what all replicas of its model had, this one included.

    Hits at longer turnovers distinguish eviction from new prompts: only where more was found while the cache was
    turned over more slowly, at prompts that were no longer than now, is it the turnover that costs the hits.
    """

    def __init__(self, siblings: Octaves | None = None) -> None:
        self.octaves = Octaves()
        self._siblings = Octaves() if siblings is None else siblings
        self.before: float | None = None
        """Hits of the engine while its cache turned over more slowly than it did last; None where not known."""
        self.before_factor: float | None = None
        """How many times more slowly that was, at least."""
        self._t: float | None = None
        self._turnovers = 0.0
        self._written: float | None = None
        self._highest_rate: float | None = None
        self._computed: float | None = None
        """Prompt tokens computed a second, as of the newest poll."""

    def restarted(self) -> None:
        """Forget a process whose cache is gone: hits fall now, and nothing was evicted."""
        self._turnovers = 0.0

    def take(self, t: float, window: EngineWindow, derived: Derived, thresholds: Thresholds) -> Eviction:
        """Return what evictions cost at `t` (unix seconds), and remember the hits of the window."""
        now = _hits(window, derived)
        self._computed = None if now is None else now.computed
        elapsed = 0.0 if self._t is None else min(t - self._t, thresholds.baseline.min_seconds)
        self._t = t
        turned = self._turned(window)
        if now is None:
            # Nothing is written or looked up: that neither ends nor prolongs what was before.
            return NOTHING_EVICTED
        before, self.before_factor = self.octaves.beyond(now, thresholds) or (None, None)
        self.before = before
        # At turnovers that it has had itself, its own past counts: others may have other prompts.
        elsewhere, _ = self._siblings.beyond(now, thresholds, self.octaves.longest(thresholds)) or (None, None)
        by_siblings = elsewhere is not None and (before is None or elsewhere > before)
        best = elsewhere if by_siblings else before
        recomputed = None if best is None else max(0.0, best - now.ratio) / (1.0 - now.ratio)
        fallen = recomputed is not None and recomputed >= thresholds.eviction.recomputed_min_ratio
        self._turnovers = self._turnovers + turned if fallen else 0.0
        self.octaves.remember(now, elapsed, thresholds.eviction.half_life_seconds)
        self._siblings.remember(now, elapsed, thresholds.eviction.half_life_seconds)
        timed = time_ratio(newest_minute(window), recomputed)
        return Eviction(
            turnover_seconds=now.turnover_seconds,
            hit_ratio=now.ratio,
            hit_ratio_before=best,
            recomputed_ratio=recomputed,
            time_ratio=self._time_by_rate(window, recomputed) if timed is None else timed,
            turnovers=self._turnovers,
            by_siblings=by_siblings,
            time_by_rate=timed is None and recomputed is not None,
            hit_ratio_elsewhere=self._siblings.of_others(now, self.octaves, thresholds),
        )

    def families(self, eviction: Eviction, thresholds: Thresholds) -> Derived:
        """Return the series of what was found; of a fall that may be a reset or a restart as yet, the curve alone."""
        ratio, computed = eviction.recomputed_ratio, self._computed
        if ratio is None or (ratio >= thresholds.eviction.recomputed_min_ratio and not lasts(eviction, thresholds)):
            ratio = None
        curve = self.octaves.curve(thresholds.eviction.known_min_seconds)
        return known(
            {
                "recomputed_prompt_tokens_per_second": None if ratio is None or computed is None else ratio * computed,
                "recomputed_time_ratio": None if ratio is None else eviction.time_ratio,
                "prefix_cache_turnover_hit_ratio": {f"{least:g}": hits for least, hits in curve.items()},
            }
        )

    def _turned(self, window: EngineWindow) -> float:
        """Return how often the cache was written over since the last poll: of means over a window none is so exact."""
        counters = window.points[-1].counters
        written = written_tokens(counters)
        if written is None:
            written = missed_tokens(counters)
        free, last = free_tokens(newest_minute(window), window.cache), self._written
        self._written = written
        return max(0.0, written - last) / free if free and written is not None and last is not None else 0.0

    def _time_by_rate(self, window: EngineWindow, recomputed: float | None) -> float | None:
        """Return the share of time by the highest rate of computed tokens while requests waited; None without one."""
        fast = window.latest(_RATE_SECONDS, 2)
        highest = computed_rate(fast)
        if highest is not None and any(fast.values("waiting")):
            self._highest_rate = max(self._highest_rate or 0.0, highest)
        now = computed_rate(newest_minute(window))
        if now is None or recomputed is None or not self._highest_rate:
            return None
        return recomputed * min(1.0, now / self._highest_rate)


HITS_SECONDS: Final = 60.0
"""Hits and turnover are means of so long, also where the window is longer because polls are rare."""

_RATE_SECONDS: Final = 20.0
"""An engine computes prompts at its highest rate for so long at least, to be taken at it."""


def newest_minute(window: EngineWindow) -> Polls:
    """Return the polls of which hits are the mean."""
    return window.points if window.seconds <= HITS_SECONDS else window.latest(HITS_SECONDS, 3)


def _hits(window: EngineWindow, derived: Derived) -> Hits | None:
    """Return turnover, hits and lengths; by what the page has, where it does not count all that this takes.

    Without generated tokens the turnover is an upper bound. Without lengths of prompts it is what a request holds.
    """
    points, cache = newest_minute(window), window.cache
    prompt = typical_prompt_tokens(window) or at(derived, "kv_tokens_per_request")
    generated, ratio = points.rate("generation_tokens"), hit_ratio(points)
    computed = computed_rate(points) if generated is None else computed_prompt_tokens_per_second(points, cache)
    free, written = free_tokens(points, cache), None if computed is None else computed + (generated or 0.0)
    if cache.prefix_caching is False or not free or not written or ratio is None or ratio >= 1.0 or prompt is None:
        return None
    return Hits(free / written, ratio, prompt, computed or 0.0)


def time_ratio(points: Polls, recomputed: float | None) -> float | None:
    """Return the share of the engine's time that goes into prompt tokens computed again, over the polls.

    While on average n requests are between admission and first token (Little's law), prompts are computed for a share
    min(1, n) of the time at most.
    """
    prefilling = points.rate("prefill_seconds")
    return None if prefilling is None or recomputed is None else recomputed * min(1.0, prefilling)

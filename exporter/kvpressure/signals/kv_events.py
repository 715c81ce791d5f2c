"""Capacity misses, by KV events: prompt tokens computed again, and what larger pools would have found."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Final, NamedTuple

from kvpressure.config.thresholds import Thresholds
from kvpressure.model.family import engine_family
from kvpressure.model.kv_events import BOUNDS, KvEvents
from kvpressure.model.record import changed, record
from kvpressure.model.values import Derived, at, known
from kvpressure.signals.eviction import Eviction, lasts, newest_minute, time_ratio
from kvpressure.signals.points import Point
from kvpressure.signals.prompt_seconds import PromptSeconds
from kvpressure.signals.windows import EngineWindow

POOLS: Final = (1.25, 1.5, 2.0, 3.0, 4.0, 8.0)
"""Pools, in multiples of today's, whose hits are reported."""

NEWEST_SECONDS: Final = (20.0, 12.0, 8.0)
"""Means over so long count beside that of the window; the first counts as it is, shorter ones are less certain."""

LEAST_PROMPTS: Final = 2.5
"""As many prompts of one length must have missed: one long prompt of a chat is no rate, whatever its share."""

LEAST_SHARE: Final = 0.25
"""Of the window that must have been read, for a rate over all of it."""

STEP_BACK_SECONDS: Final = 1.0
"""Between a report and one that an earlier time is in: the clock was set back, and a report is made every second."""

COMPLETE_SECONDS: Final = 120.0
"""Once events were read for so long, what was evicted before them is rarely requested."""

LOST: Final = ("forgotten", "oversized", "skipped", "bad")
"""Counts of batches without which what was evicted, or computed again, is only known in part."""

EVENTS: Final = ("stored", "removed", "cleared", "unknown")
BATCHES: Final = ("batches", "missing", "replayed", "bad", "oversized", "skipped")

FAMILIES: Final = (
    engine_family(
        "kv_capacity_miss_tokens_total", "Tokens computed again because their blocks had been evicted, from KV events."
    ),
    engine_family("kv_evicted_blocks_total", "Cached blocks that were evicted, from KV events."),
    engine_family(
        "prefix_cache_pool_hit_ratio",
        "Prefix hit ratio that a pool of pool_ratio times the size would have had over the window for the same "
        "requests, from KV events.",
        "pool_ratio",
    ),
    engine_family("kv_events_total", "KV events read, by kind.", "kind"),
    engine_family(
        "kv_event_batches_total",
        "Batches of KV events by outcome: read, missing (gaps in sequence numbers), replayed (of the missing), bad, "
        "oversized, or skipped to save CPU.",
        "outcome",
    ),
    engine_family("kv_events_sampled_ratio", "Share of blocks, sampled by hash, for which misses are counted."),
)


@record
class Misses:
    """Capacity misses over the window.

    `recomputed_ratio` is their share of the computed prompt tokens, `time_ratio` their share of the engine's time, None
    until it is known what a prompt token takes; `newest` has both of the window and of the last seconds, None also
    while nothing is computed. Of the first, `error_ratio` (relative, one standard deviation) comes from sampling.
    `hit_ratio_by_pool` has those pools alone of which enough is remembered. `complete` says whether little can be
    missing: a whole pool was evicted since anything was forgotten, or that is long ago.
    """

    recomputed_ratio: float
    time_ratio: float | None = None
    newest: tuple[tuple[float, float], ...] | None = None
    error_ratio: float = 0.0
    complete: bool = False
    hit_ratio_by_pool: Mapping[float, float] = field(default_factory=dict)


class _Taken(NamedTuple):
    """A report; `t` never goes back, and `generated` are the tokens of answers by then."""

    t: float
    report: KvEvents
    generated: float


class EventWindow:
    """What KV events reported over the last `seconds` of one engine."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._reports: deque[_Taken] = deque()
        self._since = 0.0
        """When the ghost list was last forgotten, as the `t` of what was taken."""
        self._prompts = PromptSeconds()

    def restarted(self) -> None:
        """Forget how long steps take: another process answers."""
        self._prompts.restarted()

    def take(self, report: KvEvents | None, newest: Point) -> None:
        """Take the newest report in, which goes with the newest poll; None: events are not read, or not now."""
        reports = self._reports
        if report is None or (reports and report.evicted_blocks < reports[-1].report.evicted_blocks):
            reports.clear()  # read anew: it counts from 0 again
        if report is None:
            return
        last = reports[-1] if reports else None
        forgotten = last is None or report.since != last.report.since
        if forgotten:
            self._prompts.interrupted()
        self._prompts.take(newest, report.t, report.stored_tokens)
        if last is not None and report.t == last.report.t:
            return
        step = 0.0 if last is None else report.t - last.report.t
        t = report.t if last is None else last.t + (step if step > 0 else STEP_BACK_SECONDS)
        if forgotten:
            self._since = t - max(0.0, report.t - report.since)
        reports.append(_Taken(t, report, newest.counters.get("generation_tokens", 0.0)))
        while reports[0].t < t - self._seconds:
            reports.popleft()

    def families(self, misses: Misses | None) -> Derived:
        """Return the series of the events; none where they are not read."""
        if not self._reports:
            return {}
        newest = self._reports[-1].report
        whole = not self._lost
        curve = misses.hit_ratio_by_pool if misses is not None else {}
        return known(
            {
                "kv_capacity_miss_tokens_total": newest.missed_tokens if whole else None,
                "kv_evicted_blocks_total": float(newest.evicted_blocks) if whole else None,
                "prefix_cache_pool_hit_ratio": {f"{pool:g}": ratio for pool, ratio in curve.items()},
                "kv_events_total": {kind: float(newest.counts.get(kind, 0)) for kind in EVENTS},
                "kv_event_batches_total": {
                    "read" if name == "batches" else name: float(newest.counts.get(name, 0)) for name in BATCHES
                },
                "kv_events_sampled_ratio": newest.sampled_ratio,
            }
        )

    @property
    def _lost(self) -> bool:
        """Whether events of the window are missing: figures without them would be too small."""
        first, last = self._reports[0].report.counts, self._reports[-1].report.counts
        return any(last.get(kind, 0) > first.get(kind, 0) for kind in LOST)

    def misses(self, window: EngineWindow, derived: Derived) -> Misses | None:
        """Return the misses; None while nothing is computed, and until the window was read, without a gap."""
        computed, hits = at(derived, "computed_prompt_tokens_per_second"), at(derived, "prefix_cache_hit_ratio")
        if not computed or not self._reports or self._lost:
            return None
        (begin, first, _), (end, last, _) = self._reports[0], self._reports[-1]
        if end - max(begin, self._since) < LEAST_SHARE * self._seconds:
            return None
        tokens, each = computed * (end - begin), self._prompts.seconds
        missed = last.missed_tokens - first.missed_tokens
        blocks, evicted = _pool_blocks(window), last.evicted_blocks - first.evicted_blocks
        reach = last.reach - evicted
        return Misses(
            min(1.0, missed / tokens),
            None if each is None else min(1.0, missed * each / (end - begin)),
            None if each is None else self._newest(each),
            _error_ratio(last.misses - first.misses, last.sampled_ratio),
            (blocks is not None and reach >= blocks) or begin - self._since >= COMPLETE_SECONDS,
            {} if blocks is None or hits is None else _curve(first, last, tokens, hits, blocks, reach),
        )

    def _newest(self, each: float) -> tuple[tuple[float, float], ...] | None:
        """Return both ratios of the window and of the newest seconds, the share of a short time made smaller.

        A mean of a part of the time is off by more, as the root of the parts: by so much it must be higher.
        """
        ratios = [means for seconds in (self._seconds, *NEWEST_SECONDS) if (means := self._since_then(each, seconds))]
        return tuple(ratios) or None

    def _since_then(self, each: float, seconds: float) -> tuple[float, float] | None:
        last = self._reports[-1]
        first = next(taken for taken in self._reports if taken.t > last.t - seconds - 0.5 * STEP_BACK_SECONDS)
        missed = last.report.missed_tokens - first.report.missed_tokens
        computed = last.report.stored_tokens - first.report.stored_tokens - (last.generated - first.generated)
        if last is first or max(missed, computed) <= 0:
            return None
        squares = last.report.missed_squares - first.report.missed_squares
        if missed**2 < LEAST_PROMPTS * squares:
            return 0.0, 0.0
        certain = min(1.0, math.sqrt(seconds / NEWEST_SECONDS[0]))
        return missed / max(missed, computed), certain * min(1.0, missed * each / (last.t - first.t))


def with_events(
    by_past: Eviction, misses: Misses | None, window: EngineWindow, derived: Derived, thresholds: Thresholds
) -> Eviction:
    """Return what evictions cost by KV events, where these know more than the engine's own past (`by_past`)."""
    if misses is None:
        return by_past
    past = by_past.recomputed_ratio if lasts(by_past, thresholds) else None
    if not misses.complete and past is not None and past > misses.recomputed_ratio:
        return by_past  # blocks that were evicted before events were read are not known to have been here
    takes = misses.time_ratio
    return changed(
        by_past,
        turnover_seconds=at(derived, "cache_turnover_seconds"),
        hit_ratio=at(derived, "prefix_cache_hit_ratio"),
        recomputed_ratio=misses.recomputed_ratio,
        time_ratio=time_ratio(newest_minute(window), misses.recomputed_ratio) if takes is None else takes,
        newest=misses.newest,
        # Each of these was evicted: no reset and no restart looks like it.
        turnovers=thresholds.eviction.turnover_min_count,
        by_events=True,
        error_ratio=misses.error_ratio,
        hit_ratio_by_pool=misses.hit_ratio_by_pool,
    )


def kept_by(missed: Sequence[float], blocks: float) -> float:
    """Return the tokens of those missed (as `KvEvents.missed_by_blocks`) that so many more blocks would have kept."""
    index = bisect_left(BOUNDS, blocks)
    if index >= len(BOUNDS):
        return sum(missed)
    below = BOUNDS[index - 1] if index else 0.0
    share: float = (blocks - below) / (BOUNDS[index] - below)
    return sum(missed[:index]) + missed[index] * share


def _curve(
    first: KvEvents, last: KvEvents, tokens: float, hits: float, blocks: float, reach: int
) -> Mapping[float, float]:
    missed = [after - before for before, after in zip(first.missed_by_blocks, last.missed_by_blocks, strict=True)]
    # Of the prompt tokens looked up, 1 - hits were computed; a page may count both in a unit of its own.
    return {
        pool: hits + (1.0 - hits) * min(1.0, kept_by(missed, (pool - 1.0) * blocks) / tokens)
        for pool in POOLS
        if (pool - 1.0) * blocks <= reach
    }


def _pool_blocks(window: EngineWindow) -> float | None:
    """Return the blocks of the pool; None where they are not of one size."""
    cache = window.cache
    if cache.layers_differ or not cache.capacity_tokens or not cache.block_size:
        return None
    return cache.capacity_tokens / cache.block_size


def _error_ratio(misses: int, sampled: float) -> float:
    """Return the relative standard deviation of a count in which each miss counts with the probability `sampled`."""
    return math.sqrt((1.0 - sampled) / misses) if misses > 0 else 0.0

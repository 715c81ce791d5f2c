"""One engine from poll to poll: its window, what is healthy for it, and what these two make."""

from __future__ import annotations

from kvpressure.config.thresholds import Thresholds
from kvpressure.model.catalogue import CATALOGUE
from kvpressure.model.environment import LogReport
from kvpressure.model.kv_events import KvEvents
from kvpressure.model.limits import LEARNED, Limit
from kvpressure.model.record import changed
from kvpressure.model.samples import CacheConfig, EnginePage, EngineSample
from kvpressure.model.values import Derived, at
from kvpressure.model.verdict import Cause
from kvpressure.model.view import Observed
from kvpressure.signals import Reading, compute
from kvpressure.signals.baseline import Baseline
from kvpressure.signals.batch import BATCH_BOUNDS, newest_batch
from kvpressure.signals.context import Context
from kvpressure.signals.cost import LONGEST_INTERVAL_SECONDS, Cost, Recomputed
from kvpressure.signals.estimates import Estimates
from kvpressure.signals.eviction import Eviction, HitCurve, LastingHarm
from kvpressure.signals.kv_events import EventWindow, Misses, with_events
from kvpressure.signals.minutes import LongMeans, PoolMeans
from kvpressure.signals.observed import observed
from kvpressure.signals.octaves import Octaves
from kvpressure.signals.points import Point, Tally
from kvpressure.signals.queue_wait import QueueWait
from kvpressure.signals.reserve import RequestedTokens
from kvpressure.signals.stall import SERVED, ServiceWatch
from kvpressure.signals.windows import EngineWindow


class EngineHistory:
    """What is remembered of one engine. `demand` is what it had to serve when it last answered, None if not known.

    `siblings` are the hits of all replicas of its model, which it adds its own to.
    """

    def __init__(
        self,
        seconds: float,
        long_window_seconds: float,
        longest_interval_seconds: float = LONGEST_INTERVAL_SECONDS,
        siblings: Octaves | None = None,
    ) -> None:
        self._seconds, self._long_window_seconds = seconds, long_window_seconds
        self.baseline = Baseline()
        self.cost = Cost(longest_interval_seconds)
        self._estimates = Estimates(longest_interval_seconds)
        self._learned_cap: float | None = None
        """A cap on the batch that was not declared. It shows only while the batch is full, and stays afterwards."""
        self._hit_curve = HitCurve(siblings)
        self._harm = LastingHarm()
        self._events = EventWindow(seconds)
        self._misses: Misses | None = None
        self._pool_means = PoolMeans()
        self._means = LongMeans()
        self._service = ServiceWatch()
        self._stall = SERVED
        self.demand: float | None = None
        self._page_cache = CacheConfig()
        self._batches = Tally(BATCH_BOUNDS)
        self.begin_anew()

    def begin_anew(self) -> None:
        """Go on with an empty window: what was before a gap says nothing of now, but for what is healthy."""
        self._window = EngineWindow(self._seconds, self._long_window_seconds)
        # Where the clock was set back, what these remember would lie in the future.
        self._queue_wait = QueueWait()
        self._requested_tokens = RequestedTokens()
        self._harm.restarted()
        self._service.begin_anew()

    @property
    def t(self) -> float:
        """When it was last read; -inf before the first poll."""
        return self._window.t

    @property
    def newest(self) -> Point:
        """The newest poll; raises IndexError before the first."""
        return self._window.points[-1]

    def take(
        self,
        page: EnginePage,
        sample: EngineSample,
        log: LogReport | None,
        *,
        restarted: bool,
        watermark_ratio: float | None = None,
        events: KvEvents | None = None,
    ) -> bool:
        """Take one poll in; False for one that is not newer than the last, which changes nothing.

        `log`, the declared `watermark_ratio` and `events` add what the page does not say of the cache; `restarted`:
        another process answers than before.
        """
        window, page_cache = self._window, sample.cache or self._page_cache
        cache = _with_learned(page_cache, log)
        if cache.watermark_ratio != watermark_ratio:
            cache = changed(cache, watermark_ratio=watermark_ratio)
        if not window.add(page.t, sample, restarted=restarted, started=page.started, multiprocess=page.multiprocess):
            return False
        self._events.take(events, self.newest)
        if restarted:
            self._events.restarted()
            self.cost.restarted()
            self._learned_cap = None
            self._requested_tokens = RequestedTokens()
            self._hit_curve.restarted()
            self._harm.restarted()
            self._means.forget()
            self._service = ServiceWatch()
        self._page_cache, window.cache = page_cache, cache
        self._means.take(window)
        self._stall = self._service.take(self.newest, window)
        if (pair := newest_batch(window)) is not None:
            self._batches.observe(*pair)
        return True

    def reading(self, context: Context) -> Reading:
        """Return what the window shows now, measured against what was healthy for this engine before this poll."""
        thresholds = context.thresholds
        if self._learned_cap is not None and (self._window.highest_running() or 0.0) > self._learned_cap:
            self._learned_cap = None  # a larger batch has run since: it was no cap
        cap = context.max_num_seqs or self._learned_cap
        requested = self._requested_tokens.take(self._window, thresholds)
        healthy = self.baseline.values(thresholds)
        context = changed(context, baseline=healthy, max_num_seqs=cap, requested_tokens=requested)
        # Named here and not kept: a bound method on its own object is a circle, which waits for the collector.
        remembered = (self._batch_sizes, self._queue, self._evictions, self._estimated)
        return compute(self._window, context, remembered, self._evicted, self._stall)

    def _batch_sizes(self, _: Reading) -> Derived:
        """Return the batches of all steps since it is watched."""
        return {"effective_batch_size": self._batches.histogram()}

    def _queue(self, reading: Reading) -> Derived:
        """Return how long those who wait now will wait."""
        waiting, context = reading.newest.queue.waiting, reading.context
        return self._queue_wait.families(reading.window, waiting, reading.derived, context.baseline, context.thresholds)

    def _evicted(self, window: EngineWindow, derived: Derived, thresholds: Thresholds) -> Eviction:
        """Return what is computed again, by what hits were before and by KV events."""
        by_past = self._hit_curve.take(window.t, window, derived, thresholds)
        self._misses = self._events.misses(window, derived)
        lately = with_events(by_past, self._misses, window, derived, thresholds)
        eviction = self._harm.take(window.t, lately, thresholds)
        self._pool_means.take(window.t, eviction.hit_ratio_by_pool)
        return eviction

    def _evictions(self, reading: Reading) -> Derived:
        """Return the series of what is computed again."""
        families = self._hit_curve.families(reading.newest.eviction, reading.context.thresholds)
        return families | self._events.families(self._misses)

    def _estimated(self, reading: Reading) -> Derived:
        """Return what was lost so far, of what no page counts."""
        return self._estimates.take(reading.window.t, reading.derived)

    def observed(self, thresholds: Thresholds, model_name: str = "", gpus: tuple[str, ...] = ()) -> Observed:
        """Return what a prediction of consequences starts from: `gpus` are the names of those of the engine alone."""
        curve = self._hit_curve
        return observed(
            self._window,
            self.baseline.values(thresholds),
            model_name=model_name,
            gpus=gpus,
            minutes=self._means.minutes(),
            hit_ratio_before=curve.before,
            turnover_before_factor=curve.before_factor,
            hits_by_pool=self._pool_means.hits(),
        )

    def learn(
        self,
        reading: Reading,
        cause: Cause,
        thresholds: Thresholds,
        unconstrained: float | None = None,
        cap: Limit | None = None,
    ) -> None:
        """Remember the newest reading and what was judged of it, as a healthy state if it was one.

        `unconstrained` is that of `Cost.update`, `cap` is `max_num_seqs` as far as the verdict before knew it.
        """
        if cap is not None and cap.source == LEARNED:
            self._learned_cap = cap.value
        newest = reading.newest
        self.cost.update(self._window.points, cause, thresholds, unconstrained, _recomputed(reading, thresholds))
        self.demand = newest.queue.demand
        self.baseline.update(
            reading.window.t,
            reading.derived,
            newest.throughput.step_tokens,
            newest.answers.tokens,
            newest.throughput.inter_token_mean_seconds,
            thresholds,
            healthy=CATALOGUE[cause].serves_all,
        )


def _recomputed(reading: Reading, thresholds: Thresholds) -> Recomputed | None:
    """Return what is computed again where contexts are evicted; None elsewhere, where it is noise."""
    eviction, tokens = reading.newest.eviction, at(reading.derived, "recomputed_prompt_tokens_per_second")
    if tokens is None or eviction.recomputed_ratio is None or eviction.time_ratio is None:
        return None
    enough = eviction.recomputed_ratio >= thresholds.eviction.recomputed_min_ratio
    return Recomputed(tokens, eviction.time_ratio) if enough else None


def _with_learned(cache: CacheConfig, log: LogReport | None) -> CacheConfig:
    """Return what the page does not say of the cache, from the start-up lines of the engine's log."""
    if log is None:
        return cache
    capacity = cache.capacity_tokens or int(log.kv_capacity_tokens or 0) or None
    return changed(cache, capacity_tokens=capacity, bytes_per_token=cache.bytes_per_token or log.kv_bytes_per_token)

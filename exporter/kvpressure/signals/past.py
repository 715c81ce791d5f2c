"""One engine from poll to poll: its window, what is healthy for it, and the features that these two make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace

from kvpressure.config.thresholds import Thresholds
from kvpressure.model.catalogue import CATALOGUE
from kvpressure.model.environment import LogReport
from kvpressure.model.incident import Incident
from kvpressure.model.limits import Limit
from kvpressure.model.observed import Observed
from kvpressure.model.record import record
from kvpressure.model.samples import CacheConfig, EnginePage, EngineSample
from kvpressure.model.values import Derived
from kvpressure.model.verdict import Cause
from kvpressure.signals import compute
from kvpressure.signals.baseline import Baseline
from kvpressure.signals.batch import BATCH_BOUNDS, newest_batch
from kvpressure.signals.context import Context
from kvpressure.signals.cost import LONGEST_INTERVAL_SECONDS, Cost
from kvpressure.signals.eviction import HitCurve
from kvpressure.signals.gpu import memory_rise_ratio
from kvpressure.signals.learned_cap import LearnedCap
from kvpressure.signals.minutes import LongMeans
from kvpressure.signals.observed import observed
from kvpressure.signals.summaries import Tally
from kvpressure.signals.verdict_window import VerdictWindow
from kvpressure.signals.windows import EngineWindow


@record
class Features:
    """Everything computed from one engine's pages up to the poll at `t` (unix seconds).

    `derived` is what is exported, `verdict_window` what a verdict counts, `baseline` what was known to be healthy
    before this poll, `memory_rise_ratio` the share of device memory gained over the window, None where not known,
    `signals` the names of what its pages tell at all.
    """

    t: float
    cache: CacheConfig
    derived: Derived
    verdict_window: VerdictWindow
    baseline: Mapping[str, float]
    memory_rise_ratio: float | None
    signals: frozenset[str]


class EngineHistory:
    """What is remembered of one engine. `demand` is what it had to serve when it last answered, None if not known."""

    def __init__(
        self,
        window: EngineWindow,
        thresholds: Thresholds,
        longest_interval_seconds: float = LONGEST_INTERVAL_SECONDS,
    ) -> None:
        self.window = window
        self._thresholds = thresholds
        self.baseline = Baseline(thresholds)
        self._cost = Cost(longest_interval_seconds)
        self._cap = LearnedCap()
        self._hit_curve = HitCurve()
        self._means = LongMeans()
        self.demand: float | None = None
        self._page_cache = CacheConfig()
        self._batches = Tally(BATCH_BOUNDS)

    def set_thresholds(self, thresholds: Thresholds) -> None:
        """Measure by other thresholds from now on; what is known of healthy states stays."""
        self._thresholds = thresholds
        self.baseline.thresholds = thresholds

    def begin_anew(self, window: EngineWindow) -> None:
        """Go on with an empty window: what was before a gap tells nothing of now, but for what is healthy."""
        self.window = window

    def take(
        self,
        page: EnginePage,
        sample: EngineSample,
        log: LogReport | None,
        *,
        restarted: bool,
        watermark_ratio: float | None = None,
    ) -> bool:
        """Take one poll in; False for one that is not newer than the last, which changes nothing.

        `log` and `watermark_ratio`, which was declared, tell of the cache what the page does not, `restarted` that
        another process answers than before.
        """
        window = self.window
        if not window.add(page.t, sample, restarted=restarted, started=page.started, multiprocess=page.multiprocess):
            return False
        if restarted:
            self._cost.restarted()
            self._cap.forget()
            self._hit_curve.restarted()
            self._means.forget()
        self._page_cache = sample.cache or self._page_cache
        window.cache = replace(_with_learned(self._page_cache, log), watermark_ratio=watermark_ratio)
        self._means.take(window)
        pair = newest_batch(window)
        if pair is not None:
            self._batches.observe(*pair)
        return True

    def features(self, context: Context) -> Features:
        """Return what the window shows now, measured against what is healthy for this engine."""
        cap = context.max_num_seqs or self._cap.at(self.window.highest_running())
        context = replace(context, baseline=self.baseline.values(), max_num_seqs=cap)
        derived, verdict_window = compute(self.window, context)
        derived["effective_batch_size"] = self._batches.histogram()
        eviction = self._hit_curve.take(self.window.t, self.window, derived, self._thresholds)
        return Features(
            t=self.window.t,
            cache=self.window.cache,
            derived=derived,
            verdict_window=replace(verdict_window, eviction=eviction),
            baseline=context.baseline,
            memory_rise_ratio=memory_rise_ratio(context),
            signals=signals_of(self.window),
        )

    def incident(self) -> Incident | None:
        """Return the trouble that the engine is in, or was in last; None without any."""
        return self._cost.incident(self._thresholds)

    def lost_families(self) -> Derived:
        """Return the series of what was lost so far."""
        return self._cost.families()

    def observed(self) -> Observed:
        """Return what a prediction of consequences starts from."""
        curve = self._hit_curve
        return replace(
            observed(self.window, self.baseline.values()),
            minutes=self._means.minutes(),
            hit_ratio_before=curve.before,
            turnover_before_factor=curve.before_factor,
        )

    def learn(self, features: Features, cause: Cause, with_room: float | None = None, cap: Limit | None = None) -> None:
        """Remember the newest features and what was judged of them, as a healthy state if they were one.

        `with_room` is that of `Cost.update`, `cap` is `max_num_seqs` as far as the verdict before told it.
        """
        self._cap.learn(cap)
        newest, healthy = features.verdict_window, CATALOGUE[cause].serves_all
        self._cost.update(self.window.points, cause, self._thresholds, with_room)
        self.demand = newest.queue.demand
        step_tokens, answer_tokens = newest.throughput.step_tokens, newest.answers.tokens
        self.baseline.update(features.t, features.derived, step_tokens, answer_tokens, healthy=healthy)


def _with_learned(cache: CacheConfig, log: LogReport | None) -> CacheConfig:
    """Return what the page does not say of the cache, from the start-up lines of the engine's log."""
    if log is None:
        return cache
    capacity, each = log.kv_capacity_tokens, log.kv_bytes_per_token
    return replace(
        cache,
        capacity_tokens=cache.capacity_tokens or (int(capacity) if capacity else None),
        bytes_per_token=cache.bytes_per_token or each,
    )


_CACHE = tuple(field.name for field in fields(CacheConfig))


def signals_of(window: EngineWindow) -> frozenset[str]:
    """Names of the signals that some poll of the window had, and of the cache's fields that are known."""
    return window.signals().union(name for name in _CACHE if getattr(window.cache, name) is not None)

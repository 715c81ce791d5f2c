"""Pages and GPU reports in, views out: windows, derived values and baselines of everything alive.

Reads no clock and does no I/O, so that `run`, `replay` and the tests put their samples through the same code.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from kvpressure.advice import Limits, Place, known_limits
from kvpressure.advice.case import Case
from kvpressure.advice.limit_families import limit_families
from kvpressure.config.thresholds import Thresholds
from kvpressure.diagnosis.diagnose import Diagnostician
from kvpressure.diagnosis.inputs import Inputs
from kvpressure.features import Context, Derived, compute, derive_gpu
from kvpressure.features.baseline import BATCH, STEP_TOKENS, Baseline
from kvpressure.features.batch import BATCH_BOUNDS, interval_batch
from kvpressure.features.evidence import Restarts, outside_evidence
from kvpressure.features.gpu import gpus_of, memory_rise_ratio
from kvpressure.features.signals import signals_of
from kvpressure.features.windows import EngineWindow, GpuWindow, Tally, stepped_back
from kvpressure.model.samples import CacheConfig, EnginePage, EngineSample, GpuReport
from kvpressure.model.target import TargetIdentity, container_of, cut
from kvpressure.model.verdict import Cause, Diagnosis
from kvpressure.model.view import EngineKey, EngineView, GpuView, Silence
from kvpressure.model.workload import DeclaredLimit, Workload
from kvpressure.runtimes.registry import named

MAX_RESTARTS = 16
RESTART_SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """Lengths of the windows and the caps.

    A GPU's reading older than `staleness_seconds` is not shown, nor is an engine's older than `engine_stale_seconds`,
    which leaves room for a page that takes a poll's whole deadline.
    """

    window_seconds: float = 60.0
    shape_window_seconds: float = 600.0
    staleness_seconds: float = 10.0
    engine_stale_seconds: float = 13.0
    max_engines: int = 512
    max_label_length: int = 128


@dataclass(slots=True)
class _Engine:
    window: EngineWindow
    baseline: Baseline
    diagnostician: Diagnostician = field(default_factory=Diagnostician)
    page_cache: CacheConfig = field(default_factory=CacheConfig)
    batches: Tally = field(default_factory=lambda: Tally(BATCH_BOUNDS))
    view: EngineView | None = None
    runtime: str = ""
    demand: float | None = None


class Pipeline:
    """State of every engine and GPU seen lately."""

    def __init__(self, settings: PipelineSettings, thresholds: Thresholds) -> None:
        self.settings = settings
        self.thresholds = thresholds
        self.caps_reached: Counter[str] = Counter()
        self.rejected: dict[str, Counter[str]] = {}
        self._engines: dict[EngineKey, _Engine] = {}
        self._last_page: dict[str, float] = {}
        self._started: dict[str, float] = {}
        self._restarts: dict[str, deque[float]] = {}
        self._gpus: dict[str, GpuWindow] = {}
        self._around = Workload()
        self._container_restarts = Restarts()

    def set_workload(self, now: float, around: Workload) -> None:
        """Judge with what pods, logs and host tell from now on."""
        self._around = around
        self._container_restarts.update(now, around.containers)

    def set_thresholds(self, thresholds: Thresholds) -> None:
        """Judge by other thresholds from now on; what is known of healthy states stays."""
        self.thresholds = thresholds
        for engine in self._engines.values():
            engine.baseline.limits = thresholds

    def on_page(self, target: TargetIdentity, page: EnginePage) -> list[EngineView]:
        """Take one page in; gives the new view of every engine on it."""
        restarted = self._restarted(target.name, page.started)
        self._last_page[target.name] = page.t
        views = []
        for sample in page.engines:
            engine = self._engine(target.name, sample, page.t)
            engine.runtime = page.runtime
            if engine.window.add(page.t, sample, restarted=restarted, multiprocess=page.multiprocess):
                if sample.cache is not None:
                    engine.page_cache = sample.cache
                engine.window.cache = self._with_learned(target, engine.page_cache)
                engine.view = self._view(target, sample, engine, alone=len(page.engines) == 1)
                views.append(engine.view)
        return views

    def on_gpus(self, source: str, report: GpuReport) -> None:
        """Take one vendor's report in."""
        if report.rejected:
            self.rejected.setdefault(source, Counter()).update(report.rejected)
        for sample in report.gpus:
            self._gpus.setdefault(sample.uuid, GpuWindow(self.settings.window_seconds)).add(sample)

    def declared(self, target: TargetIdentity) -> Sequence[DeclaredLimit] | None:
        """The limits an engine was started with, from discovery or its process; None when nobody could read them."""
        return self._around.limits.get(container_of(target)) if target.limits is None else target.limits

    def expire(self, now: float) -> None:
        """Forget engines that their target's pages no longer show, and GPUs no longer read.

        What is known of an engine whose target does not answer stays until the target is gone (`forget`).
        """
        bound = max(self.settings.window_seconds, self.settings.staleness_seconds)
        self._engines = {
            key: engine
            for key, engine in self._engines.items()
            if self._last_page[key.target] - engine.window.t <= bound
        }
        self._gpus = {uuid: gpu for uuid, gpu in self._gpus.items() if gpu.last.t >= now - bound}

    def forget(self, targets: Iterable[str]) -> None:
        """Drop everything of targets that are gone."""
        gone = set(targets)
        self._engines = {key: engine for key, engine in self._engines.items() if key.target not in gone}
        for kept in (self._last_page, self._started, self._restarts):
            for target in gone & kept.keys():
                del kept[target]

    def engine_views(self, now: float) -> tuple[EngineView, ...]:
        """Views of the engines whose newest page is not stale."""
        views = (engine.view for engine in self._engines.values() if engine.view is not None)
        return tuple(view for view in views if not self._is_stale(view, now))

    def silent_views(self, now: float) -> tuple[EngineView, ...]:
        """The last views of the engines whose target does not answer any more."""
        return tuple(
            replace(engine.view, silence=Silence(now - engine.view.t, engine.demand))
            for key, engine in self._engines.items()
            if engine.view is not None
            and self._is_stale(engine.view, now)
            and engine.view.t >= self._last_page[key.target]
        )

    def _is_stale(self, view: EngineView, now: float) -> bool:
        return abs(now - view.t) > self.settings.engine_stale_seconds

    def gpu_views(self, now: float) -> tuple[GpuView, ...]:
        """Views of the GPUs whose newest reading is not stale."""
        return tuple(GpuView(gpu.last, derive_gpu(gpu)) for gpu in self._fresh_gpus(now))

    def _gpus_of(self, target: TargetIdentity, now: float, *, alone: bool) -> list[GpuWindow]:
        """The GPUs an operator named, or those the container holds alone, if its one engine is `alone` on the page."""
        wanted = target.gpus
        held = self._around.devices.get(container_of(target))
        if wanted is None and alone and held is not None and held.exclusive:
            wanted = held.gpus
        return gpus_of(wanted or (), self._fresh_gpus(now))

    def _with_learned(self, target: TargetIdentity, cache: CacheConfig) -> CacheConfig:
        """What the page does not say of the cache, from the start-up lines of the engine's log."""
        log = self._around.logs.get(container_of(target))
        if log is None:
            return cache
        capacity, each = log.kv_capacity_tokens, log.kv_bytes_per_token
        return replace(
            cache,
            capacity_tokens=cache.capacity_tokens or (int(capacity) if capacity else None),
            bytes_per_token=cache.bytes_per_token or each,
        )

    def _limits(self, target: TargetIdentity, diagnosis: Diagnosis, derived: Derived, cache: CacheConfig) -> Limits:
        declared = {limit.name: limit.value for limit in self.declared(target) or ()}
        return known_limits(diagnosis, derived, cache, declared)

    def _fresh_gpus(self, now: float) -> list[GpuWindow]:
        bound = self.settings.staleness_seconds
        return [gpu for gpu in self._gpus.values() if abs(now - gpu.last.t) <= bound]

    def _restarted(self, target: str, started: float | None) -> bool:
        if started is None:
            return False
        before = self._started.get(target)
        self._started[target] = started
        restarted = before is not None and abs(started - before) > 0.5
        self._restarts.setdefault(target, deque(maxlen=MAX_RESTARTS))
        if restarted:
            self._restarts[target].append(started)
        return restarted

    def _starts_of(self, target: str, now: float) -> int | None:
        """Restarts seen lately; None for a server whose page does not tell when it started."""
        seen = self._restarts.get(target)
        return None if seen is None else sum(now - t <= RESTART_SECONDS for t in seen)

    def _engine(self, target: str, sample: EngineSample, t: float) -> _Engine:
        key = EngineKey(target, sample.model_name, sample.engine)
        engine = self._engines.get(key)
        if engine is None:
            if len(self._engines) >= self.settings.max_engines:
                self._make_room(target)
            engine = self._engines[key] = _Engine(self._window(), Baseline(self.thresholds))
        elif stepped_back(engine.window.t, t) or t - engine.window.t > self.settings.window_seconds:
            # Verdicts are not made from what was before a gap; what is healthy for this engine is still known.
            engine.window, engine.diagnostician = self._window(), Diagnostician()
        return engine

    def _window(self) -> EngineWindow:
        return EngineWindow(self.settings.window_seconds, self.settings.shape_window_seconds)

    def _make_room(self, target: str) -> None:
        """Drop the longest unread engine of the target that has most: one target must not starve the others."""
        self.caps_reached["engines"] += 1
        counts = Counter(key.target for key in self._engines)
        counts[target] += 1
        greedy = max(counts, key=counts.__getitem__)
        mine = [(engine.window.t, key) for key, engine in self._engines.items() if key.target == greedy]
        del self._engines[min(mine)[1]]

    def _view(self, target: TargetIdentity, sample: EngineSample, engine: _Engine, *, alone: bool) -> EngineView:
        window, key = engine.window, container_of(target)
        context = Context(
            self.thresholds,
            tuple(self._gpus_of(target, window.t, alone=alone)),
            target.kv_bytes_per_token,
            engine.baseline.values(),
        )
        derived, counted = compute(window, context)
        inputs = Inputs(
            derived=derived,
            thresholds=self.thresholds,
            recent=counted,
            batch_baseline=context.baseline.get(BATCH),
            step_tokens_baseline=context.baseline.get(STEP_TOKENS),
            memory_rise_ratio=memory_rise_ratio(context),
            starts=self._starts_of(target.name, window.t),
            extra=outside_evidence(window.t, key, self._around, self._container_restarts.lately(key), self.thresholds),
            declared={limit.name: limit.value for limit in self.declared(target) or ()},
            signals=signals_of(window),
            features=named(engine.runtime).evidence,
        )
        diagnosis = engine.diagnostician.diagnose(window.t, inputs)
        healthy = diagnosis.cause is Cause.HEALTHY
        engine.baseline.update(window.t, derived, counted.step_tokens, counted.answer_tokens, healthy=healthy)
        if len(window.points) >= 2:
            pair = interval_batch(window.points[-2], window.points[-1], multiprocess=window.multiprocess)
            if pair is not None:
                engine.batches.observe(*pair)
        derived["effective_batch_size"] = engine.batches.histogram()
        engine.demand = counted.demand
        limits = self._limits(target, diagnosis, derived, window.cache)
        derived |= limit_families(Case(diagnosis, derived, limits, Place(), self.thresholds), self.declared(target))
        whole = (target.name, sample.model_name, sample.engine)
        return EngineView(
            key=EngineKey(*whole),
            shown=EngineKey(*(cut(label, self.settings.max_label_length) for label in whole)),
            t=window.t,
            derived=derived,
            diagnosis=diagnosis,
            # Never cut: series of containers carry the same two, and the API server bounds them.
            namespace=target.namespace,
            pod=target.pod,
            limits=limits,
            runtime=engine.runtime,
        )

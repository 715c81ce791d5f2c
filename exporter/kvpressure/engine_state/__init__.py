"""Pages and GPU reports in, views out: the registry of everything alive, with its caps and its expiry.

Reads no clock and does no I/O, so that `run`, `replay` and the tests put their samples through the same code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from kvpressure.config.target import Target, container_of
from kvpressure.config.thresholds import Thresholds
from kvpressure.engine_state.state import EngineEnvironment, EngineState, PipelineSettings
from kvpressure.model.allowance import NewLabelSets
from kvpressure.model.catalogue import CATALOGUE
from kvpressure.model.environment import DeclaredLimit, Environment
from kvpressure.model.samples import EnginePage, EngineSample, GpuReport, GpuSample
from kvpressure.model.view import EngineKey, EngineView, GpuView, Unreachable
from kvpressure.signals import derive_gpu
from kvpressure.signals.baseline import Healthy
from kvpressure.signals.context import GpuWindow
from kvpressure.signals.evidence import Restarts, Starts
from kvpressure.signals.gpu import gpu_label_set, gpus_of
from kvpressure.signals.octaves import Octaves

__all__ = ["Pipeline", "PipelineSettings"]

STUCK_NAMED_WITHIN_SECONDS: Final = 5.0
"""Polls are a second apart; an engine that is not named stuck by then is not."""

RESTORED_SECONDS: Final = 86_400.0
"""How long restored baselines wait for their engine: one that is away for a day comes back as another."""


class Pipeline:
    """State of every engine and GPU that was read within the staleness limit."""

    def __init__(self, settings: PipelineSettings, thresholds: Thresholds) -> None:
        self.settings = settings
        self.thresholds = thresholds
        self.caps_reached: Counter[str] = Counter()
        self.rejected: dict[str, Counter[str]] = {}
        self._engines: dict[EngineKey, EngineState] = {}
        self._restored: dict[EngineKey, Healthy] = {}
        self._restored_t: float | None = None
        self._hits: dict[tuple[str, str], Octaves] = {}
        """Prefix hits by turnover of the replicas of a model, by its name and their namespace."""
        self._last_page: dict[str, float] = {}
        self._new_label_sets = NewLabelSets()
        self._starts = Starts()
        self._gpus: dict[str, GpuWindow] = {}
        self._gpu_views: dict[str, GpuView] = {}
        self._environment = Environment()
        self._container_restarts = Restarts()

    def set_environment(self, now: float, environment: Environment) -> None:
        """Judge with what pods, logs and host report from now on."""
        self._environment = self._with_reports(now, environment) if environment.reports else environment
        self._container_restarts.update(now, environment.containers)

    def _with_reports(self, now: float, environment: Environment) -> Environment:
        """Return the environment with reports of several engines shared by those of them that answer."""
        stale_seconds = self.settings.engine_stale_seconds
        answer = {target for target, t in self._last_page.items() if abs(now - t) <= stale_seconds}
        reports = tuple(
            report if report.engine_count else replace(report, engines=report.engines & answer)
            for report in environment.reports
        )
        return replace(environment, reports=reports)

    def set_thresholds(self, thresholds: Thresholds) -> None:
        """Judge by other thresholds from now on; what is known of healthy states stays."""
        self.thresholds = thresholds

    def baselines(self) -> Mapping[EngineKey, Healthy]:
        """Return what is healthy for each engine, as far as anything is known of it; restored ones may be away yet."""
        saved = {key: engine.past.baseline.saved() for key, engine in self._engines.items()}
        return {**self._restored, **{key: healthy for key, healthy in saved.items() if healthy}}

    def restore_baselines(self, baselines: Mapping[EngineKey, Healthy]) -> None:
        """Start from these once their engines are read; of an engine that is known already nothing changes."""
        self._restored, self._restored_t = dict(baselines), None

    def on_page(self, target: Target, page: EnginePage) -> list[EngineView]:
        """Take one page in; return the new view of every engine on it."""
        restarted = self._starts.restarted(target.name, page.started)
        self._last_page[target.name] = page.t
        environment = EngineEnvironment(
            target,
            self._environment,
            self.declared(target),
            self._gpus_of(target, page.t, alone=len(page.engines) == 1),
            restarted=restarted,
            starts=self._starts.lately(target.name, page.t),
            container_restarts=self._container_restarts.lately(container_of(target)),
        )
        views = [
            engine.step(page, sample, environment, self.settings, self.thresholds)
            for sample in page.engines
            if (engine := self._engine(target, sample)) is not None
        ]
        return [view for view in views if view is not None]

    @property
    def problems(self) -> tuple[str, ...]:
        """Return sentences on what is held back of targets and GPU sources."""
        return self._new_label_sets.problems()

    def on_gpus(self, source: str, report: GpuReport) -> None:
        """Take one vendor's report in."""
        if report.rejected:
            self.rejected.setdefault(source, Counter()).update(report.rejected)
        for sample in report.gpus:
            if not self._may_export(source, sample):
                continue
            window = self._gpus.setdefault(sample.uuid, GpuWindow(self.settings.window_seconds))
            window.add(sample)
            self._gpu_views[sample.uuid] = GpuView(window.last, derive_gpu(window))

    def _may_export(self, source: str, gpu: GpuSample) -> bool:
        before = self._gpus.get(gpu.uuid)
        same = before is not None and gpu_label_set(before.last) == gpu_label_set(gpu)
        return same or self._is_new_allowed(source, gpu.t)

    def _is_new_allowed(self, owner: str, t: float) -> bool:
        allowed = self._new_label_sets.allows(owner, t)
        if not allowed:
            self.caps_reached["new_label_sets"] += 1
        return allowed

    def declared(self, target: Target) -> Sequence[DeclaredLimit] | None:
        """Return the limits an engine was started with, from discovery or its process; None when they were not read."""
        return self._environment.limits.get(container_of(target)) if target.limits is None else target.limits

    def expire(self, now: float) -> None:
        """Forget engines that their target's pages no longer show, and GPUs no longer read.

        What is known of an engine whose target does not answer stays until the target is gone (`forget`).
        """
        bound = max(self.settings.window_seconds, self.settings.staleness_seconds)
        self._new_label_sets.expire(now)
        self._restored_t = now if self._restored_t is None else self._restored_t
        if now - self._restored_t > RESTORED_SECONDS:
            self._restored = {}
        self._engines = {
            key: engine for key, engine in self._engines.items() if self._last_page[key.target] - engine.past.t <= bound
        }
        self._gpus = {uuid: gpu for uuid, gpu in self._gpus.items() if gpu.last.t >= now - bound}
        self._gpu_views = {uuid: view for uuid, view in self._gpu_views.items() if uuid in self._gpus}

    def forget(self, targets: Iterable[str]) -> None:
        """Drop everything of targets that are gone."""
        gone = set(targets)
        self._engines = {key: engine for key, engine in self._engines.items() if key.target not in gone}
        self._last_page = {target: t for target, t in self._last_page.items() if target not in gone}
        self._starts.forget(gone)

    def engine_views(self, now: float) -> tuple[EngineView, ...]:
        """Return the views of the engines whose newest page is not stale."""
        views = (engine.view for engine in self._engines.values() if engine.view is not None)
        return tuple(view for view in views if not self._is_stale(view, now))

    def not_yet_stuck(self, now: float) -> bool:
        """Whether an engine that answers makes no progress, for too short a time to distinguish it from a pause."""
        thresholds = self.thresholds
        longest = (
            thresholds.progress.stuck_frozen_min_seconds
            + thresholds.verdict.cause_hold_seconds
            + STUCK_NAMED_WITHIN_SECONDS
        )
        return any(
            view.diagnosis is not None
            and not CATALOGUE[view.diagnosis.cause].stands_still
            and (since := self._engines[view.key].stands_since) is not None
            and view.t - since < longest
            for view in self.engine_views(now)
        )

    def silent_views(self, now: float) -> tuple[EngineView, ...]:
        """Return the last views of the engines whose target does not answer any more."""
        return tuple(
            replace(engine.view, silence=Unreachable(now - engine.view.t, engine.past.demand))
            for key, engine in self._engines.items()
            if engine.view is not None
            and self._is_stale(engine.view, now)
            and engine.view.t >= self._last_page[key.target]
        )

    def _is_stale(self, view: EngineView, now: float) -> bool:
        return abs(now - view.t) > self.settings.engine_stale_seconds

    def gpu_views(self, now: float) -> tuple[GpuView, ...]:
        """Return the views of the GPUs whose newest reading is not stale."""
        stale_seconds = self.settings.staleness_seconds
        return tuple([view for view in self._gpu_views.values() if abs(now - view.sample.t) <= stale_seconds])

    def _gpus_of(self, target: Target, now: float, *, alone: bool) -> list[GpuWindow]:
        """Return the GPUs an operator named, or those a container holds alone whose engine is `alone` on the page."""
        names = target.gpus
        allocated = self._environment.devices.get(container_of(target))
        if names is None and alone and allocated is not None and allocated.exclusive:
            names = allocated.gpus
        if not names:
            return []
        stale_seconds = self.settings.staleness_seconds
        return gpus_of(names, [gpu for gpu in self._gpus.values() if abs(now - gpu.last.t) <= stale_seconds])

    def _engine(self, target: Target, sample: EngineSample) -> EngineState | None:
        """Return the state of an engine, None for one whose series are held back."""
        key = EngineKey(target.name, sample.model_name, sample.engine)
        engine = self._engines.get(key)
        if engine is None:
            if not self._is_new_allowed(f"target {target.name}", self._last_page[target.name]):
                return None
            if len(self._engines) >= self.settings.max_engines:
                self._make_room(target.name)
            engine = self._engines[key] = EngineState(self.settings, self._hits_of(sample.model_name, target.namespace))
            if (healthy := self._restored.pop(key, None)) is not None:
                engine.past.baseline.restore(healthy)
        return engine

    def _hits_of(self, model: str, namespace: str) -> Octaves:
        """Return what replicas of the model have found, those that are gone included; of as many models as engines."""
        octaves = self._hits.pop((model, namespace), None) or Octaves()
        while len(self._hits) >= self.settings.max_engines:
            del self._hits[next(iter(self._hits))]
        self._hits[model, namespace] = octaves
        return octaves

    def _make_room(self, target: str) -> None:
        """Drop the longest unread engine of the target that has most: one target must not starve the others."""
        self.caps_reached["engines"] += 1
        counts = Counter(key.target for key in self._engines)
        counts[target] += 1
        greedy = max(counts, key=counts.__getitem__)
        mine = [(engine.past.t, key) for key, engine in self._engines.items() if key.target == greedy]
        del self._engines[min(mine)[1]]

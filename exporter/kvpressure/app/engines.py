"""Pages and GPU reports in, views out: windows, derived values and baselines of everything alive.

Reads no clock and does no I/O, so that `run`, `replay` and the tests put their samples through the same code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from kvpressure.advice.limit_families import limits_in_force
from kvpressure.config.thresholds import Thresholds
from kvpressure.diagnosis.diagnose import Diagnostician
from kvpressure.diagnosis.inputs import Inputs
from kvpressure.features import Context, derive_gpu
from kvpressure.features.baseline import BATCH, STEP_TOKENS
from kvpressure.features.canary import CANARY_UNANSWERED, CanaryTimes, CanaryWanted, CanaryWatch
from kvpressure.features.cost import LONGEST_INTERVAL_SECONDS
from kvpressure.features.evidence import OutsideEvidence, Restarts, outside_evidence
from kvpressure.features.gpu import gpus_of, whole_gpus
from kvpressure.features.gpu_window import GpuWindow
from kvpressure.features.past import EngineHistory, Features
from kvpressure.features.starts import Starts
from kvpressure.features.windows import EngineWindow, stepped_back
from kvpressure.model.canary import CanaryReport
from kvpressure.model.catalogue import CATALOGUE, those
from kvpressure.model.incident import LOSING, Incident, Price
from kvpressure.model.limits import Limits
from kvpressure.model.samples import EnginePage, EngineSample, GpuReport
from kvpressure.model.target import TargetIdentity, container_of, cut
from kvpressure.model.verdict import Diagnosis, Stage
from kvpressure.model.view import EngineKey, EngineView, GpuView, Silence
from kvpressure.model.workload import DeclaredLimit, Workload
from kvpressure.runtimes.registry import named
from kvpressure.whatif.unconstrained import UnconstrainedThroughput


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """Lengths of the windows and the caps.

    A GPU's reading older than `staleness_seconds` is not shown, nor is an engine's older than `engine_stale_seconds`,
    which leaves room for a page that takes a poll's whole deadline. With `always_observed`, views tell what predictions
    start from of engines too for which there is nothing to change. What is lost is not counted over a time between two
    polls that is longer than `longest_interval_seconds`: nobody knows what it was like.
    """

    window_seconds: float = 60.0
    shape_window_seconds: float = 600.0
    staleness_seconds: float = 10.0
    engine_stale_seconds: float = 13.0
    max_engines: int = 512
    max_label_length: int = 128
    always_observed: bool = False
    price: Price | None = None
    longest_interval_seconds: float = LONGEST_INTERVAL_SECONDS


_PREDICTABLE: Final = those(lambda row: row.predictable)
STUCK_TOLD_WITHIN_SECONDS: Final = 5.0
"""Polls are a second apart; whatever is not told by then is not what it was waited for."""


@dataclass(slots=True)
class _Engine:
    past: EngineHistory
    canary: CanaryWatch = field(default_factory=CanaryWatch)
    diagnostician: Diagnostician = field(default_factory=Diagnostician)
    view: EngineView | None = None
    room: UnconstrainedThroughput = field(default_factory=UnconstrainedThroughput)


class Pipeline:
    """State of every engine and GPU seen lately."""

    def __init__(self, settings: PipelineSettings, thresholds: Thresholds) -> None:
        self.settings = settings
        self.thresholds = thresholds
        self.caps_reached: Counter[str] = Counter()
        self.rejected: dict[str, Counter[str]] = {}
        self._engines: dict[EngineKey, _Engine] = {}
        self._last_page: dict[str, float] = {}
        self._starts = Starts()
        self._gpus: dict[str, GpuWindow] = {}
        self._gpu_views: dict[str, GpuView] = {}
        self._around = Workload()
        self._container_restarts = Restarts()
        self._canary_times: CanaryTimes | None = None

    def set_workload(self, now: float, around: Workload) -> None:
        """Judge with what pods, logs and host tell from now on."""
        self._around = around
        self._container_restarts.update(now, around.containers)

    def set_thresholds(self, thresholds: Thresholds) -> None:
        """Judge by other thresholds from now on; what is known of healthy states stays."""
        self.thresholds = thresholds
        for engine in self._engines.values():
            engine.past.baseline.limits = thresholds

    @property
    def known(self) -> Container[EngineKey]:
        """Every engine of which anything is known."""
        return self._engines.keys()

    def set_canary(self, times: CanaryTimes | None) -> None:
        """Judge with the answers to requests of one token from now on; None: none are sent."""
        self._canary_times = times
        if times is None:
            for engine in self._engines.values():
                engine.canary = CanaryWatch()

    def canaries_wanted(self, now: float) -> Sequence[CanaryWanted]:
        """The engines to ask for one token now; none that does not answer for its page."""
        if (times := self._canary_times) is None:
            return ()
        ranks = Counter((key.target, key.model_name) for key in self._engines)
        return [
            CanaryWanted(key, engine.view.runtime, several=ranks[key.target, key.model_name] > 1)
            for key, engine in self._engines.items()
            if engine.view is not None and not self._is_stale(engine.view, now) and engine.canary.wanted(now, times)
        ]

    def canary_sent(self, key: EngineKey, t: float) -> None:
        """An engine is being asked for one token since `t`."""
        if (engine := self._engines.get(key)) is not None:
            engine.canary.sent(t)

    def on_canary(self, key: EngineKey, report: CanaryReport) -> None:
        """Take in what came of that; the next poll is judged with it."""
        if (engine := self._engines.get(key)) is not None and self._canary_times is not None:
            engine.canary.take(report)

    def on_page(self, target: TargetIdentity, page: EnginePage) -> list[EngineView]:
        """Take one page in; gives the new view of every engine on it."""
        restarted = self._starts.restarted(target.name, page.started)
        self._last_page[target.name] = page.t
        log, kept_free = self._around.logs.get(container_of(target)), self._declared(target).get("kv_watermark_ratio")
        views = []
        for sample in page.engines:
            engine = self._engine(target.name, sample, page.t)
            if restarted:
                engine.canary.begin_anew(page.t, started=True)
            if engine.past.take(page, sample, log, restarted=restarted, watermark_ratio=kept_free):
                engine.view = self._view(target, page, sample, engine)
                views.append(engine.view)
        return views

    def on_gpus(self, source: str, report: GpuReport) -> None:
        """Take one vendor's report in."""
        if report.rejected:
            self.rejected.setdefault(source, Counter()).update(report.rejected)
        for sample in report.gpus:
            window = self._gpus.setdefault(sample.uuid, GpuWindow(self.settings.window_seconds))
            window.add(sample)
            self._gpu_views[sample.uuid] = GpuView(window.last, derive_gpu(window))

    def declared(self, target: TargetIdentity) -> Sequence[DeclaredLimit] | None:
        """The limits an engine was started with, from discovery or its process; None when nobody could read them."""
        return self._around.limits.get(container_of(target)) if target.limits is None else target.limits

    def _declared(self, target: TargetIdentity) -> dict[str, float]:
        return {limit.name: limit.value for limit in self.declared(target) or ()}

    def expire(self, now: float) -> None:
        """Forget engines that their target's pages no longer show, and GPUs no longer read.

        What is known of an engine whose target does not answer stays until the target is gone (`forget`).
        """
        bound = max(self.settings.window_seconds, self.settings.staleness_seconds)
        self._engines = {
            key: engine
            for key, engine in self._engines.items()
            if self._last_page[key.target] - engine.past.window.t <= bound
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
        """Views of the engines whose newest page is not stale."""
        views = (engine.view for engine in self._engines.values() if engine.view is not None)
        return tuple(view for view in views if not self._is_stale(view, now))

    def not_yet_stuck(self, now: float) -> bool:
        """Whether an engine that answers has got nowhere so far, and for too short a time to be told from a pause."""
        limits = self.thresholds
        longest = limits.stuck_frozen_min_seconds + limits.cause_hold_seconds + STUCK_TOLD_WITHIN_SECONDS
        return any(
            view.diagnosis is not None
            and not CATALOGUE[view.diagnosis.cause].stands_still
            and (since := self._engines[view.key].diagnostician.stands_since) is not None
            and view.t - since < longest
            for view in self.engine_views(now)
        )

    def silent_views(self, now: float) -> tuple[EngineView, ...]:
        """The last views of the engines whose target does not answer any more."""
        return tuple(
            replace(engine.view, silence=Silence(now - engine.view.t, engine.past.demand))
            for key, engine in self._engines.items()
            if engine.view is not None
            and self._is_stale(engine.view, now)
            and engine.view.t >= self._last_page[key.target]
        )

    def _is_stale(self, view: EngineView, now: float) -> bool:
        return abs(now - view.t) > self.settings.engine_stale_seconds

    def gpu_views(self, now: float) -> tuple[GpuView, ...]:
        """Views of the GPUs whose newest reading is not stale."""
        return tuple(view for view in self._gpu_views.values() if self._is_fresh(view.sample.t, now))

    def _gpus_of(self, target: TargetIdentity, now: float, *, alone: bool) -> list[GpuWindow]:
        """The GPUs an operator named, or those the container holds alone, if its one engine is `alone` on the page."""
        wanted = target.gpus
        held = self._around.devices.get(container_of(target))
        if wanted is None and alone and held is not None and held.exclusive:
            wanted = held.gpus
        return gpus_of(wanted or (), self._fresh_gpus(now))

    def _fresh_gpus(self, now: float) -> list[GpuWindow]:
        return [gpu for gpu in self._gpus.values() if self._is_fresh(gpu.last.t, now)]

    def _is_fresh(self, t: float, now: float) -> bool:
        """Whether a reading of a GPU may still be shown."""
        return abs(now - t) <= self.settings.staleness_seconds

    def _engine(self, target: str, sample: EngineSample, t: float) -> _Engine:
        key = EngineKey(target, sample.model_name, sample.engine)
        engine = self._engines.get(key)
        if engine is None:
            if len(self._engines) >= self.settings.max_engines:
                self._make_room(target)
            past = EngineHistory(self._window(), self.thresholds, self.settings.longest_interval_seconds)
            engine = self._engines[key] = _Engine(past)
        elif stepped_back(engine.past.window.t, t) or t - engine.past.window.t > self.settings.window_seconds:
            # Verdicts are not made from what was before a gap; what is healthy for this engine is still known.
            engine.past.window, engine.diagnostician = self._window(), Diagnostician()
            engine.canary.begin_anew(t)
        return engine

    def _window(self) -> EngineWindow:
        return EngineWindow(self.settings.window_seconds, self.settings.shape_window_seconds)

    def _make_room(self, target: str) -> None:
        """Drop the longest unread engine of the target that has most: one target must not starve the others."""
        self.caps_reached["engines"] += 1
        counts = Counter(key.target for key in self._engines)
        counts[target] += 1
        greedy = max(counts, key=counts.__getitem__)
        mine = [(engine.past.window.t, key) for key, engine in self._engines.items() if key.target == greedy]
        del self._engines[min(mine)[1]]

    def _view(self, target: TargetIdentity, page: EnginePage, sample: EngineSample, engine: _Engine) -> EngineView:
        """What one more poll shows, the verdict on it, what is learned from that, and all of it as others see it."""
        features = engine.past.features(self._context(target, page))
        features, answers = self._with_answers(engine, features)
        diagnosis = engine.diagnostician.diagnose(features.t, self._inputs(target, page, features, answers))
        limits = engine.view.limits if engine.view else Limits()
        engine.past.learn(features, diagnosis.cause, engine.room.rate, limits.max_num_seqs)
        features = replace(features, derived=features.derived | engine.past.cost.families())
        incident = self._incident(target, page, engine)
        losing = diagnosis.cause in LOSING
        wanted = self.settings.always_observed or _predictable(diagnosis)
        observed = engine.past.observed() if wanted or losing else None
        engine.room.update(features.t, observed if losing else None, limits)
        shown = self._shown(target, page, sample, features, diagnosis)
        return replace(shown, observed=observed if wanted else None, incident=incident)

    def _incident(self, target: TargetIdentity, page: EnginePage, engine: _Engine) -> Incident | None:
        incident, price = engine.past.cost.incident(self.thresholds), self.settings.price
        if incident is None or price is None:
            return incident
        gpus = self._gpus_of(target, page.t, alone=len(page.engines) == 1)
        return replace(incident, price=price, gpus=whole_gpus(gpus))

    def _with_answers(self, engine: _Engine, features: Features) -> tuple[Features, Mapping[str, OutsideEvidence]]:
        """The features without the load that requests of ours were, and what these were answered; see `set_canary`."""
        if (times := self._canary_times) is None:
            return features, {}
        canary, recent = engine.canary, features.recent
        canary.follow(engine.past.window.points[-1], recent)
        if canary.only_asked(features.t, recent.seconds):
            recent = replace(recent, busy=False, demand=None if recent.demand is None else 0.0)
        features = replace(features, recent=recent, derived=features.derived | canary.families())
        return features, {CANARY_UNANSWERED: canary.evidence(features.t, times)}

    def _context(self, target: TargetIdentity, page: EnginePage) -> Context:
        gpus = self._gpus_of(target, page.t, alone=len(page.engines) == 1)
        declared = self._declared(target)
        return Context(
            self.thresholds,
            tuple(gpus),
            target.kv_bytes_per_token,
            max_num_seqs=declared.get("max_num_seqs"),
            max_num_batched_tokens=declared.get("max_num_batched_tokens"),
        )

    def _inputs(
        self, target: TargetIdentity, page: EnginePage, features: Features, answers: Mapping[str, OutsideEvidence]
    ) -> Inputs:
        key = container_of(target)
        restarts = self._container_restarts.lately(key)
        return Inputs(
            derived=features.derived,
            thresholds=self.thresholds,
            recent=features.recent,
            batch_baseline=features.baseline.get(BATCH),
            step_tokens_baseline=features.baseline.get(STEP_TOKENS),
            memory_rise_ratio=features.memory_rise_ratio,
            starts=self._starts.lately(target.name, features.t),
            external_evidence={**outside_evidence(features.t, key, self._around, restarts, self.thresholds), **answers},
            declared=self._declared(target),
            signals=features.signals,
            optional_signals=named(page.runtime).evidence,
        )

    def _shown(
        self,
        target: TargetIdentity,
        page: EnginePage,
        sample: EngineSample,
        features: Features,
        diagnosis: Diagnosis,
    ) -> EngineView:
        declared = self.declared(target)
        limits, families = limits_in_force(diagnosis, features.derived, features.cache, declared, self.thresholds)
        whole = (target.name, sample.model_name, sample.engine)
        return EngineView(
            key=EngineKey(*whole),
            shown=EngineKey(*(cut(label, self.settings.max_label_length) for label in whole)),
            t=features.t,
            derived=features.derived | families,
            diagnosis=diagnosis,
            # Never cut: series of containers carry the same two, and the API server bounds them.
            namespace=target.namespace,
            pod=target.pod,
            limits=limits,
            runtime=page.runtime,
        )


def _predictable(diagnosis: Diagnosis) -> bool:
    """Whether advice on it changes what the engine's scheduler does."""
    return diagnosis.cause in _PREDICTABLE or diagnosis.stage is Stage.BUILDING

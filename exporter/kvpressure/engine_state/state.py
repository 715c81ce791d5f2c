"""What is remembered of one engine from poll to poll, and how one more poll becomes a view. PURE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kvpressure.advice.limits import limits_in_force
from kvpressure.config.target import Target, container_of
from kvpressure.config.thresholds import Thresholds
from kvpressure.diagnosis.diagnose import Diagnostician
from kvpressure.diagnosis.facts import Inputs
from kvpressure.model.catalogue import those
from kvpressure.model.environment import DeclaredLimit, Environment, role_of_code
from kvpressure.model.incident import Incident, Price
from kvpressure.model.kv_events import of_rank
from kvpressure.model.limits import Limits
from kvpressure.model.record import changed, record
from kvpressure.model.samples import EnginePage, EngineSample
from kvpressure.model.verdict import Diagnosis, Stage
from kvpressure.model.view import LOSING, EngineKey, EngineView, Observed
from kvpressure.printable import distinct
from kvpressure.runtimes.registry import named
from kvpressure.signals import Context, Reading
from kvpressure.signals.context import GpuWindow
from kvpressure.signals.cost import LONGEST_INTERVAL_SECONDS
from kvpressure.signals.evidence import outside_evidence
from kvpressure.signals.gpu import memory_rise_ratio, whole_gpus
from kvpressure.signals.octaves import Octaves
from kvpressure.signals.optional import with_reports
from kvpressure.signals.past import EngineHistory
from kvpressure.signals.points import stepped_back
from kvpressure.simulation.unconstrained import KNEE_EVERY_SECONDS, UnconstrainedThroughput

_PREDICTABLE: Final = those(lambda row: row.predictable)


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """Lengths of the windows and the caps.

    A GPU's reading older than `staleness_seconds` is not shown, nor is an engine's older than `engine_stale_seconds`,
    which leaves room for a page that takes a poll's whole deadline. With `always_observed`, views have the start of
    predictions also for engines for which there is nothing to change. What is lost is not counted over a time between
    two polls that is longer than `longest_interval_seconds`: it is not known what happened in it.
    """

    window_seconds: float = 60.0
    long_window_seconds: float = 600.0
    staleness_seconds: float = 10.0
    engine_stale_seconds: float = 13.0
    max_engines: int = 512
    max_label_length: int = 128
    always_observed: bool = False
    price: Price | None = None
    longest_interval_seconds: float = LONGEST_INTERVAL_SECONDS


@record
class EngineEnvironment:
    """What is known around the engines of one page when it is judged.

    `common` is what surrounds all engines. `declared` are the limits they were started with, None when these could not
    be read; `gpus` serve them and no other. `restarted`: another process answers than before; `starts` and
    `container_restarts` are how often that happened lately (None: not known).
    """

    target: Target
    common: Environment
    declared: Sequence[DeclaredLimit] | None = None
    gpus: Sequence[GpuWindow] = ()
    restarted: bool = False
    starts: int | None = None
    container_restarts: int = 0

    @property
    def declared_values(self) -> dict[str, float]:
        """The declared limits by name."""
        return {limit.name: limit.value for limit in self.declared or ()}


@record
class _Poll:
    """One poll of one engine, and what it is judged with."""

    page: EnginePage
    sample: EngineSample
    environment: EngineEnvironment
    settings: PipelineSettings
    thresholds: Thresholds

    @property
    def is_alone(self) -> bool:
        """Whether its page has no other engine."""
        return len(self.page.engines) == 1


class EngineState:
    """One engine. `view` is its newest; `siblings` are the prefix hits of all replicas of its model."""

    def __init__(self, settings: PipelineSettings, siblings: Octaves | None = None) -> None:
        self.past = EngineHistory(
            settings.window_seconds, settings.long_window_seconds, settings.longest_interval_seconds, siblings
        )
        self.view: EngineView | None = None
        self._diagnostician = Diagnostician()
        self._room = UnconstrainedThroughput()

    @property
    def stands_since(self) -> float | None:
        """Since when it makes no progress, None where it does."""
        return self._diagnostician.stands_since

    def step(
        self,
        page: EnginePage,
        sample: EngineSample,
        environment: EngineEnvironment,
        settings: PipelineSettings,
        thresholds: Thresholds,
    ) -> EngineView | None:
        """Take one poll in; return the view after it, None for a poll that is not newer than the last.

        It is judged by `thresholds`, whatever polls before were judged by; what is known of healthy states stays.
        """
        poll = _Poll(page, sample, environment, settings, thresholds)
        reading = self._gather(poll)
        if reading is None:
            return None
        diagnosis = self._diagnostician.diagnose(page.t, _inputs(poll, reading))
        incident = self._learn(poll, reading, diagnosis)
        observed = self._observe(poll, page.t, diagnosis)
        self.view = self._view(poll, reading, diagnosis, observed, incident)
        return self.view

    def _gather(self, poll: _Poll) -> Reading | None:
        """Take the poll in, with what others report of it; return what it shows, None where it is not newer."""
        past, environment = self.past, poll.environment
        page = poll.page
        if self.view is not None and (stepped_back(past.t, page.t) or page.t - past.t > poll.settings.window_seconds):
            # Verdicts are not made from what was before a gap; what is healthy for this engine is still known.
            past.begin_anew()
            self._diagnostician = Diagnostician()
        common, target = environment.common, environment.target
        sample, watermark_ratio = poll.sample, environment.declared_values.get("kv_watermark_ratio")
        if common.reports:
            sample, kept_ratio = with_reports(sample, target, len(page.engines), common.reports)
            watermark_ratio = max(watermark_ratio or 0.0, kept_ratio or 0.0) or None
        is_newer = past.take(
            page,
            sample,
            common.logs.get(container_of(target)),
            restarted=environment.restarted,
            watermark_ratio=watermark_ratio,
            events=of_rank(common.kv_events.get(target.name, ()), sample.engine, alone=poll.is_alone),
        )
        return past.reading(_context(environment, sample, poll.thresholds)) if is_newer else None

    def _learn(self, poll: _Poll, reading: Reading, diagnosis: Diagnosis) -> Incident | None:
        """Remember what was judged, and add what trouble cost to the reading; return the present or last incident."""
        past, settings = self.past, poll.settings
        past.learn(reading, diagnosis.cause, poll.thresholds, self._room.rate, self._limits.max_num_seqs)
        reading.derived.update(past.cost.families())
        incident = past.cost.incident(poll.thresholds)
        if incident is not None and settings.price is not None:
            incident = changed(incident, price=settings.price, gpus=whole_gpus(poll.environment.gpus))
        return incident

    @property
    def _limits(self) -> Limits:
        """The limits as far as the verdict before knew them."""
        return self.view.limits if self.view else Limits()

    def _observe(self, poll: _Poll, t: float, diagnosis: Diagnosis) -> Observed | None:
        """Return what a prediction starts from, None where there is nothing to change; learn what more room brings."""
        losing, knee_is_due = diagnosis.cause in LOSING, abs(t - self._room.knee_t) >= KNEE_EVERY_SECONDS
        # Advice on some verdicts changes what the engine's scheduler does, which can be predicted.
        predictable = diagnosis.cause in _PREDICTABLE or diagnosis.stage is Stage.BUILDING
        shown = poll.settings.always_observed or predictable
        observed = self._observed(poll) if shown or losing or knee_is_due else None
        self._room.update(t, observed if losing else None, self._limits)
        if observed is not None and knee_is_due:
            self._room.update_knee(t, observed, self._limits)
        return observed if shown else None

    def _observed(self, poll: _Poll) -> Observed:
        gpus = poll.environment.gpus
        names = tuple(gpu.last.name for gpu in gpus) if poll.is_alone and whole_gpus(gpus) else ()
        return self.past.observed(poll.thresholds, poll.sample.model_name, names)

    def _view(
        self, poll: _Poll, reading: Reading, diagnosis: Diagnosis, observed: Observed | None, incident: Incident | None
    ) -> EngineView:
        """Return everything known of the engine now."""
        environment, before = poll.environment, self.view
        target, cache = environment.target, reading.window.cache
        derived = reading.derived | self._room.families()
        limits, families = limits_in_force(diagnosis, derived, cache, environment.declared, poll.thresholds)
        key = EngineKey(target.name, poll.sample.model_name, poll.sample.engine)
        return EngineView(
            key=key,
            shown=before.shown if before is not None and before.key == key else _shown(key, poll.settings),
            t=poll.page.t,
            derived=derived | families,
            diagnosis=diagnosis,
            # Never cut: series of containers carry the same two, and the API server bounds them.
            namespace=target.namespace,
            pod=target.pod,
            limits=limits,
            runtime=poll.page.runtime,
            observed=observed,
            incident=incident,
        )


def _shown(key: EngineKey, settings: PipelineSettings) -> EngineKey:
    """Return who it is as labels, which may be cut."""
    return EngineKey(*(distinct(label, settings.max_label_length) for label in key))


def _context(environment: EngineEnvironment, sample: EngineSample, thresholds: Thresholds) -> Context:
    declared = environment.declared_values
    return Context(
        thresholds,
        tuple(environment.gpus),
        environment.target.kv_bytes_per_token,
        max_num_seqs=declared.get("max_num_seqs"),
        max_num_batched_tokens=declared.get("max_num_batched_tokens"),
        role=environment.target.role or role_of_code(declared.get("kv_role")) or sample.role,
    )


def _inputs(poll: _Poll, reading: Reading) -> Inputs:
    environment, thresholds = poll.environment, poll.thresholds
    key, restarts = container_of(environment.target), environment.container_restarts
    runtime = named(poll.page.runtime)
    return Inputs(
        derived=reading.derived,
        thresholds=thresholds,
        window=reading.newest,
        baseline=reading.context.baseline,
        memory_rise_ratio=memory_rise_ratio(reading.context),
        starts=environment.starts,
        external_evidence=outside_evidence(poll.page.t, key, environment.common, restarts, thresholds),
        declared=environment.declared_values,
        own_names=runtime.advice.words.limits,
        signals=reading.signals,
        optional_signals=runtime.evidence,
    )

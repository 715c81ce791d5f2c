"""Verdicts of one engine, oldest first, to its incidents."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from kvpressure.advice.desired import ReplicaReading, desired_replicas
from kvpressure.config.thresholds import Thresholds
from kvpressure.model.catalogue import NOT_KNOWN
from kvpressure.model.incident import LOSING, Incident
from kvpressure.model.samples import EngineSample
from kvpressure.model.values import at
from kvpressure.model.verdict import Cause, Stage
from kvpressure.model.view import EngineView
from kvpressure.tools.incidents.found import MAX_PICTURE_POINTS, PICTURE_SERIES, Fired, PastIncident, Picture
from kvpressure.tools.incidents.judged_alerts import Alarm, ours

BEFORE_SECONDS: Final = 900.0
"""Of a picture, before the incident and after it."""

TOO_FEW: Final = "too_few_polls"
"""At the begin of what is read: nothing is wrong with the engine's series."""

_STAGES: Final = (Stage.NONE, Stage.BUILDING, Stage.COLLAPSED, Stage.FAILING)
_PEAKS: Final = {"running": "requests_running_max", "waiting": "requests_waiting_max"}


@dataclass(slots=True)
class _Point:
    t: float
    cause: Cause
    values: tuple[float | None, ...]


@dataclass(slots=True)
class _Open:
    """An incident that may go on."""

    began: float
    last: float
    causes: dict[tuple[Cause, str], float] = field(default_factory=dict)
    """Seconds of each."""
    confidence: float = 0.0
    judged: int = 0
    best: dict[tuple[Cause, str], EngineView] = field(default_factory=dict)
    cost: Incident | None = None
    stage: Stage = Stage.NONE
    peak: dict[str, float] = field(default_factory=dict)
    points: list[_Point] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Ended:
    """An incident, and the view that its advice is made from."""

    incident: PastIncident
    view: EngineView


class Collector:
    """Of one engine. Trouble that comes back within `incident_gap_seconds` is the same incident."""

    def __init__(self, labels: Mapping[str, str], limits: Thresholds, step: float) -> None:
        self._labels, self._limits, self._step = labels, limits, step
        self._open: _Open | None = None
        self._before: deque[_Point] = deque(maxlen=max(4, int(BEFORE_SECONDS / step)))
        self._alarms = [Alarm(rule) for rule in ours(limits)]
        self._t = float("-inf")
        self._tokens: tuple[float, float] | None = None
        self.unjudged: dict[str, float] = {}
        """Seconds in which requests waited and the verdict was `unknown`, by its detail."""

    def add(self, view: EngineView, sample: EngineSample) -> Iterator[Ended]:
        """Take the next verdict and what it was made from in; gives the incident that is over by then, if one is."""
        diagnosis, t = view.diagnosis, view.t
        if diagnosis is None:
            return
        gap, known = self._limits.incident_gap_seconds, self._t
        self._t = t
        for alarm in self._alarms:
            alarm.add(t, diagnosis)
        if diagnosis.cause is NOT_KNOWN and diagnosis.detail != TOO_FEW and sample.gauges.get("waiting", 0.0) >= 1:
            self.unjudged[diagnosis.detail] = self.unjudged.get(diagnosis.detail, 0.0) + self._step
        point = _Point(t, diagnosis.cause, self._values(t, sample))
        if self._open is not None and t - self._open.last > gap:
            yield self._ended(self._open, ended=True)
        if diagnosis.cause in LOSING:
            if self._open is None:
                self._open = _Open(max(known, t - self._step), t)
                self._open.points = list(self._before)
            self._trouble(self._open, view, point)
        elif self._open is not None:
            self._keep(self._open, point)
        self._before.append(point)

    def finish(self, *, ended: bool) -> Iterator[Ended]:
        """Nothing more comes: `ended` says whether because the engine was gone, not because the time was."""
        if self._open is not None:
            yield self._ended(self._open, ended=ended or self._t - self._open.last > self._limits.incident_gap_seconds)

    def silent_since(self, newest: float) -> bool:
        """Whether the target answered at `newest` and showed this engine no more."""
        return newest - self._t > self._limits.incident_gap_seconds

    def fired(self) -> list[Fired]:
        """Ours, of the whole time."""
        return sorted((one for alarm in self._alarms for one in alarm.shown()), key=lambda one: one.at)

    def _trouble(self, open_: _Open, view: EngineView, point: _Point) -> None:
        diagnosis = view.diagnosis
        if diagnosis is None:
            return
        seconds = min(self._step * 2, point.t - open_.last) or self._step
        key = (diagnosis.cause, diagnosis.detail)
        open_.causes[key] = open_.causes.get(key, 0.0) + seconds
        open_.confidence += diagnosis.confidence
        open_.judged += 1
        best = open_.best.get(key)
        # The newest of the surest: by then windows hold nothing but trouble.
        if best is None or best.diagnosis is None or _sureness(view) >= _sureness(best):
            open_.best[key] = view
        if view.incident is not None:
            open_.cost = view.incident
        open_.stage = max(open_.stage, diagnosis.stage, key=_STAGES.index)
        for name, path in _PEAKS.items():
            if (value := at(view.derived, path)) is not None:
                open_.peak[name] = max(open_.peak.get(name, 0.0), value)
        self._note_peak(open_, "kv_usage_ratio", point.values[2])
        self._note_peak(open_, "preemptions_per_second", at(view.derived, "preemptions_per_second"))
        self._note_peak(open_, "desired_replicas", self._desired(view))
        open_.last = point.t
        self._keep(open_, point)

    def _desired(self, view: EngineView) -> float | None:
        """How many replicas in this one's place would have served everyone who asked it; None where not known."""
        demand = view.derived.get("demand_replicas")
        if not isinstance(demand, Mapping):
            return None
        asked = {name: value for name in demand if (value := at(view.derived, "demand_replicas", name)) is not None}
        count = desired_replicas([ReplicaReading(self._labels.get("pod", ""), asked)], self._limits)
        return None if count is None else float(count)

    @staticmethod
    def _note_peak(open_: _Open, name: str, value: float | None) -> None:
        if value is not None:
            open_.peak[name] = max(open_.peak.get(name, 0.0), value)

    def _keep(self, open_: _Open, point: _Point) -> None:
        """Points for the picture; a long incident is shown in coarser ones."""
        open_.points.append(point)
        if len(open_.points) > 2 * MAX_PICTURE_POINTS:
            open_.points = open_.points[::2]

    def _values(self, t: float, sample: EngineSample) -> tuple[float | None, ...]:
        """Values of PICTURE_SERIES; tokens as a rate since the sample before."""
        tokens, rate = sample.counters.get("generation_tokens"), None
        if tokens is not None and self._tokens is not None:
            before, count = self._tokens
            if 0 < t - before <= 4 * self._step and tokens >= count:
                rate = (tokens - count) / (t - before)
        self._tokens = None if tokens is None else (t, tokens)
        gauges = sample.gauges
        return gauges.get("running"), gauges.get("waiting"), gauges.get("kv_usage"), rate

    def _ended(self, open_: _Open, *, ended: bool) -> Ended:
        self._open = None
        by_cause: dict[Cause, float] = {}
        for (one, _), seconds in open_.causes.items():
            by_cause[one] = by_cause.get(one, 0.0) + seconds
        cause = max(by_cause, key=by_cause.__getitem__)
        key = max((key for key in open_.causes if key[0] is cause), key=open_.causes.__getitem__)
        view, cost = open_.best[key], open_.cost
        diagnosis = view.diagnosis
        if diagnosis is None:
            raise AssertionError("a view of an incident has a verdict")
        incident = PastIncident(
            target=view.key.target,
            labels=self._labels,
            namespace=view.namespace,
            pod=view.pod,
            model_name=view.key.model_name,
            engine=view.key.rank,
            cause=cause,
            detail=key[1],
            grounds=diagnosis.grounds,
            began=open_.began,
            ended=open_.last if ended else None,
            seconds=open_.last - open_.began,
            step_seconds=self._step,
            causes=by_cause,
            confidence=open_.confidence / open_.judged,
            stage=open_.stage.value,
            lost_tokens=None if cost is None else cost.lost_tokens,
            lost_seconds=None if cost is None else cost.lost_seconds,
            recomputed_tokens=None if cost is None else cost.recomputed_tokens,
            recomputed_seconds=None if cost is None else cost.recomputed_seconds,
            tokens_per_second=None if cost is None else cost.tokens_per_second,
            restarted=cost is not None and cost.restarted,
            peak=open_.peak,
            symptoms=diagnosis.symptoms,
            missing=diagnosis.missing,
            limits=view.limits,
            picture=_picture(open_.points),
        )
        return Ended(incident, view)


def with_fired(incident: PastIncident, fired: list[Fired], late_seconds: float) -> PastIncident:
    """Return the incident with those alerts that fired during it, or so shortly after."""
    until = float("inf") if incident.ended is None else incident.ended + late_seconds
    mine = (one for one in fired if one.at <= until and (one.ended is None or one.ended >= incident.began))
    return replace(incident, fired=tuple(sorted(mine, key=lambda one: (one.copied, one.at))))


def _sureness(view: EngineView) -> float:
    return view.diagnosis.confidence if view.diagnosis else 0.0


def _picture(points: list[_Point]) -> Picture:
    every = max(1, -(-len(points) // MAX_PICTURE_POINTS))
    shown = points[::every]
    series = {name: tuple(point.values[place] for point in shown) for place, name in enumerate(PICTURE_SERIES)}
    return Picture(tuple(point.t for point in shown), series, tuple(point.cause for point in shown))

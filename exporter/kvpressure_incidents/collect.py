"""Verdicts of one engine, oldest first, to its incidents as JSON, from which every output is made.

`model/schemas/incidents.schema.json` describes it; keys are only ever added within a version.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from kvpressure.advice.workload import demands_of, desired_replicas, most_replicas
from kvpressure.config.thresholds import Thresholds
from kvpressure.model.catalogue import NOT_KNOWN
from kvpressure.model.codec import evidence_json, limits_json, missing_json
from kvpressure.model.incident import Incident, Price
from kvpressure.model.samples import EngineSample
from kvpressure.model.values import at
from kvpressure.model.verdict import Cause, Diagnosis, Stage
from kvpressure.model.view import LOSING, EngineView
from kvpressure.prometheus.names import Json
from kvpressure_incidents.words import COUNTED_RATIO

BEFORE_SECONDS: Final = 900.0
"""The time that a picture shows before the incident."""

PICTURE_SERIES: Final = ("running", "waiting", "kv_usage_ratio", "tokens_per_second")
MAX_PICTURE_POINTS: Final = 180

QUEUE_SECONDS: Final = 300.0
"""A queue that began longer before the first verdict has another cause."""

TOO_FEW: Final = "too_few_polls"
"""The detail at the begin of a stretch, where nothing is wrong with the engine's series."""

MAX_DOUBLINGS: Final = 10

_STAGES: Final = (Stage.NONE, Stage.BUILDING, Stage.COLLAPSED, Stage.FAILING)


@dataclass(slots=True)
class _Point:
    t: float
    cause: Cause
    values: tuple[float | None, ...]


@dataclass(slots=True)
class _Open:
    """An incident that may go on. `began` is when its queue began, where that is known, else `named`: the verdict.

    `last` is the time of its last verdict, which comes late; `queued` that of the last waiting request.
    """

    began: float
    last: float
    named: float
    healthy_seconds: float = 0.0
    """Healthy time that was seen before it."""
    causes: dict[tuple[Cause, str], float] = field(default_factory=dict)
    """Seconds of each."""
    best: dict[tuple[Cause, str], tuple[EngineView, Diagnosis]] = field(default_factory=dict)
    cost: Incident | None = None
    stage: Stage = Stage.NONE
    peak: dict[str, float] = field(default_factory=dict)
    points: list[_Point] = field(default_factory=list)
    queued: float | None = None

    @property
    def goes_on(self) -> bool:
        """Whether the newest sample still has its verdict, and, where requests have waited, a waiting request."""
        t = self.points[-1].t if self.points else self.last
        return t <= self.last and (self.queued is None or t <= self.queued)

    def over(self, step: float) -> float:
        """Return when it ended: at the sample after the last one with a queue, else with its last verdict."""
        if self.queued is None or any(detail == "eviction" for _, detail in self.causes):
            return self.last
        return max(self.began, min(self.last, self.queued + step))


@dataclass(frozen=True, slots=True)
class Ended:
    """A finished incident, and the view that its advice is made from; `cost` orders the incidents of one engine."""

    incident: Json
    view: EngineView
    seconds: float
    cost: float


class Collector:
    """Collects one engine's incidents. Trouble that comes back within `incident_gap_seconds` is the same incident."""

    def __init__(self, labels: Mapping[str, str], thresholds: Thresholds, step: float) -> None:
        self._labels, self._thresholds, self._step = labels, thresholds, step
        self._open: _Open | None = None
        self._before: deque[_Point] = deque(maxlen=max(4, int(BEFORE_SECONDS / step)))
        self._t = float("-inf")
        self._tokens: tuple[float, float] | None = None
        self._healthy_seconds = 0.0
        self.unjudged: dict[str, float] = {}
        """Seconds in which requests waited and the verdict was `unknown`, by its detail."""

    def add(self, view: EngineView, sample: EngineSample) -> Iterator[Ended]:
        """Add the next verdict and its sample; yields the incident that is over by then, if one is."""
        diagnosis, t = view.diagnosis, view.t
        if diagnosis is None:
            return
        gap, known = self._thresholds.verdict.incident_gap_seconds, self._t
        self._t = t
        if diagnosis.cause is NOT_KNOWN and diagnosis.detail != TOO_FEW and sample.gauges.get("waiting", 0.0) >= 1:
            self.unjudged[diagnosis.detail] = self.unjudged.get(diagnosis.detail, 0.0) + self._step
        if diagnosis.cause is Cause.HEALTHY:
            self._healthy_seconds += self._step
        point = _Point(t, diagnosis.cause, self._values(t, sample))
        if self._open is not None and t - self._open.last > gap:
            yield self._ended(self._open, ended=True)
        if diagnosis.cause in LOSING:
            if self._open is None:
                named = max(known, t - self._step)
                began = self._queue_began(t)
                self._open = _Open(named if began is None else began, t, named, self._healthy_seconds)
                self._open.points = list(self._before)
            self._trouble(self._open, view, diagnosis, point)
        elif self._open is not None:
            self._keep(self._open, point)
        self._before.append(point)

    def finish(self, *, ended: bool) -> Iterator[Ended]:
        """Yield the open incident; `ended` says that the engine is gone, not just that the time is over."""
        if self._open is not None:
            yield self._ended(self._open, ended=ended or not self._open.goes_on)

    def _queue_began(self, t: float) -> float | None:
        """Return when the current queue began, by the samples before `t`; None where none of them shows it."""
        began = t
        for point in reversed(self._before):
            waiting = point.values[1]
            if waiting is None or t - point.t > QUEUE_SECONDS:
                return None
            if waiting < 1:
                return point.t if began < t else None
            began = point.t
        return None

    def silent_since(self, newest: float) -> bool:
        """Whether the target's page at `newest` no longer had this engine."""
        return newest - self._t > self._thresholds.verdict.incident_gap_seconds

    def _trouble(self, open_: _Open, view: EngineView, diagnosis: Diagnosis, point: _Point) -> None:
        seconds = min(self._step * 2, point.t - open_.last) or self._step
        key = (diagnosis.cause, diagnosis.detail)
        open_.causes[key] = open_.causes.get(key, 0.0) + seconds
        # The newest of the most confident ones: by then windows contain nothing but the trouble.
        if key not in open_.best or diagnosis.confidence >= open_.best[key][1].confidence:
            open_.best[key] = view, diagnosis
        if view.incident is not None:
            open_.cost = view.incident
        open_.stage = max(open_.stage, diagnosis.stage, key=_STAGES.index)
        peaks = {
            "running": at(view.derived, "requests_running_max"),
            "waiting": at(view.derived, "requests_waiting_max"),
            "kv_usage_ratio": point.values[2],
            "preemptions_per_second": at(view.derived, "preemptions_per_second"),
            "desired_replicas": self._desired(view),
        }
        for name, value in peaks.items():
            if value is not None:
                open_.peak[name] = max(open_.peak.get(name, 0.0), value)
        open_.last = point.t
        self._keep(open_, point)

    def _desired(self, view: EngineView) -> float | None:
        """Return how many replicas in this one's place would have served its whole demand; None where not known."""
        # One replica, and those that an autoscaler could have added by then.
        began = view.t if self._open is None else self._open.began
        doubled = int(max(0.0, view.t - began) // self._thresholds.scaling.down_hold_seconds)
        most = 1
        for _ in range(min(doubled, MAX_DOUBLINGS)):
            most = most_replicas(most, self._thresholds)
        count = desired_replicas(demands_of(view.derived), self._thresholds, most)
        return None if count is None else float(count)

    def _keep(self, open_: _Open, point: _Point) -> None:
        """Add a point to the picture; that of a long incident is coarser."""
        if (point.values[1] or 0.0) >= 1:
            open_.queued = point.t
        open_.points.append(point)
        if len(open_.points) > 2 * MAX_PICTURE_POINTS:
            open_.points = open_.points[::2]

    def _values(self, t: float, sample: EngineSample) -> tuple[float | None, ...]:
        """Return the values of PICTURE_SERIES; tokens as a rate since the sample before."""
        tokens, gauges = sample.counters.get("generation_tokens"), sample.gauges
        rate = None
        if tokens is not None and self._tokens is not None:
            before, count = self._tokens
            if 0 < t - before <= 4 * self._step and tokens >= count:
                rate = (tokens - count) / (t - before)
        self._tokens = None if tokens is None else (t, tokens)
        return gauges.get("running"), gauges.get("waiting"), gauges.get("kv_usage"), rate

    def _ended(self, open_: _Open, *, ended: bool) -> Ended:
        self._open = None
        by_cause: dict[Cause, float] = {}
        for (kind, _), seconds in open_.causes.items():
            by_cause[kind] = by_cause.get(kind, 0.0) + seconds
        cause = max(by_cause, key=by_cause.__getitem__)
        key = max((key for key in open_.causes if key[0] is cause), key=open_.causes.__getitem__)
        (view, diagnosis), cost = open_.best[key], open_.cost
        over = open_.over(self._step)
        seconds, judged = over - open_.began, max(0.0, over - open_.named)
        counted = judged >= COUNTED_RATIO * seconds
        lost = None if cost is None or not counted else cost.lost_tokens
        incident = {
            "target": view.key.target,
            "labels": dict(self._labels),
            "namespace": view.namespace,
            "pod": view.pod,
            "model_name": view.key.model_name,
            "engine": view.key.rank,
            "cause": cause.value,
            "detail": key[1] or None,
            "grounds": diagnosis.grounds or None,
            "began": open_.began,
            "ended": over if ended else None,
            "seconds": round(seconds, 3),
            "judged_seconds": round(judged, 3),
            "step_seconds": round(self._step, 3),
            "causes": {kind.value: round(seconds, 3) for kind, seconds in by_cause.items()},
            # Of the verdict whose evidence is listed: a mean would be lowered by verdicts that only outlast theirs.
            "confidence": _rounded(diagnosis.confidence, 4) or None,
            "stage": open_.stage.value,
            "lost_tokens": None if lost is None else round(lost),
            "healthy_seconds": round(open_.healthy_seconds, 3),
            "lost_seconds": None if cost is None or not counted else _rounded(cost.lost_seconds, 3),
            "recomputed_tokens": None if cost is None else _rounded(cost.recomputed_tokens, 0),
            "recomputed_seconds": None if cost is None else _rounded(cost.recomputed_seconds, 3),
            "recomputed_gpu_seconds": None,
            "recomputed_money": None,
            "currency": None,
            "tokens_per_second": None if cost is None else _rounded(cost.tokens_per_second, 3),
            "restarted": cost is not None and cost.restarted,
            "peak": {name: _rounded(value, 6) for name, value in open_.peak.items()},
            "symptoms": {name: evidence_json(evidence) for name, evidence in diagnosis.symptoms.items()},
            "missing": [missing_json(missing) for missing in diagnosis.missing],
            "limits": limits_json(view.limits),
            "fired": None,
            "exporter": None,
            "actions": [],
            "picture": _picture(open_.points),
        }
        return Ended(incident, view, seconds, lost or seconds)


def _picture(points: list[_Point]) -> Json:
    """Return an incident's picture: unix seconds, and the values of each series, None where not known."""
    shown = points[:: max(1, -(-len(points) // MAX_PICTURE_POINTS))]
    series = {
        name: [_rounded(moment.values[place], 4) for moment in shown] for place, name in enumerate(PICTURE_SERIES)
    }
    return {"t": [moment.t for moment in shown], **series, "cause": [moment.cause.value for moment in shown]}


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, digits)


def priced(document: Json, gpus: int | None, price: Price | None) -> Json:
    """Return the document with the recomputed tokens' cost in GPU-seconds and money, as far as both are given."""
    return {**document, "incidents": [_priced(incident, gpus, price) for incident in document["incidents"]]}


def _priced(incident: Json, gpus: int | None, price: Price | None) -> Json:
    seconds = incident["recomputed_seconds"]
    if seconds is None or gpus is None:
        return incident
    whole = {**incident, "recomputed_gpu_seconds": round(seconds * gpus, 3)}
    if price is None:
        return whole
    money = round(seconds * gpus / 3600 * price.per_hour, 4)
    return {**whole, "recomputed_money": money, "currency": price.currency}

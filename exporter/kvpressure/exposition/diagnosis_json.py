"""The JSON at `/api/v1/diagnosis`: what the page says, for programs. `docs/api.md` describes it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from kvpressure.exposition.panel import Action, worst_first
from kvpressure.exposition.snapshot import EngineView, GpuView, Snapshot
from kvpressure.exposition.status import Advise, no_advice
from kvpressure.model.samples import ENGINE_SOURCE, HistogramSample, SourceHealth
from kvpressure.model.values import Value
from kvpressure.model.verdict import Diagnosis, Evidence


def diagnosis_json(snapshot: Snapshot, advise: Advise = no_advice) -> dict[str, object]:
    """Every engine, worst first, with its diagnosis, its derived values and what to do; and every GPU.

    What is not known is `null` or has no key under `derived`; histograms are only on /metrics. Of an engine that does
    not answer it is what was known when it last did. Targets that never answered come last.
    """
    errors = {one.target: one.error for one in snapshot.sources if one.source == ENGINE_SOURCE}
    return {
        "t": snapshot.t,
        "engines": [
            *(_engine(view, advise, errors.get(view.source, "")) for view in worst_first(snapshot.known)),
            *(_unread(health) for health in snapshot.unread),
        ],
        "gpus": [_gpu(view) for view in snapshot.gpus],
    }


def _engine(view: EngineView, advise: Advise, error: str) -> dict[str, object]:
    return {
        "target": view.target,
        "namespace": view.namespace,
        "pod": view.pod,
        "model_name": view.model_name,
        "engine": view.engine,
        "t": view.t,
        "answering": view.silence is None,
        "silent_seconds": None if view.silence is None else round(view.silence.seconds, 3),
        "error": error or None,
        **_verdict(view.diagnosis),
        "derived": _numbers(view.derived),
        "advice": [_action(action) for action in advise(view)],
    }


def _unread(health: SourceHealth) -> dict[str, object]:
    return {
        "target": health.target,
        "namespace": None,
        "pod": None,
        "model_name": None,
        "engine": None,
        "t": None,
        "answering": False if health.errors else None,
        "silent_seconds": None,
        "error": health.error or None,
        **_verdict(None),
        "derived": {},
        "advice": [],
    }


def _verdict(diagnosis: Diagnosis | None) -> dict[str, object]:
    if diagnosis is None:
        return {"cause": None, "confidence": None, "score": None, "stage": None, "since": None, "symptoms": {}}
    return {
        "cause": diagnosis.cause.value,
        "confidence": _finite(diagnosis.confidence),
        "score": _finite(diagnosis.score),
        "stage": diagnosis.stage.value,
        "since": diagnosis.since,
        "symptoms": {name: _evidence(evidence) for name, evidence in diagnosis.symptoms.items()},
    }


def _evidence(evidence: Evidence) -> dict[str, object]:
    return {
        "state": evidence.state,
        "value": _finite(evidence.value),
        "threshold": _finite(evidence.threshold),
        "unit": evidence.unit,
        "text": evidence.text,
    }


def _action(action: Action) -> dict[str, object]:
    return {
        "title": action.title,
        "why": action.why,
        "current": action.current,
        "new": action.new,
        "cost": action.cost,
        "verify": action.verify,
        "commands": list(action.commands),
    }


def _gpu(view: GpuView) -> dict[str, object]:
    sample = view.sample
    return {
        "gpu_uuid": sample.uuid,
        "gpu_index": sample.index,
        "vendor": sample.vendor,
        "name": sample.name,
        "profile": sample.profile,
        "parent_uuid": sample.parent_uuid,
        "derived": {name: value for name, value in _numbers(view.derived).items() if name != "gpu_info"},
    }


def _numbers(values: Mapping[str, Value]) -> dict[str, object]:
    """Derived values without histograms, numbers that JSON cannot hold, and objects left empty by that."""
    found: dict[str, object] = {}
    for name, value in values.items():
        if isinstance(value, HistogramSample):
            continue
        plain = _numbers(value) if isinstance(value, Mapping) else _finite(value)
        if plain is not None and plain != {}:
            found[name] = plain
    return found


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None

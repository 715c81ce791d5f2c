"""The JSON of a look back: what everything that shows it is made from, and what a broken-off one goes on from.

Pure. `model/schemas/incidents.schema.json` describes it; keys are only ever added within a version.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from kvpressure.model.codec import action_json, evidence_json, limits_json, missing_json
from kvpressure.model.incident import Price
from kvpressure.tools.incidents.found import Fired, PastIncident, Picture
from kvpressure.tools.incidents.names import EngineName

Json = dict[str, Any]


def incident_json(incident: PastIncident) -> Json:
    """One incident; what is not known is null."""
    return {
        "target": incident.target,
        "labels": dict(incident.labels),
        "namespace": incident.namespace,
        "pod": incident.pod,
        "model_name": incident.model_name,
        "engine": incident.engine,
        "cause": incident.cause.value,
        "detail": incident.detail or None,
        "grounds": incident.grounds or None,
        "began": incident.began,
        "ended": incident.ended,
        "seconds": round(incident.seconds, 3),
        "step_seconds": round(incident.step_seconds, 3),
        "causes": {cause.value: round(seconds, 3) for cause, seconds in incident.causes.items()},
        "confidence": _rounded(incident.confidence, 4),
        "stage": incident.stage,
        "lost_tokens": None if incident.lost_tokens is None else round(incident.lost_tokens),
        "lost_seconds": _rounded(incident.lost_seconds, 3),
        "recomputed_tokens": None if incident.recomputed_tokens is None else round(incident.recomputed_tokens),
        "recomputed_seconds": _rounded(incident.recomputed_seconds, 3),
        "recomputed_gpu_seconds": None,
        "recomputed_money": None,
        "currency": None,
        "tokens_per_second": _rounded(incident.tokens_per_second, 3),
        "restarted": incident.restarted,
        "peak": {name: _rounded(value, 6) for name, value in incident.peak.items()},
        "symptoms": {name: evidence_json(evidence) for name, evidence in incident.symptoms.items()},
        "missing": [missing_json(missing) for missing in incident.missing],
        "limits": limits_json(incident.limits),
        "fired": [fired_json(one) for one in incident.fired],
        "exporter": None,
        "actions": [action_json(action) for action in incident.actions],
        "picture": None if incident.picture is None else _picture_json(incident.picture),
    }


def priced(document: Json, gpus: int | None, price: Price | None) -> Json:
    """Return the document with what was computed again in GPU-seconds, and in money, as far as both are given."""
    return {**document, "incidents": [_priced(one, gpus, price) for one in document["incidents"]]}


def _priced(incident: Json, gpus: int | None, price: Price | None) -> Json:
    # One of a journal that an older version wrote has no such key.
    seconds = incident.get("recomputed_seconds")
    if seconds is None or gpus is None:
        return incident
    whole = {**incident, "recomputed_gpu_seconds": round(seconds * gpus, 3)}
    if price is None:
        return whole
    money = round(seconds * gpus / 3600 * price.per_hour, 4)
    return {**whole, "recomputed_money": money, "currency": price.currency}


def fired_json(fired: Fired) -> Json:
    """Return an alert that would have fired."""
    return {
        "rule": fired.rule,
        "by": "copied" if fired.copied else "kvpressure",
        "severity": fired.severity or None,
        "at": fired.at,
        "ended": fired.ended,
    }


def engine_of(incident: Mapping[str, Any]) -> EngineName:
    """Which engine an incident is of."""
    return EngineName(incident["target"], incident["model_name"], incident["engine"])


def _picture_json(picture: Picture) -> Json:
    series = {name: [_rounded(value, 4) for value in values] for name, values in picture.series.items()}
    return {"t": list(picture.times), **series, "cause": [cause.value for cause in picture.causes]}


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, digits)

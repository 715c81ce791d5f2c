"""The JSON of a verdict: what the API, the page's data, `triage` and `replay` say of one engine.

Names are those of the records. What is not known is `null`; under `derived` it has no key. `docs/api.md` describes it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from kvpressure.model.action import Action, Expected, Shift
from kvpressure.model.limits import Limits
from kvpressure.model.samples import HistogramSample
from kvpressure.model.schemas.diagnosis import PARTS, Schema
from kvpressure.model.target_status import STATUSES, TargetStatus, replica_state
from kvpressure.model.values import Value
from kvpressure.model.verdict import Diagnosis
from kvpressure.model.view import ENGINE_LABELS, EngineView, GpuView


def engine_json(
    view: EngineView, actions: Sequence[Action] = (), error: str = "", status: TargetStatus = STATUSES["timeout"]
) -> dict[str, object]:
    """Return one engine: its identity, state, verdict, evidence and actions; `error` and `status` are its target's."""
    return {
        "target": view.key.target,
        "namespace": view.namespace,
        "pod": view.pod,
        "model_name": view.key.model_name,
        "engine": view.key.rank,
        "labels": dict(zip(ENGINE_LABELS, view.labels, strict=True)),
        "t": view.t,
        "state": replica_state(view, status),
        "answering": view.silence is None,
        "silent_seconds": None if view.silence is None else round(view.silence.seconds, 3),
        "error": error or None,
        **_verdict_json(view.diagnosis),
        "derived": numbers_json(view.derived),
        "limits": limits_json(view.limits),
        "actions": [action_json(action) for action in actions],
    }


def unread_json(target: str, error: str, status: TargetStatus, *, answering: bool | None) -> dict[str, object]:
    """Return a target without a known engine, with the same keys; `answering` is None before the first attempt."""
    nobody = dict.fromkeys(("namespace", "pod", "model_name", "engine"))
    state = {"t": None, "state": replica_state(None, status), "answering": answering}
    silent = {"silent_seconds": None, "error": error or None}
    nothing = {"derived": {}, "limits": limits_json(Limits()), "actions": []}
    return {"target": target, **nobody, "labels": {}, **state, **silent, **_verdict_json(None), **nothing}


def _verdict_json(diagnosis: Diagnosis | None) -> dict[str, object]:
    if diagnosis is None:
        nothing = dict.fromkeys(("cause", "detail", "grounds", "confidence", "score", "stage", "since"))
        return {**nothing, "symptoms": {}, "missing": []}
    return {
        "cause": diagnosis.cause.value,
        "detail": diagnosis.detail or None,
        "grounds": diagnosis.grounds or None,
        "confidence": _finite(diagnosis.confidence),
        "score": _finite(diagnosis.score),
        "stage": diagnosis.stage.value,
        "since": diagnosis.since,
        "symptoms": {name: evidence_json(evidence) for name, evidence in diagnosis.symptoms.items()},
        "missing": [missing_json(missing) for missing in diagnosis.missing],
    }


def record_json(record: object, part: str) -> dict[str, object]:
    """Return a record by the keys of its `part` of the schema; an empty text is null where the schema lets it be."""
    properties: Mapping[str, Schema] = PARTS[part]["properties"]
    return {key: _plain(getattr(record, _FIELDS.get(key, key)), schema) for key, schema in properties.items()}


_FIELDS: Final = {"not_predicted": "unpredicted"}
"""Of records, where the key has another name."""

missing_json, evidence_json, action_json = (
    partial(record_json, part=part) for part in ("missing", "evidence", "action")
)


def _plain(value: Any, schema: Schema) -> object:
    if isinstance(value, Shift):
        return record_json(value, "shift")
    if isinstance(value, Expected):
        return _expected_json(value)
    if isinstance(value, tuple):
        return list(value)
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, float):
        return _finite(value)
    return None if value == "" and "null" in schema.get("type", ()) else value


def limits_json(limits: Limits) -> dict[str, object]:
    """Return every limit by name, `null` where it is not known."""
    by_name = {name: getattr(limits, name) for name in Limits.__dataclass_fields__}
    return {name: limit and {"value": limit.value, "source": limit.source} for name, limit in by_name.items()}


def _expected_json(expected: Expected) -> dict[str, object]:
    in_time, drain_seconds = expected.in_time, expected.drain_seconds
    of_sessions = {name: getattr(expected, name) for name in ("hit_ratio", "first_token_seconds")}
    return {
        **record_json(expected, "expected"),
        **({} if in_time is None else {"in_time_ratio": dict(zip(("before", "after"), in_time, strict=True))}),
        **({} if drain_seconds is None else {"drain_seconds": drain_seconds}),
        **{name: record_json(shift, "shift") for name, shift in of_sessions.items() if shift is not None},
    }


def gpu_json(view: GpuView) -> dict[str, object]:
    """Return one GPU."""
    sample = view.sample
    return {
        "gpu_uuid": sample.uuid,
        "gpu_index": sample.index,
        **{name: getattr(sample, name) for name in ("vendor", "name", "profile", "parent_uuid")},
        "derived": {name: value for name, value in numbers_json(view.derived).items() if name != "gpu_info"},
    }


def numbers_json(values: Mapping[str, Value]) -> dict[str, object]:
    """Return derived values without histograms, numbers that JSON cannot hold, and objects left empty by that."""
    numbers: dict[str, object] = {}
    for name, value in values.items():
        if isinstance(value, HistogramSample):
            continue
        plain = numbers_json(value) if isinstance(value, Mapping) else _finite(value)
        if plain is not None and plain != {}:
            numbers[name] = plain
    return numbers


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None

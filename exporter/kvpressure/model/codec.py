"""The JSON of a verdict: what the API, the page's data, `triage` and `replay` say of one engine.

Names are those of the records. What is not known is `null`; under `derived` it has no key. `docs/api.md` describes it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from kvpressure.model.action import Action, Expected, Shift
from kvpressure.model.limits import Limits
from kvpressure.model.samples import HistogramSample
from kvpressure.model.target_status import STATUSES, TargetStatus, replica_state
from kvpressure.model.values import Value
from kvpressure.model.verdict import Diagnosis, Evidence, Missing
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


def missing_json(missing: Missing) -> dict[str, object]:
    """Return evidence that is missing, and how to get it."""
    return {"what": missing.what, "series": list(missing.series), "how": missing.how}


def evidence_json(evidence: Evidence) -> dict[str, object]:
    """Return one symptom: `value` and `threshold` in `unit`."""
    numbers = {"value": _finite(evidence.value), "threshold": _finite(evidence.threshold)}
    return {"state": evidence.state, **numbers, "unit": evidence.unit, "text": evidence.text}


def limits_json(limits: Limits) -> dict[str, object]:
    """Return every limit by name, `null` where it is not known."""
    by_name = {name: getattr(limits, name) for name in Limits.__dataclass_fields__}
    return {name: limit and {"value": limit.value, "source": limit.source} for name, limit in by_name.items()}


def action_json(action: Action) -> dict[str, object]:
    """Return one action."""
    return {
        "order": action.order,
        "key": action.key,
        "when": action.when or None,
        "since": action.since,
        "revised": action.revised or None,
        "title": action.title,
        "current": action.current or None,
        "new": action.new or None,
        "why": action.why,
        "cost": action.cost,
        "flags": dict(action.flags),
        "commands": list(action.commands),
        "placeholders": list(action.placeholders),
        "verify": action.verify,
        "expected": None if action.expected is None else _expected_json(action.expected),
        "not_predicted": action.unpredicted or None,
    }


def _expected_json(expected: Expected) -> dict[str, object]:
    shifts = ("tokens_per_second", "goodput", "latency_p95", "waiting")
    numbers = ("refused_ratio", "shortened_ratio", "limit_seconds")
    of_sessions = {name: getattr(expected, name) for name in ("hit_ratio", "first_token_seconds")}
    return {
        "text": expected.text,
        **{name: _shift(getattr(expected, name)) for name in shifts},
        **{name: _finite(getattr(expected, name)) for name in numbers},
        "at_best": expected.at_best,
        **(
            {}
            if expected.in_time is None
            else {"in_time_ratio": dict(zip(("before", "after"), expected.in_time, strict=True))}
        ),
        **({} if expected.drain_seconds is None else {"drain_seconds": expected.drain_seconds}),
        **{name: _shift(shift) for name, shift in of_sessions.items() if shift is not None},
    }


def _shift(shift: Shift) -> dict[str, float | None]:
    return {name: _finite(getattr(shift, name)) for name in ("before", "after", "low", "high")}


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

"""What `triage` and `advise` found out: one record per engine or unreachable target, exit code, JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kvpressure.advice import Action, Limits
from kvpressure.exposition.palette import CALM
from kvpressure.exposition.snapshot import EngineView, GpuView
from kvpressure.model.samples import HistogramSample
from kvpressure.model.values import Value
from kvpressure.model.verdict import Cause, Diagnosis, Evidence

HEALTHY, LIMITED, CANNOT_TELL = 0, 1, 2
"""Exit codes: nothing limits the engine; a bottleneck was named; no verdict."""

WORST_FIRST = (
    Cause.STUCK,
    Cause.KV_CACHE_PRESSURE,
    Cause.HOST_BOUND,
    Cause.CONCURRENCY_BOUND,
    Cause.COMPUTE_BOUND,
    Cause.UNKNOWN,
    Cause.HEALTHY,
    Cause.IDLE,
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One engine, or a target of which no engine was seen (`view` is None and `problem` says why).

    `problem` beside a view is the source's newest error. `diagnosis` is None only without a view.
    """

    target: str
    view: EngineView | None = None
    problem: str = ""
    limits: Limits = field(default_factory=Limits)
    actions: tuple[Action, ...] = ()

    @property
    def diagnosis(self) -> Diagnosis | None:
        """The verdict on the engine."""
        return None if self.view is None else self.view.diagnosis

    @property
    def cause(self) -> Cause:
        """The verdict's cause, `unknown` without one."""
        return self.diagnosis.cause if self.diagnosis else Cause.UNKNOWN

    @property
    def exit_code(self) -> int:
        """What this engine alone would end the command with."""
        if self.cause is Cause.UNKNOWN:
            return CANNOT_TELL
        return HEALTHY if self.cause in CALM else LIMITED


def exit_code(findings: Iterable[Finding]) -> int:
    """The worst decides: a bottleneck over no verdict, that over health."""
    codes = {finding.exit_code for finding in findings}
    return LIMITED if LIMITED in codes else CANNOT_TELL if CANNOT_TELL in codes or not codes else HEALTHY


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Worst cause first, else in the order given."""
    return sorted(findings, key=lambda one: WORST_FIRST.index(one.cause))


def advised(findings: Sequence[Finding]) -> list[Finding]:
    """The findings whose advice is to be shown: the worst engine of each target, as its ranks share their flags."""
    worst: dict[str, Finding] = {}
    for finding in worst_first(findings):
        worst.setdefault(finding.target, finding)
    return [finding for finding in findings if worst[finding.target] is finding]


def as_json(findings: Sequence[Finding], gpus: Sequence[GpuView] = ()) -> dict[str, object]:
    """Everything for programs; what is not known is null."""
    return {
        "exit_code": exit_code(findings),
        "engines": [_engine(finding) for finding in findings],
        "gpus": [_gpu(gpu) for gpu in gpus],
    }


def advice_json(findings: Sequence[Finding]) -> dict[str, object]:
    """The actions only."""
    return {
        "exit_code": exit_code(findings),
        "engines": [
            {**_identity(finding), "limits": _limits(finding.limits), "actions": [*map(_action, finding.actions)]}
            for finding in advised(findings)
        ],
    }


def _identity(finding: Finding) -> dict[str, object]:
    view = finding.view
    return {
        "target": finding.target,
        "model_name": None if view is None else view.model_name,
        "engine": None if view is None else view.engine,
        "cause": finding.cause.value,
        "problem": finding.problem or None,
    }


def _engine(finding: Finding) -> dict[str, object]:
    diagnosis, view = finding.diagnosis, finding.view
    return {
        **_identity(finding),
        "t": None if view is None else view.t,
        "answering": view is not None and view.silence is None,
        "silent_seconds": None if view is None or view.silence is None else round(view.silence.seconds, 3),
        "confidence": None if diagnosis is None else diagnosis.confidence,
        "score": None if diagnosis is None else diagnosis.score,
        "stage": None if diagnosis is None else diagnosis.stage.value,
        "since": None if diagnosis is None else diagnosis.since,
        "symptoms": {} if diagnosis is None else {name: _evidence(e) for name, e in diagnosis.symptoms.items()},
        "derived": {} if view is None else _numbers(view.derived),
        "limits": _limits(finding.limits),
        "actions": [_action(action) for action in finding.actions],
    }


def _numbers(derived: Mapping[str, Value]) -> dict[str, object]:
    """Derived values without histograms; what JSON has no number for is null."""
    found: dict[str, object] = {}
    for name, value in derived.items():
        if isinstance(value, Mapping):
            found[name] = _numbers(value)
        elif not isinstance(value, HistogramSample):
            found[name] = _finite(value)
    return found


def _evidence(evidence: Evidence) -> dict[str, object]:
    return {
        "state": evidence.state,
        "value": _finite(evidence.value),
        "threshold": _finite(evidence.threshold),
        "unit": evidence.unit,
        "text": evidence.text,
    }


def _limits(limits: Limits) -> dict[str, object]:
    found = {name: getattr(limits, name) for name in Limits.__dataclass_fields__}
    return {name: limit and {"value": limit.value, "source": limit.source} for name, limit in found.items()}


def _action(action: Action) -> dict[str, object]:
    return {
        "order": action.order,
        "key": action.key,
        "title": action.title,
        "current": action.current or None,
        "new": action.new or None,
        "why": action.why,
        "cost": action.cost,
        "flags": dict(action.flags),
        "commands": list(action.commands),
        "placeholders": list(action.placeholders),
        "verify": action.verify,
    }


def _gpu(view: GpuView) -> dict[str, object]:
    sample = view.sample
    return {
        "gpu_uuid": sample.uuid,
        "gpu_index": sample.index,
        "vendor": sample.vendor,
        "name": sample.name,
        "derived": {name: value for name, value in _numbers(view.derived).items() if name != "gpu_info"},
    }


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None

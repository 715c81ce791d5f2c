"""What `triage` and `advise` found out: one record per engine or unreachable target, exit code, JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from kvpressure.advice import Action, Limits
from kvpressure.model.catalogue import NOT_KNOWN
from kvpressure.model.codec import engine_json, gpu_json, unread_json
from kvpressure.model.verdict import Cause, Diagnosis
from kvpressure.model.view import CALM, EngineView, GpuView, badness

HEALTHY, LIMITED, CANNOT_TELL = 0, 1, 2
"""Exit codes: nothing limits the engine; a bottleneck was named; no verdict."""


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
        return self.diagnosis.cause if self.diagnosis else NOT_KNOWN

    @property
    def exit_code(self) -> int:
        """What this engine alone would end the command with."""
        if self.cause is NOT_KNOWN:
            return CANNOT_TELL
        return HEALTHY if self.cause in CALM else LIMITED


def exit_code(findings: Iterable[Finding]) -> int:
    """Let the worst decide: a bottleneck over no verdict, that over health."""
    codes = {finding.exit_code for finding in findings}
    return LIMITED if LIMITED in codes else CANNOT_TELL if CANNOT_TELL in codes or not codes else HEALTHY


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Worst first, else in the order given."""
    return sorted(findings, key=lambda one: badness(one.diagnosis, None if one.view is None else one.view.silence))


def advised(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings whose advice is to be shown.

    The worst engine of each target, as its ranks share their flags.
    """
    worst: dict[str, Finding] = {}
    for finding in worst_first(findings):
        worst.setdefault(finding.target, finding)
    return [finding for finding in findings if worst[finding.target] is finding]


def as_json(findings: Sequence[Finding], gpus: Sequence[GpuView] = ()) -> dict[str, object]:
    """Everything for programs; what is not known is null."""
    return {
        "exit_code": exit_code(findings),
        "engines": [_engine(finding) for finding in findings],
        "gpus": [gpu_json(gpu) for gpu in gpus],
    }


def advice_json(findings: Sequence[Finding]) -> dict[str, object]:
    """Return the actions only."""
    kept = ("target", "model_name", "engine", "cause", "error", "limits", "actions")
    engines = [_engine(finding) for finding in advised(findings)]
    return {"exit_code": exit_code(findings), "engines": [{key: engine[key] for key in kept} for engine in engines]}


def _engine(finding: Finding) -> dict[str, object]:
    if finding.view is None:
        found = unread_json(finding.target, finding.problem, answering=False)
    else:
        found = engine_json(replace(finding.view, limits=finding.limits), finding.actions, finding.problem)
    return {**found, "cause": finding.cause.value}  # always there: `unknown` without a page

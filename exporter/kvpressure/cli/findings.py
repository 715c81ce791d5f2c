"""The findings of `triage`: one record per engine or unreachable target, exit code, JSON.

And facts about engines that are on no page, from the command line.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from kvpressure.cli.say import CANNOT_TELL
from kvpressure.model.action import Action
from kvpressure.model.catalogue import NOT_KNOWN
from kvpressure.model.codec import engine_json, gpu_json, unread_json
from kvpressure.model.samples import SourceHealth
from kvpressure.model.target_status import (
    STATUSES,
    ReplicaState,
    TargetStatus,
    replica_state,
    status_of,
    status_of_silent,
)
from kvpressure.model.verdict import Cause, Diagnosis
from kvpressure.model.view import CALM, EngineView, GpuView, badness, decode_side_of, peers_of

if TYPE_CHECKING:
    from kvpressure.config.target import Target  # which takes the settings along
    from kvpressure.config.thresholds import Thresholds

HEALTHY, LIMITED = 0, 1
"""Exit codes beside CANNOT_TELL: nothing limits the engine; a bottleneck was named."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One engine, or a target without a known engine (`view` is None and `problem` says why).

    `problem` beside a view is the source's last error, and `status` what that says of a silent engine. `diagnosis` is
    None only without a view.
    """

    target: str
    view: EngineView | None = None
    problem: str = ""
    actions: tuple[Action, ...] = ()
    status: TargetStatus = STATUSES["timeout"]
    cluster: str = ""

    @property
    def state(self) -> ReplicaState | None:
        """What the replica does; None where that is not known."""
        return replica_state(self.view, self.status)

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
        """The exit code for this engine alone."""
        if self.cause is NOT_KNOWN:
            return CANNOT_TELL
        return HEALTHY if self.cause in CALM else LIMITED


def exit_code(findings: Iterable[Finding]) -> int:
    """Return the exit code of the command: a bottleneck wins over no verdict, that over health."""
    codes = {finding.exit_code for finding in findings}
    return LIMITED if LIMITED in codes else CANNOT_TELL if CANNOT_TELL in codes or not codes else HEALTHY


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """Return the findings, worst first, else in the order given."""
    return sorted(
        findings, key=lambda finding: badness(finding.diagnosis, finding.view.silence if finding.view else None)
    )


def advised(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings whose advice is shown: the worst engine of each target, since ranks share their flags."""
    worst: dict[str, Finding] = {}
    for finding in worst_first(findings):
        worst.setdefault(finding.target, finding)
    return [finding for finding in findings if worst[finding.target] is finding]


def as_json(findings: Sequence[Finding], gpus: Sequence[GpuView] = ()) -> dict[str, object]:
    """Return all findings for programs; unknown values are null."""
    return {
        "exit_code": exit_code(findings),
        "engines": [_engine(finding) for finding in findings],
        "gpus": [gpu_json(gpu) for gpu in gpus],
    }


def advice_json(findings: Sequence[Finding]) -> dict[str, object]:
    """Return the actions for programs."""
    kept = ("target", "model_name", "engine", "cause", "error", "limits", "actions")
    engines = [_engine(finding) for finding in advised(findings)]
    return {"exit_code": exit_code(findings), "engines": [{key: engine[key] for key in kept} for engine in engines]}


def _engine(finding: Finding) -> dict[str, object]:
    if finding.view is None:
        answer = unread_json(finding.target, finding.problem, finding.status, answering=False)
    else:
        answer = engine_json(finding.view, finding.actions, finding.problem, finding.status)
    return {**answer, "cause": finding.cause.value}  # always there: `unknown` without a page


@dataclass(slots=True)
class SampledTarget:
    """One sampled target: its engines, and the health of its source."""

    target: Target
    health: SourceHealth | None = None
    engines: list[EngineView] = field(default_factory=list)

    @property
    def problem(self) -> str:
        """The source's last error, "" where its last poll succeeded."""
        return "" if self.health is None or self.health.up else self.health.error


def engines_of(sampled: Sequence[SampledTarget]) -> list[EngineView]:
    """Return the engines of all targets."""
    return [view for target in sampled for view in target.engines]


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Facts about an engine that its page does not show, from the command line: limits in force, and where it runs."""

    limits: dict[str, float] = field(default_factory=dict)
    place: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, options: dict[str, Any]) -> EngineFacts:
        """Return the facts in the values of `facts_options`."""
        place = {"namespace": options["namespace"]} if options.get("namespace") else {}
        for text in options.get("workloads", ()):
            kind, slash, name = text.partition("/")
            if slash and kind in ("pod", "unit"):
                place[kind] = name
            else:
                place |= {"kind": kind, "workload": name} if slash else {"workload": kind}
        return cls(dict(options["limits"]), place)

    def finding(
        self,
        view: EngineView,
        thresholds: Thresholds,
        url: str = "",
        beside: Sequence[EngineView] = (),
        health: SourceHealth | None = None,
    ) -> Finding:
        """Return the finding on one engine, with its advice; `beside` are all engines that are sampled.

        `health` is that of its source, which says why a silent engine cannot be read.
        """
        from kvpressure.advice.advise import Case, Place, advise_on  # noqa: PLC0415 - slow to import, and not needed where a connection is refused
        from kvpressure.advice.shell import is_loopback  # noqa: PLC0415

        if view.diagnosis is None:
            return Finding(view.key.target, problem="the page was read, but nothing could be judged yet")
        limits, silent = view.limits.with_declared(self.limits), view.silence is not None
        shown, peers = view.shown.model_name, peers_of(view, beside)
        # An address of this machine may be a port-forward, where there is a kubectl to forward it.
        here = False if url and not self.place and is_loopback(url) and shutil.which("kubectl") is None else None
        given: dict[str, Any] = {"url": url, "model_name": shown, "runtime": view.runtime, "kubernetes": here}
        place = Place(**given | self.place)
        about = view.diagnosis, view.derived, limits, thresholds, place, view.observed, peers
        unread = "" if health is None or health.up else health.reason
        actions = advise_on(Case(*about, decode_side=decode_side_of(view, beside)), silent=silent, unread=unread)
        return Finding(view.key.target, replace(view, limits=limits), actions=actions)

    def findings(
        self, sampled: SampledTarget, thresholds: Thresholds, beside: Sequence[EngineView] = ()
    ) -> list[Finding]:
        """Return the findings on one sampled target: its engines, or why none is known."""
        name = sampled.target.name
        problem = sampled.problem
        health = sampled.health
        if not sampled.engines:
            why = problem or "the page answers, but shows no engine yet: has it served a request?"
            return [Finding(name, problem=why, status=STATUSES["timeout"] if health is None else status_of(health))]
        findings = [self.finding(view, thresholds, sampled.target.url, beside, health) for view in sampled.engines]
        status = status_of_silent(health)
        return [replace(finding, problem=problem or finding.problem, status=status) for finding in findings]

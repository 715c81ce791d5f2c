"""Options that `triage` and `advise` share, and the advice for what was seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import click

from kvpressure.advice import Limits, Place, advise
from kvpressure.cli.findings import Finding
from kvpressure.cli.sampling import Seen
from kvpressure.config.thresholds import Thresholds
from kvpressure.model.view import EngineView, peers_of

F = TypeVar("F", bound=Callable[..., Any])

_LIMITS = {
    "max_num_seqs": ("--max-num-seqs", click.IntRange(1), "Sequences that run at once, per rank."),
    "max_num_batched_tokens": ("--max-num-batched-tokens", click.IntRange(1), "Tokens of one step."),
    "gpu_memory_utilization": ("--gpu-memory-utilization", click.FloatRange(0.01, 1.0), "If the page does not say."),
    "max_input_tokens": ("--max-input-tokens", click.IntRange(1), "Longest prompt that the gateway lets through."),
    "max_output_tokens": ("--max-output-tokens", click.IntRange(1), "Largest max_tokens that the gateway allows."),
}

_PLACE = (
    click.option("-n", "--namespace", default="", help="Kubernetes namespace of the engine."),
    click.option("--deployment", default="", metavar="NAME", help="Its Deployment, or another workload as KIND/NAME."),
    click.option("--pod", default="", help="Its pod."),
    click.option("--container", default="", help="Its container."),
    click.option("--unit", default="", help="Its systemd unit, where it runs without Kubernetes."),
)


def facts_options(function: F) -> F:
    """Return what cannot be seen from outside: limits and place."""
    for option in reversed(_PLACE):
        function = option(function)
    return limit_options(function)


def limit_options(function: F) -> F:
    """Limits that cannot be seen from outside."""
    for name, (flag, kind, text) in reversed(_LIMITS.items()):
        function = click.option(flag, name, type=kind, default=None, help=f"In force now: {text}")(function)
    return function


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What a page does not show of an engine, from the command line: limits in force, and where it runs."""

    limits: dict[str, float] = field(default_factory=dict)
    place: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, options: dict[str, Any]) -> EngineFacts:
        """Sort what `facts_options` gave."""
        limits = {name: float(options[name]) for name in _LIMITS if options.get(name) is not None}
        kind, slash, workload = str(options.get("deployment") or "").partition("/")
        place = {name: options[name] for name in ("namespace", "pod", "container", "unit") if options.get(name)}
        if kind:
            place |= {"kind": kind, "workload": workload} if slash else {"workload": kind}
        return cls(limits, place)

    def finding(
        self, view: EngineView, thresholds: Thresholds, url: str = "", beside: Sequence[EngineView] = ()
    ) -> Finding:
        """Return the finding on one engine, with its advice; `beside` are the engines that are sampled beside it."""
        if view.diagnosis is None:
            return Finding(view.key.target, problem="the page was read, but nothing could be judged yet")
        limits = view.limits.with_declared(self.limits)
        shown = view.shown.model_name
        place = Place(url=url, model_name=shown, runtime=view.runtime, **self.place)  # type: ignore[arg-type]
        silent = view.silence is not None
        actions = advise(
            view.diagnosis,
            view.derived,
            limits,
            place,
            thresholds,
            silent=silent,
            observed=view.observed,
            peers=peers_of(view, beside),
        )
        return Finding(view.key.target, view, limits=limits, actions=actions)

    def findings(self, seen: Seen, thresholds: Thresholds, beside: Sequence[EngineView] = ()) -> list[Finding]:
        """Return the findings on one sampled target: its engines, or why none was seen."""
        problem = "" if seen.health is None or seen.health.up else seen.health.error
        if not seen.engines:
            nothing = "the page answers, but shows no engine yet: has it served a request?"
            return [Finding(seen.target.name, problem=problem or nothing, limits=Limits())]
        found = [self.finding(view, thresholds, seen.target.url, beside) for view in seen.engines]
        return [Finding(one.target, one.view, problem or one.problem, one.limits, one.actions) for one in found]

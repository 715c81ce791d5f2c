"""Verdicts on recordings of the scheduler lab, and evidence made by hand, for tests of what a verdict says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from kvpressure.cli.replay import Replay, ReplayTarget
from kvpressure.config.thresholds import load_thresholds
from kvpressure.diagnosis.facts import Facts, Inputs
from kvpressure.diagnosis.judge import judge
from kvpressure.diagnosis.rule import Rule
from kvpressure.diagnosis.symptoms import judge_all
from kvpressure.engines.recordings import TraceError
from kvpressure.model.values import Derived
from kvpressure.model.verdict import Cause
from kvpressure.model.view import EngineView
from kvpressure.signals.verdict_window import VerdictWindow

THRESHOLDS = load_thresholds()
LAB = Path(__file__).parents[1] / "fixtures" / "lab"


def changed(window: VerdictWindow, **values: object) -> VerdictWindow:
    """The window with other values of its fields, or of those of its groups, whose names differ."""
    for name, value in values.items():
        group = next((group for group in GROUPS if hasattr(getattr(window, group), name)), None)
        change = {name: value} if group is None else {group: replace(getattr(window, group), **{name: value})}
        window = replace(window, **change)  # type: ignore[arg-type]
    return window


GROUPS = ("queue", "fit", "preemption", "throughput", "answers", "progress", "deferral")
BUSY = changed(
    VerdictWindow(polls=30, seconds=29.0, kv_usage_ratio=0.4, busy=True), demand=20.0, waiting=12.0, waiting_ratio=1.0
)


def inputs(derived: Derived | None = None, declared: dict[str, float] | None = None, **values: object) -> Inputs:
    """A busy engine with a queue, changed as `values` says (see `changed`)."""
    return Inputs(derived or {}, THRESHOLDS, changed(BUSY, **values), declared=declared or {})


def facts(made: Inputs, before: Cause = Cause.HEALTHY) -> Facts:
    """What rules read of them while `before` is the verdict so far."""
    return Facts(made, judge_all(made), before)


def rule(made: Inputs, before: Cause = Cause.HEALTHY) -> Rule:
    """The rule that wins."""
    return judge(facts(made, before)).rule


def grounds(made: Inputs) -> tuple[str, str]:
    """Detail and grounds of the rule that wins."""
    found = facts(made)
    won = judge(found).rule
    return won.detail, won.grounds(found)


def views(path: Path) -> list[EngineView]:
    """Every view of a recording, each with a diagnosis."""
    found: list[EngineView] = []
    for item in Replay(ReplayTarget("t"), THRESHOLDS).views(path):
        assert not isinstance(item, TraceError)
        found += item[1]
    assert all(view.diagnosis is not None for view in found)
    return found

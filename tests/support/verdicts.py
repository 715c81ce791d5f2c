"""Verdicts on recordings of the scheduler lab, and evidence made by hand, for tests of what a verdict says."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from kvpressure.cli.replay import Replay, ReplayTarget
from kvpressure.config.thresholds import load_thresholds
from kvpressure.diagnosis.facts import Facts
from kvpressure.diagnosis.inputs import Inputs
from kvpressure.diagnosis.judge import judge
from kvpressure.diagnosis.rule import Rule
from kvpressure.diagnosis.symptoms import judge_all
from kvpressure.features.recent import Recent
from kvpressure.model.values import Derived
from kvpressure.model.verdict import Cause
from kvpressure.model.view import EngineView
from kvpressure.scrape.recordings import TraceError

THRESHOLDS = load_thresholds()
LAB = Path(__file__).parents[1] / "fixtures" / "lab"

BUSY = Recent(polls=30, seconds=29.0, demand=20.0, waiting=12.0, waiting_ratio=1.0, usage=0.4, busy=True)


def inputs(derived: Derived | None = None, declared: dict[str, float] | None = None, **recent: object) -> Inputs:
    """A busy engine with a queue, changed as `recent` says."""
    made = dataclasses.replace(BUSY, **recent)  # type: ignore[arg-type]
    return Inputs(derived or {}, THRESHOLDS, made, declared=declared or {})


def facts(made: Inputs, told: Cause = Cause.HEALTHY) -> Facts:
    """What rules read of them while `told` is the verdict so far."""
    return Facts(made, judge_all(made), told)


def rule(made: Inputs, told: Cause = Cause.HEALTHY) -> Rule:
    """The rule that wins."""
    return judge(facts(made, told)).rule


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

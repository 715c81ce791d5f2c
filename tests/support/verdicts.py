"""Verdicts on recordings of the scheduler lab, and evidence made by hand, for tests of what a verdict says."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from kvpressure.cli.replay import Replay, ReplayTarget
from kvpressure.config.thresholds import Thresholds, load_thresholds
from kvpressure.diagnosis.facts import Facts, Inputs
from kvpressure.diagnosis.precedence import judge
from kvpressure.diagnosis.rules import Rule
from kvpressure.diagnosis.symptoms import judge_all
from kvpressure.engines.recordings import TraceError
from kvpressure.model.values import Derived
from kvpressure.model.verdict import Cause
from kvpressure.model.view import EngineView
from tests.support.polled import polled

THRESHOLDS = load_thresholds()
LAB = Path(__file__).parents[1] / "fixtures" / "lab"


BUSY: Final = {"kv_usage_ratio": 0.4, "busy": True, "demand": 20.0, "waiting": 12.0, "waiting_ratio": 1.0}
"""A busy engine with a queue."""


def made(
    asked: Mapping[str, Any],
    derived: Derived | None = None,
    thresholds: Thresholds = THRESHOLDS,
    declared: Mapping[str, float] | None = None,
) -> Inputs:
    """What polls show that have the facts `asked` (see `polled`), and the values `derived` from elsewhere."""
    found, window, signals = polled(asked, derived or {})
    return Inputs(found | (derived or {}), thresholds, window, declared=declared or {}, signals=signals)


def inputs(derived: Derived | None = None, declared: dict[str, float] | None = None, **asked: object) -> Inputs:
    """A busy engine with a queue, changed as `asked` says."""
    return made(BUSY | asked, derived, declared=declared)


def facts(made: Inputs, before: Cause = Cause.HEALTHY) -> Facts:
    """What rules read of them while `before` is the verdict so far."""
    return Facts(made, judge_all(made), before)


def rule(made: Inputs, before: Cause = Cause.HEALTHY) -> Rule:
    """The rule that wins; what it says are sentences, or nothing."""
    found = facts(made, before)
    won = judge(found).rule
    assert won.grounds(found)[-1:] in ("", ".")
    return won


def grounds(made: Inputs) -> tuple[str, str]:
    """Detail and grounds of the rule that wins."""
    found = facts(made)
    won = judge(found).rule
    return won.detail, won.grounds(found)


@functools.cache
def views(path: Path) -> tuple[EngineView, ...]:
    """Every view of a recording, each with a diagnosis; a process replays each recording once."""
    found: list[EngineView] = []
    for item in Replay(ReplayTarget("t"), THRESHOLDS).views(path):
        assert not isinstance(item, TraceError)
        found += item[1]
    assert all(view.diagnosis is not None for view in found)
    return tuple(found)

"""What optional sources add to an engine: a group of facts, registered in the file that computes it.

A file in `signals/` exports it as `OPTIONAL`, and nothing else has to know of it but the rules that read the group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, TypeVar

from kvpressure.config.target import Target
from kvpressure.model.environment import EngineReport
from kvpressure.model.plugins import exported
from kvpressure.model.samples import EngineSample
from kvpressure.model.values import Derived
from kvpressure.signals.context import Context
from kvpressure.signals.points import Point
from kvpressure.signals.windows import EngineWindow

GroupT = TypeVar("GroupT")


@dataclass(frozen=True)
class OptionalGroup(Generic[GroupT]):
    """How reports of an optional source become facts and series of each engine.

    `apply` gets a sample, its target, how many engines that has, and all reports; it returns the sample with gauges of
    what they say of it, and the share of the pool that is kept free for that, None where none is. `group` returns the
    facts out of the newest polls, None where nothing is reported now: `absent` stands for it then. `derive` returns the
    values of the file's `FAMILIES`. Rules read the group as
    `VerdictWindow.optional.get(OPTIONAL.name, OPTIONAL.absent)`.
    """

    name: str
    apply: Callable[[EngineSample, Target, int, Sequence[EngineReport]], tuple[EngineSample, float | None]]
    group: Callable[[Sequence[Point]], GroupT | None]
    absent: GroupT
    derive: Callable[[EngineWindow, Context], Derived]


@cache
def optional_groups() -> tuple[OptionalGroup[Any], ...]:
    """Return every group that a file here exports."""
    return exported("kvpressure.signals", "OPTIONAL")


def groups_of(points: Sequence[Point]) -> Mapping[str, Any]:
    """Return the groups of which the newest poll has anything, by name."""
    groups = ((optional.name, optional.group(points)) for optional in optional_groups())
    return {name: group for name, group in groups if group is not None}


def with_reports(
    sample: EngineSample, target: Target, ranks: int, reports: Sequence[EngineReport]
) -> tuple[EngineSample, float | None]:
    """Return a sample with what is reported of its engine, and the largest share of the pool that is kept free."""
    kept: list[float] = []
    for group in optional_groups():
        sample, ratio = group.apply(sample, target, ranks, reports)
        kept += [] if ratio is None else [ratio]
    return sample, max(kept, default=None)

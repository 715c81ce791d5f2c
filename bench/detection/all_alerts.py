"""How often the alerts beside the page were right: those of `--all-alerts`, and the ticket.

An alert is right where what it is about held requests up when it began to fire, or had within 45 s. One of restarts is
right where the server had started again as often, as lately, as it says.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.detection.judge import Outcome
from bench.detection.rules import CONTAINER_RESTARTS, Firing
from bench.detection.score import GRACE_SECONDS, KV, Second
from bench.detection.shipped import TICKET, Rule
from bench.detection.table import Table, percent
from kvpressure.config.thresholds import load_thresholds

RIGHTS: Final = Path(__file__).parents[2] / "rules" / "rights.json"
"""How often each was right, for the page of alerts: by alert, where and [right, of how many]."""
HELD_UP: Final = frozenset({"concurrency_bound", "compute_bound", "host_bound", "deferred"})
TROUBLE: Final = HELD_UP | {KV, "stuck"}
ABOUT: Final = {
    TICKET: HELD_UP,
    "KVPressureEngineComputeBound": frozenset({"compute_bound"}),
    "KVPressureEngineDeferred": frozenset({"deferred"}),
    "KVPressureEngineHostBound": frozenset({"host_bound"}),
    "KVPressureSequenceCapReached": frozenset({"concurrency_bound"}),
    "KVPressureSLOBurn": frozenset({KV}),
}
"""What has to be true where an alert fires; any trouble for one that is not named."""
RESTARTING: Final = "KVPressureEngineRestarting"
KUBERNETES_SECONDS, EXPORTER_SECONDS = 900.0, 600.0
"""How far the two rules of restarts look back."""


@dataclass(slots=True)
class RightScore:
    """How often an alert began to fire, at how many evaluations it fired, and of each how many were right."""

    alerts: int = 0
    right: int = 0
    evaluations: int = 0
    right_evaluations: int = 0

    def add(self, rule: Rule, outcome: Outcome, fired: Firing, track: Sequence[Second]) -> None:
        """Count one engine."""
        self.count(fired, right_seconds(rule, outcome, track), int(track[-1].t - track[0].t))

    def count(self, fired: Firing, truth: Collection[int], last: int) -> None:
        """Count one that fired so, and may in the seconds of `truth`, of which `last` is the last that is known."""
        begins, holds = ([int(t) in truth for t in times if t <= last] for times in (begins_of(fired), fired.holds))
        self.alerts, self.right = self.alerts + len(begins), self.right + sum(begins)
        self.evaluations += len(holds)
        self.right_evaluations += sum(holds)


def begins_of(fired: Firing) -> Iterable[float]:
    """When it begins to fire, each time anew."""
    shown = sorted({*fired.holds, *fired.kept})
    return [t for before, t in zip([float("-inf"), *shown], shown, strict=False) if t - before > 20.0]


def right_seconds(rule: Rule, outcome: Outcome, track: Sequence[Second]) -> Collection[int]:
    """The seconds after the first poll at which that alert may fire."""
    alert, grace = rule.name.partition(" ")[0], range(int(GRACE_SECONDS))
    if alert == RESTARTING:
        return _restarted(rule, outcome, int(track[-1].t - track[0].t) + 1)
    about = ABOUT.get(alert, TROUBLE)
    return {int(one.t - track[0].t) + late for one in track if one.accepted & about for late in grace}


def _restarted(rule: Rule, outcome: Outcome, seconds: int) -> Collection[int]:
    """Where Kubernetes counted a restart in a quarter of an hour, or the server started often in ten minutes.

    Kubernetes counts containers that start again in their pod, and none of a pod that was replaced.
    """
    if CONTAINER_RESTARTS in rule.expr:
        back, least = KUBERNETES_SECONDS, 1
        times = [] if outcome.replaced else outcome.restarts
    else:
        back, least = EXPORTER_SECONDS, int(load_thresholds().symptoms.restarting_min_count)
        times = outcome.restarts
    # The counter is read at a scrape, at most a minute later.
    late = GRACE_SECONDS + 15.0
    return {t for t in range(seconds) if sum(0 <= t - at <= back + late for at in times) >= least}


def rights_table(name: str, rights: Mapping[str, RightScore]) -> Table:
    """A row per alert beside the page that fired at all."""
    head = ("alert", "right", "of alerts", "of the evaluations at which it fired")
    rows = tuple(
        (alert, str(one.right), str(one.alerts), percent(one.right_evaluations / one.evaluations))
        for alert, one in rights.items()
    )
    return Table(f"How often the other alerts were right, {name}", head, rows)


def write_rights(by_set: Mapping[str, Mapping[str, RightScore]]) -> None:
    """Write RIGHTS: how many of each alert's were right in each set in which it fired."""
    names = sorted({alert for rights in by_set.values() for alert in rights})
    found = {
        alert: {
            where: [rights[alert].right, rights[alert].alerts] for where, rights in by_set.items() if alert in rights
        }
        for alert in names
    }
    RIGHTS.write_text(json.dumps(found, indent=1) + "\n")

"""One look at workloads: a line for each replica, hottest first, then what limits the workload, and one first step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kvpressure.advice.workload import (
    ROUTE_BY_LOAD,
    Workload,
    demand_of,
    demand_replicas,
    demands_of,
    unevenness,
    workload_of,
)
from kvpressure.cli.findings import Finding, worst_first
from kvpressure.config.thresholds import load_thresholds
from kvpressure.exposition.wording import count, failures_text, meaning, percent, quantity
from kvpressure.model.catalogue import CATALOGUE, NOT_KNOWN
from kvpressure.model.target_status import ReplicaState
from kvpressure.model.values import at
from kvpressure.model.view import TROUBLE
from kvpressure.printable import clean

NOBODY: Final = Workload("", "", "", "")
"""The workload of a target that was never read."""

_VALUES: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "running": ("sequences", ("requests_running",)),
    "waiting": ("sequences", ("requests_waiting",)),
    "cache": ("ratio", ("kv_cache_usage_ratio",)),
    "tokens/s": ("", ("tokens_per_second", "generation")),
}
_STYLES: Final = {"served": "green", "unknown": "yellow"}


@dataclass(frozen=True, slots=True)
class WorkloadFinding:
    """One workload: its replicas, hottest first, and its verdict, `word` for programs and `text` for people.

    Its first step is `step`, or where that is "" the first one of `worst`; nothing is to be done where that is None.
    """

    workload: Workload
    replicas: tuple[Finding, ...]
    word: str
    text: str
    step: str = ""
    worst: Finding | None = None


def workloads(findings: Iterable[Finding]) -> list[WorkloadFinding]:
    """Return the findings by workload, the hottest first. A target that was never read is of the only one, if so."""
    groups: dict[tuple[str, Workload], list[Finding]] = {}
    unread = []
    for finding in sorted(worst_first(findings), key=_heat):
        if finding.view is None:
            unread.append(finding)
        else:
            groups.setdefault((finding.cluster, workload_of(finding.view)), []).append(finding)
    if len(groups) == 1:
        ((key, known),) = groups.items()
        return [_judged(key[1], [*unread, *known])]
    return [
        *(_judged(NOBODY, [finding]) for finding in unread),
        *(_judged(workload, found) for (_, workload), found in groups.items()),
    ]


def workload_report(found: WorkloadFinding) -> list[RenderableType]:
    """Return a line for each replica, and the verdict of the workload."""
    of = found.workload
    place = " in ".join(part for part in (of.name, of.namespace) if part)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("replica", "state", "verdict", *_VALUES):
        table.add_column(name, overflow="fold", justify="right" if name in _VALUES else "left")
    ports = {finding.target.rpartition(":")[2] for finding in found.replicas}
    port = f":{min(ports)}" if of.namespace and len(ports) == 1 else ""
    for finding in found.replicas:
        derived = {} if finding.view is None else finding.view.derived
        numbers = ((unit, at(derived, *path)) for unit, path in _VALUES.values())
        shown = ("" if value is None else quantity(value, unit) for unit, value in numbers)
        name = replica_name(finding, found.replicas).removeprefix(f"{of.namespace}/").removesuffix(port)
        table.add_row(clean(name), finding.state or "?", _verdict(finding), *shown)
    title = "  ".join(part for part in (of.model_name, place, of.role) if part)
    problems = dict.fromkeys(f"{finding.target}: {note}" for finding in found.replicas for note in _notes(finding))
    return [
        Text(clean(title), style="bold underline"),
        table,
        *(Text(clean(problem), style="yellow") for problem in problems),
        Text(clean(f"workload: {found.text}"), style=_STYLES.get(found.word, "bold red")),
    ]


def workloads_json(findings: Iterable[Finding]) -> dict[str, object]:
    """Return the verdict on each workload for programs."""
    return {"workloads": [_json(found) for found in workloads(findings)]}


def _json(found: WorkloadFinding) -> dict[str, object]:
    states = Counter(finding.state for finding in found.replicas)
    actions = found.worst.actions if found.worst is not None else ()
    return {
        **found.workload._asdict(),
        "replicas": [finding.target for finding in found.replicas],
        "states": {state.value: states[state] for state in ReplicaState},
        "verdict": found.word,
        "text": found.text,
        "first": found.step or (actions[0].title if actions else None),
    }


def replica_name(finding: Finding, among: Sequence[Finding]) -> str:
    """Return the target, with the rank where several are on its page."""
    several = sum(other.target == finding.target for other in among) > 1
    return f"{finding.target} rank {finding.view.key.rank}" if finding.view is not None and several else finding.target


def _heat(finding: Finding) -> tuple[int, float]:
    """Return a sort key: what is lost, then the share of its requests that a replica has no room for."""
    demand = None if finding.view is None else demand_of(finding.view)
    return (0 if finding.state in _LOST else 1 if finding.cause in TROUBLE else 2), -(demand or 0.0)


_LOST: Final = (ReplicaState.GONE, ReplicaState.STUCK)


def _notes(finding: Finding) -> Iterator[str]:
    """Yield what is the matter with a replica beside its verdict: not read, requests that fail, a loop of restarts."""
    if finding.problem:
        yield finding.problem
    if finding.view is not None and (failures := failures_text(finding.view.derived)):
        yield failures
    restarts = finding.diagnosis.symptoms.get("restarting") if finding.diagnosis is not None else None
    if restarts is not None and restarts.state:
        yield restarts.text


def _verdict(finding: Finding) -> Text:
    label = CATALOGUE[finding.cause].label
    before = "" if finding.view is None or finding.view.silence is None else "before: "
    style = {0: "green", 2: "yellow"}.get(finding.exit_code, "bold red")
    return Text(f"{before}{label}", style=style)


def _judged(workload: Workload, found: Sequence[Finding]) -> WorkloadFinding:
    """Return the verdict on a workload's replicas: lost ones first, then room of others, then what limits them."""
    thresholds, total = load_thresholds(), len(found)
    views = [finding.view for finding in found if finding.view is not None]
    states = Counter(finding.state for finding in found)
    troubles = Counter(CATALOGUE[finding.cause].label for finding in found if finding.cause in TROUBLE)
    worst = worst_first(found)[0]
    demand = _demand(found)
    if lost := [finding for finding in found if finding.state in _LOST]:
        text = ", ".join(f"{states[state]} {state}" for state in _LOST if states[state]) + f" of {_replicas(total)}"
        serving = [finding for finding in found if finding.state not in _LOST]
        others = f"; of the others: {_judged(workload, serving).text}" if serving else ""
        worst = worst_first(lost)[0]
        step = "" if worst.actions else f"See whether the server of {worst.target} runs, and its log"
        return WorkloadFinding(workload, tuple(found), "lost", text + others, step, worst)
    if (uneven := unevenness(views, thresholds)) is not None:
        text = (
            f"uneven: {percent(uneven.fits_ratio)} of what waits on {_replicas(len(uneven.hot))} would fit on the "
            f"{len(uneven.free)} of {total} that have room{uneven.reason}"
        )
        return WorkloadFinding(workload, tuple(found), "uneven", text, ROUTE_BY_LOAD)
    if troubles:
        what = ", ".join(f"{label} on {number}" for label, number in troubles.most_common())
        return WorkloadFinding(workload, tuple(found), "limited", f"{what} of {_replicas(total)}{demand}", "", worst)
    if states[ReplicaState.UNREADABLE]:
        text = f"{states[ReplicaState.UNREADABLE]} of {_replicas(total)} cannot be read"
        return WorkloadFinding(workload, tuple(found), "unknown", text)
    if any(finding.cause is NOT_KNOWN for finding in found):
        why = {meaning(finding.diagnosis) for finding in found if finding.diagnosis and finding.cause is NOT_KNOWN}
        return WorkloadFinding(workload, tuple(found), "unknown", " ".join(sorted(why)) or "no verdict", "", worst)
    return WorkloadFinding(workload, tuple(found), "served", f"all demand is served by {_replicas(total)}{demand}")


def _demand(found: Sequence[Finding]) -> str:
    """Return how many replicas the demand fills, "" where that is not known."""
    views = [(finding.target, finding.view) for finding in found if finding.view is not None]
    told = [(target, demands_of(view.derived)) for target, view in views if "demand_replicas" in view.derived]
    needed = max(demand_replicas(told).values(), default=None)
    return "" if needed is None else f"; the demand fills {count(needed)}"


def _replicas(number: int) -> str:
    return f"{number} replica{'s' * (number != 1)}"

"""The newest part of a container's log, and of the one before it, read through the API server and counted by kind."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from kvpressure.kubernetes.client import KubeClient
from kvpressure.kubernetes.errors import Action, KubeError
from kvpressure.model.environment import LOG_KINDS, ContainerId, LogReport
from kvpressure.sources.logs.classify import is_telling
from kvpressure.sources.logs.lines import Line
from kvpressure.sources.logs.tally import Allowance, Tally

TAIL_LINES: Final = 5000
LARGEST_LOG_BYTES: Final = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class PodLogs:
    """A container's log and that of the one before it; None where it was not or could not be read: see `problem`."""

    current: LogReport | None = None
    previous: LogReport | None = None
    problem: str = ""

    @property
    def whole(self) -> LogReport | None:
        """Both logs as one report; lines and times are the newest."""
        if self.current is None or self.previous is None:
            return self.current or self.previous
        old, new = self.previous, self.current
        counts = {kind: old.counts[kind] + new.counts[kind] for kind in LOG_KINDS}
        return replace(new, counts=counts, latest={**old.latest, **new.latest}, lines={**old.lines, **new.lines})


async def read_logs(client: KubeClient, id_: ContainerId, now: float, *, restarted: bool) -> PodLogs:
    """Return the current log, and the previous container's where it `restarted`. Raises nothing for unreadable logs."""
    found = PodLogs()
    for previous in (False, True) if restarted else (False,):
        try:
            report = await read_log(client, id_, now, previous=previous)
        except KubeError as error:
            found = replace(found, problem=found.problem or f"{error}")
        else:
            found = replace(found, previous=report) if previous else replace(found, current=report)
    return found


async def read_log(client: KubeClient, id_: ContainerId, now: float, *, previous: bool) -> LogReport:
    """Return the last `TAIL_LINES` lines, at most `LARGEST_LOG_BYTES`. Raises KubeError, also without a container."""
    query = {
        "container": id_.container,
        "tailLines": str(TAIL_LINES),
        "limitBytes": str(LARGEST_LOG_BYTES),
        "timestamps": "true",
        "previous": "true" if previous else "false",
    }
    path = f"/api/v1/namespaces/{id_.namespace}/pods/{id_.pod}/log"
    action = Action("get", "pods/log", id_.namespace, id_.pod)
    return report_of(await client.text(path, action, query, LARGEST_LOG_BYTES), id_, now)


def report_of(log: bytes, id_: ContainerId, now: float) -> LogReport:
    """Count the incidents of a log whose lines begin with their times, as the API server writes them. PURE."""
    tally, allowance = Tally(id_, since=0.0), Allowance(shares=2)
    # Not splitlines(): it also cuts at separators that a line may quote, and the rest would pass for a line of its own.
    for raw in log.decode(errors="replace").split("\n"):
        stamp, space, rest = raw.partition(" ")
        line = Line(rest, stamp)
        if not is_telling(raw) or not allowance.covers(len(raw)):
            continue
        tally.take(line if space and line.t is not None else Line(raw), now, old=True)
    return tally.report(now)

"""A container's log and the previous one's: of each the newest part, counted by kind."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from kvpressure.kubernetes import KubeError
from kvpressure.kubernetes.kubectl.program import Kubectl
from kvpressure.model.environment import LOG_KINDS, ContainerId, LogReport
from kvpressure.sources.logs.classify import is_telling
from kvpressure.sources.logs.lines import Line
from kvpressure.sources.logs.tally import Allowance, Tally

TAIL_LINES: Final = 5000
MAX_LOG_BYTES: Final = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class PodLogs:
    """Logs of a container and of the previous one; None where there is none, or it cannot be read: see `problem`."""

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


async def read_logs(kubectl: Kubectl, id_: ContainerId, now: float, *, restarted: bool) -> PodLogs:
    """Return the current log, and the previous container's where it `restarted`; never raises.

    Of each, the last `TAIL_LINES` lines, at most `MAX_LOG_BYTES`.
    """
    logs = PodLogs()
    which = f"--container={id_.container}", "--timestamps", f"--tail={TAIL_LINES}", f"--limit-bytes={MAX_LOG_BYTES}"
    for previous in (False, True) if restarted else (False,):
        words = (*which, "--previous") if previous else which
        try:
            text = await kubectl.logs(id_.namespace, id_.pod, *words, cap_bytes=MAX_LOG_BYTES)
        except KubeError as error:
            logs = replace(logs, problem=logs.problem or f"{error}")
        else:
            report = report_of(text, id_, now)
            logs = replace(logs, previous=report) if previous else replace(logs, current=report)
    return logs


def report_of(log: bytes, id_: ContainerId, now: float) -> LogReport:
    """Count the incidents of a log whose lines begin with their times, as the API server writes them. PURE."""
    tally, allowance = Tally(id_, since=0.0), Allowance(shares=2)
    # Not splitlines(), which also splits at separators within a line.
    for raw in log.decode(errors="replace").split("\n"):
        stamp, space, rest = raw.partition(" ")
        line = Line(rest, stamp)
        if not is_telling(raw) or not allowance.covers(len(raw)):
            continue
        tally.take(line if space and line.t is not None else Line(raw), now, old=True)
    return tally.report(now)

"""CPU pressure of the node and throttling of the engines' containers, read every few seconds.

A container's control group is found by the runtime's id of it. Both drivers of the kubelet and all runtimes put the id
last in the directory's name: `cri-containerd-<id>.scope`, `crio-<id>.scope`, `docker-<id>.scope` (systemd), `<id>`
(cgroupfs), `...slice:cri-containerd:<id>` (drivers that differ). What is above it (`kubepods.slice/...`,
`kubepods/burstable/pod<uid>`, or a whole node nested in another's container) is walked, in bounds.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Final

from kvpressure.config.settings.model import HostSettings
from kvpressure.model.environment import ContainerId, Environment, HostReport
from kvpressure.model.errors import UnreadableError
from kvpressure.model.samples import SourceHealth
from kvpressure.net.budget import BUDGET
from kvpressure.net.guard import Guard
from kvpressure.net.schedule import Clock, SystemClock
from kvpressure.net.threads import SingleFlightThread
from kvpressure.printable import brief
from kvpressure.sources.source import Known, Registration, Source

NAME: Final = "host"
INTERVAL_SECONDS: Final = 5.0
SEARCH_SECONDS: Final = 30.0
"""Time between two walks of the cgroups for containers that were not found."""
_READ_BYTES: Final = 4096
_NO_PSI: Final = (errno.ENOENT, errno.ENOTDIR, errno.EOPNOTSUPP, errno.EACCES, errno.EPERM)
"""Switched off, not there, or kept from containers: newer SELinux policies give the files a type of their own."""


MAX_DEPTH: Final = 12
MAX_DIRECTORIES: Final = 20_000
_V1_CONTROLLERS: Final = ("cpu,cpuacct", "cpu", "cpuacct,cpu")
_ID: Final = re.compile(r"[A-Za-z0-9]{12,128}")
_WORKLOADS_FIRST: Final = ("kubepods", "kubelet", "docker", "machine", "system.slice")
_SOME: Final = re.compile(r"^some\b.*\btotal=(\d{1,20})\b", re.MULTILINE)
_PERIODS: Final = re.compile(r"^nr_periods (\d{1,20})$", re.MULTILINE)
_THROTTLED: Final = re.compile(r"^nr_throttled (\d{1,20})$", re.MULTILINE)


def stalled_microseconds(text: str) -> int | None:
    """Return how long some task waited for a CPU since boot, of `/proc/pressure/cpu`; None where the text has none.

    `total=` of the line `some` (Linux, Documentation/accounting/psi.rst).
    """
    match = _SOME.search(text)
    return int(match[1]) if match else None


def pressure_ratio(before: int, after: int, seconds: float) -> float | None:
    """Return the share of `seconds` in which some task waited: (total after - total before) / time between.

    The difference of the total covers all of the time between two readings; `avg10` would alias. None when the total
    went back (another machine's file) or no time passed.
    """
    if seconds <= 0 or after < before:
        return None
    return min(1.0, (after - before) / 1e6 / seconds)


@dataclass(frozen=True, slots=True)
class Periods:
    """Scheduling periods in which a cgroup was runnable, and those in which it hit its CPU limit."""

    periods: int
    throttled: int


def periods(text: str) -> Periods | None:
    """Return `nr_periods` and `nr_throttled` of a `cpu.stat`, the same in both versions of cgroups; None without them.

    Linux, Documentation/admin-guide/cgroup-v2.rst and Documentation/scheduler/sched-bwc.rst.
    """
    total, throttled = _PERIODS.search(text), _THROTTLED.search(text)
    return Periods(int(total[1]), int(throttled[1])) if total and throttled else None


def throttled_ratio(before: Periods, after: Periods) -> float | None:
    """Return the share of the periods between two readings in which the container ran into its limit.

    None when there were no periods: it has no limit, or did not run, which is not the same as never throttled. None too
    when the counters went back (a new container under the same name).
    """
    passed, throttled = after.periods - before.periods, after.throttled - before.throttled
    return min(1.0, throttled / passed) if passed > 0 and throttled >= 0 else None


def find(root: Path, ids: Collection[str]) -> Mapping[str, Path]:
    """Return each container id's `cpu.stat` below `root`, where it has one; one walk for all, no links are followed."""
    missing = {name for name in ids if _ID.fullmatch(name)}
    paths: dict[str, Path] = {}
    top = cpu_hierarchy(root)
    for directory, names, _ in islice(os.walk(top), MAX_DIRECTORIES):
        if not missing:
            break
        names.sort(key=lambda name: not name.startswith(_WORKLOADS_FIRST))
        for name in names:
            path = Path(directory, name, "cpu.stat")
            if (found := container_id(name)) in missing and path.is_file():
                paths[str(found)] = path
                missing.discard(str(found))
        if len(Path(directory).relative_to(top).parts) >= MAX_DEPTH:
            names.clear()
    return paths


def cpu_hierarchy(root: Path) -> Path:
    """Return where CPU limits live below the mount of the cgroups: v2 has one hierarchy, v1 one for each controller."""
    if (root / "cgroup.controllers").exists():
        return root
    return next((root / name for name in _V1_CONTROLLERS if (root / name).is_dir()), root)


def container_id(name: str) -> str | None:
    """Return the container's id in a cgroup's name, None for other cgroups (slices, pods, conmon's)."""
    stem = name.removesuffix(".scope")
    prefix, _, last = stem.rpartition(":") if ":" in stem else stem.rpartition("-")
    return last if _ID.fullmatch(last) and "conmon" not in prefix and not name.endswith(".slice") else None


@dataclass(frozen=True, slots=True)
class _Reading:
    """The kernel's counters at one moment of the monotonic clock; `lacks` are words for what this machine has not."""

    at: float
    stalled_microseconds: int | None = None
    periods: Mapping[ContainerId, tuple[str, Periods]] = field(default_factory=dict)
    lacks: frozenset[str] = frozenset()


class HostSource(Source):
    """Reads PSI and `cpu.stat`; ratios are over the time between the two newest readings.

    PSI that is not there or not readable, and cgroups that are not mounted here, are no failure: their values are
    absent, and `errors` of the health counts "no_psi" and "no_cgroup" once.
    """

    def __init__(self, settings: HostSettings, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock: Clock = clock or SystemClock()
        share = BUDGET.share(NAME)
        self._thread = SingleFlightThread(self._look, share)
        self._guard = Guard[_Reading](
            NAME,
            "",
            interval_seconds=INTERVAL_SECONDS,
            clock=clock,
            silence="no answer of procfs and cgroups",
            share=share,
        )
        self._report = HostReport(self._clock.wall())
        self._containers: Mapping[ContainerId, str] = {}
        self._before: _Reading | None = None
        self._lacks: frozenset[str] = frozenset()
        self._paths: dict[str, Path] = {}
        self._searched = float("-inf")
        self._searched_for: frozenset[str] = frozenset()

    @property
    def report(self) -> HostReport:
        """The newest report; what is not known in it is absent."""
        return self._report if self._guard.up else HostReport(self._clock.wall())

    def health(self) -> tuple[SourceHealth, ...]:
        """Return one record; none when it is switched off."""
        return (self._guard.health(),) if self._settings.enabled else ()

    def facts(self, known: Known) -> Environment:
        """Return the newest report; from now on of the containers that are known."""
        containers = known.environment.containers.values()
        self._containers = {state.id: state.runtime_id for state in containers if state.runtime_id}
        return Environment(host=self.report)

    async def run(self) -> None:
        """Read at every interval until cancelled; returns at once when switched off."""
        if self._settings.enabled:
            await self._guard.run(self._thread.get, self._take)

    async def read(self) -> None:
        """Read once. Raises nothing but cancellation."""
        await self._guard.attempt(self._thread.get, self._take)

    def _take(self, reading: _Reading) -> None:
        before = self._before if self._before is not None and self._guard.up else reading
        self._report, self._before = _report(self._clock.wall(), before, reading), reading
        for word in reading.lacks - self._lacks:
            self._guard.count(word)
        self._lacks |= reading.lacks

    # What follows runs in a thread.

    def _look(self) -> _Reading:
        containers, now = self._containers, self._clock.monotonic()
        self._search(frozenset(containers.values()), now)
        stats = {
            container: (runtime_id, stat)
            for container, runtime_id in containers.items()
            if (stat := self._periods(runtime_id)) is not None
        }
        lacks = {"no_cgroup"} if containers and not self._paths else set()
        stalled = self._stalled()
        return _Reading(now, stalled, stats, frozenset(lacks | ({"no_psi"} if stalled is None else set())))

    def _stalled(self) -> int | None:
        """Return PSI's total; None where there is none, it is switched off, or may not be read. Raises SourceError."""
        path = self._settings.proc_dir / "pressure" / "cpu"
        try:
            return stalled_microseconds(_text(path))
        except OSError as error:
            if error.errno in _NO_PSI:
                return None
            raise UnreadableError(f"{brief(path)} cannot be read: {brief(error.strerror or error)}") from None

    def _search(self, ids: frozenset[str], now: float) -> None:
        """Look for the cgroups of containers that are new, at once, and of those not found, now and then."""
        self._paths = {name: path for name, path in self._paths.items() if name in ids}
        missing = ids - self._paths.keys()
        if not missing or (missing <= self._searched_for and now - self._searched < SEARCH_SECONDS):
            return
        self._paths |= find(self._settings.cgroup_dir, missing)
        self._searched, self._searched_for = now, ids

    def _periods(self, runtime_id: str) -> Periods | None:
        path = self._paths.get(runtime_id)
        if path is None:
            return None
        try:
            return periods(_text(path))
        except OSError:
            del self._paths[runtime_id]  # the container has ended; if not, its cgroup is searched for again
            return None


def _report(t: float, before: _Reading, after: _Reading) -> HostReport:
    pressure = None
    if before.stalled_microseconds is not None and after.stalled_microseconds is not None:
        seconds = after.at - before.at
        pressure = pressure_ratio(before.stalled_microseconds, after.stalled_microseconds, seconds)
    ratios = {
        container: ratio
        for container, (runtime_id, stat) in after.periods.items()
        if (was := before.periods.get(container)) is not None
        and was[0] == runtime_id
        and (ratio := throttled_ratio(was[1], stat)) is not None
    }
    return HostReport(t, pressure, ratios)


def _text(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(_READ_BYTES).decode("ascii", "replace")


SOURCE: Final = Registration[HostSettings](
    NAME,
    lambda settings, wiring: [HostSource(settings, wiring.clock)],
    {NAME: "CPU and memory of this machine"},
    section="host",
    settings=HostSettings,
)

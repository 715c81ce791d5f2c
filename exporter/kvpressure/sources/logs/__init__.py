"""All logs of this node's engines, read once a second by one thread."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import structlog

from kvpressure.config.settings.model import LogsSettings
from kvpressure.model.environment import ContainerId, ContainerState, Environment, LogReport
from kvpressure.model.errors import MissingError, SourceError, TimedOutError
from kvpressure.model.samples import SourceHealth
from kvpressure.net.budget import BUDGET
from kvpressure.net.guard import Health
from kvpressure.net.schedule import Clock, SystemClock, Ticks, spread
from kvpressure.net.threads import SingleFlightThread, bug
from kvpressure.printable import brief
from kvpressure.sources.logs.follower import NAME, Follower
from kvpressure.sources.logs.journal import JournalLog
from kvpressure.sources.logs.pod_log import FileLog, PodLog, directory_of
from kvpressure.sources.logs.safe_open import PermissionDeniedError, Tree
from kvpressure.sources.source import Known, Registration, Source

SWEEP_SECONDS: Final = 1.0
DEADLINE_SECONDS: Final = 10.0
_CLOSE_SECONDS: Final = 1.0

log = structlog.get_logger("kvpressure.sources")

_Key = tuple[ContainerId, str]  # a pod made anew under its old name has another uid


@dataclass(frozen=True, slots=True)
class _Swept:
    """The result of one round over all logs; `error` is why the directory's logs could not be read."""

    reports: Mapping[ContainerId, LogReport] = field(default_factory=dict)
    health: tuple[SourceHealth, ...] = ()
    error: SourceError | None = None


class LogsSource(Source):
    """Counts what the engines' logs report; counting begins when this is made.

    The daemon logs a line when `health` changes; logged here is only that `auto` found no directory.
    """

    def __init__(self, settings: LogsSettings, clock: Clock | None = None) -> None:
        self._settings = settings
        self._clock: Clock = clock or SystemClock()
        self._since = self._clock.wall()
        self._tree = Tree(settings.directory, settings.link_directories)
        self._thread = SingleFlightThread(self._sweep)
        self._share = BUDGET.share(NAME)
        self._health = Health(NAME, "", self._since)
        self._containers: tuple[ContainerState, ...] = ()
        self._followers: dict[_Key, Follower] = {}
        self._swept = _Swept()
        self._absent = ""

    @property
    def problems(self) -> tuple[str, ...]:
        """Why pods' logs are not read although nothing failed: on `auto`, their directory is not there."""
        return (self._absent,) if self._absent and self._containers else ()

    @property
    def reports(self) -> Mapping[ContainerId, LogReport]:
        """The newest report of each log that could be read."""
        return self._swept.reports

    def health(self) -> tuple[SourceHealth, ...]:
        """Return one record for all of it (target "") and one for each log; none where no log is to be read."""
        pods_read = self._containers and not self._absent
        if not (self._settings.files or pods_read) or self._settings.enabled == "false":
            return ()
        return (self._health.latest, *self._swept.health)

    def facts(self, known: Known) -> Environment:
        """Return what the logs have said; from now on those of the containers that are known."""
        self.follow(known.environment.containers.values())
        return Environment(logs=self.reports, problems=self.problems)

    def follow(self, containers: Iterable[ContainerState]) -> None:
        """Read the logs of these containers and no others from now on; those without a pod have none here."""
        self._containers = tuple(state for state in containers if state.id.pod and state.pod_uid)

    async def run(self) -> None:
        """Read every second until cancelled; files and children are closed when this returns."""
        ticks = Ticks(SWEEP_SECONDS, spread(NAME))
        try:
            while True:
                await self._clock.sleep_until(ticks.due(ticks.upcoming(self._clock.monotonic())))
                await self.sweep()
                # A virtual clock may stand still: two sweeps in one tick would read more than the budget.
                await self._clock.sleep_until(self._clock.monotonic() + SWEEP_SECONDS / 2)
        finally:
            await self.aclose()

    async def sweep(self) -> None:
        """Read all logs once. Raises nothing but cancellation."""
        if self._settings.enabled == "false":
            return
        began, now = self._clock.monotonic(), self._clock.wall()
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                swept = await self._thread.get()
        except TimeoutError:
            late = f"reading the logs took more than {DEADLINE_SECONDS:g} s; it hangs in the kernel"
            self._health.down(now, TimedOutError(late))
            return
        except Exception as error:  # noqa: BLE001 the next sweep comes
            self._health.down(now, bug(error))
            return
        self._swept, took, found = swept, self._clock.monotonic() - began, swept.error
        is_off = isinstance(found, MissingError) and self._settings.enabled == "auto"
        if self._containers:
            before, self._absent = self._absent, found.sentence if found is not None and is_off else ""
            if self._absent and not before:
                log.info("pod logs are not read", reason=self._absent)
        if found is not None and not is_off:
            self._health.down(now, found, took)
        else:
            self._health.up(now, took)

    async def aclose(self) -> None:
        """Close everything; a thread that hangs in the kernel is left behind."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._thread.ended()
                await asyncio.to_thread(self._close)

    # What follows runs in a thread.

    def _sweep(self) -> _Swept:
        containers, now = self._containers, self._clock.wall()
        error = self._directory_error() if containers else None
        self._choose(() if error is not None else containers)
        # The cheapest first: a log that floods, which uses up the budget, delays no other.
        for follower in sorted(self._followers.values(), key=lambda follower: follower.cost):
            follower.read(round(self._settings.max_bytes_per_second * SWEEP_SECONDS), now, self._share)
        followers = self._followers.values()
        # A container whose image is pulled, or that has ended, need not have a log: those of evicted pods go at once.
        idle = {_key(state) for state in containers if not state.runtime_id or state.started is None}
        return _Swept(
            reports={f.id: report for f in followers if (report := f.report()) is not None},
            health=tuple(
                f.health
                for key, f in self._followers.items()
                if key not in idle or f.health.reason != MissingError.reason
            ),
            error=error,
        )

    def _directory_error(self) -> SourceError | None:
        directory = self._settings.directory
        try:
            if directory.is_dir():
                return None
        except OSError as error:
            return PermissionDeniedError(f"{brief(directory)} cannot be looked into: {brief(error.strerror)}")
        return MissingError(
            f"{brief(directory)} is not there, so engines' logs are not read; mount it, or set logs.enabled to false",
        )

    def _choose(self, containers: tuple[ContainerState, ...]) -> None:
        """Follow the logs of these containers and the settings' files, and close the rest."""
        chosen: dict[_Key, Follower] = {}
        for file in self._settings.files:
            key = (ContainerId("", "", file.target), "")
            reader = FileLog(file.path) if file.path is not None else JournalLog(file.journal_unit or "")
            chosen[key] = self._followers.get(key) or Follower(key[0], reader, self._since)
        for state in containers:
            key = _key(state)
            chosen[key] = self._followers.get(key) or Follower(
                state.id, PodLog(self._tree, directory_of(state)), self._since
            )
        for key in self._followers.keys() - chosen.keys():
            self._followers[key].close()
        self._followers = chosen

    def _close(self) -> None:
        for follower in self._followers.values():
            follower.close()
        self._followers = {}


def _key(state: ContainerState) -> _Key:
    return state.id, state.pod_uid


SOURCE: Final = Registration[LogsSettings](
    NAME,
    lambda settings, wiring: [LogsSource(settings, wiring.clock)],
    {NAME: "Engine logs"},
    section="logs",
    settings=LogsSettings,
    logged_by_exporter=True,
)

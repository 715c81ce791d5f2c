"""Reads the ConfigMaps of the `--config` files of this node's engines, by GET, once for each start of a container.

A server reads its file when it starts, so nothing is watched: a ConfigMap is requested when a container that mounts it
has started, until there is a response. `objects.config_maps` says which text is in force.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

from kvpressure.config.settings.kubernetes import KubernetesSettings
from kvpressure.kubernetes import ForbiddenError, KubeError
from kvpressure.kubernetes.objects import Object
from kvpressure.kubernetes.objects.config_maps import in_force
from kvpressure.kubernetes.objects.pods import MapAtStart, PodReader, PodRecord
from kvpressure.kubernetes.watch.resource import SHARE, Tuning, refused_user
from kvpressure.kubernetes.watch.stores import PodStore
from kvpressure.model.samples import SourceHealth
from kvpressure.net.guard import Guard
from kvpressure.net.schedule import Clock
from kvpressure.net.threads import on_share
from kvpressure.printable import brief

if TYPE_CHECKING:
    from kvpressure.kubernetes.watch.connection import Connection

CONFIG_MAPS: Final = "kubernetes_config_maps"
MAX_MAPS: Final = 64
"""ConfigMaps of all engines of a node."""

MAX_NAMESPACES: Final = 32
SHOWN: Final = 8
UNREAD: Final = (
    "Limits in --config files that are mounted from ConfigMaps are not read (pods: {}). In the Helm chart set "
    "kubernetes.configMaps.enabled=true; it costs the permission to get ConfigMaps, everywhere or in the namespaces "
    "of kubernetes.configMaps.namespaces"
)
_NOT_FOUND: Final = 404


class ConfigMaps:
    """What was read of ConfigMaps, with one task per namespace, since permissions are per namespace.

    `reader` reads pods with it; pods in `stores` are read again once a ConfigMap of theirs was read. `end_task` cancels
    a task and waits for it later.
    """

    def __init__(
        self,
        settings: KubernetesSettings,
        connect: Callable[[], Connection],
        stores: Callable[[], Iterable[PodStore]],
        end_task: Callable[[asyncio.Task[None]], None],
        clock: Clock,
        tuning: Tuning,
    ) -> None:
        self._connect, self._stores, self._end_task = connect, stores, end_task
        self._clock, self._tuning = clock, tuning
        self._on, self._allowed = settings.config_maps, frozenset(settings.config_map_namespaces)
        self._answers: dict[MapAtStart, Object | str] = {}
        """The texts in force at a start, or why they are not known."""
        self._namespaces: dict[str, _Namespace] = {}
        self.reader = PodReader(settings, self._in_force)

    def _in_force(self, at_start: MapAtStart) -> Object | None:
        """Return a ConfigMap's texts where they are known. Safe from any thread."""
        answer = self._answers.get(at_start)
        return None if isinstance(answer, str) else answer

    def reads(self, namespace: str) -> bool:
        """Return whether ConfigMaps of this namespace are read."""
        return self._on and (not self._allowed or namespace in self._allowed)

    def follow(self) -> None:
        """Read the ConfigMaps that pods need, and forget those that none of them mounts."""
        used = {one for record in self._records() for one in record.maps if self.reads(record.namespace)}
        kept = set(sorted({name for name, _ in used})[:MAX_MAPS])
        self._answers = {one: answer for one, answer in self._answers.items() if one in used}
        unread = {one for record in self._records() if record.raw for one in record.maps if one[0] in kept}
        namespaces = [*dict.fromkeys(namespace for namespace, _ in sorted(kept))][:MAX_NAMESPACES]
        for namespace in self._namespaces.keys() - set(namespaces):
            self._end_task(self._namespaces.pop(namespace).task)
        for namespace in namespaces:
            if namespace not in self._namespaces:
                reader = _Namespace(namespace, self._connect(), self._take, self._clock, self._tuning)
                self._namespaces[namespace] = reader
            requested = {one for one in unread - self._answers.keys() if one[0][0] == namespace}
            self._namespaces[namespace].request(requested)

    def health(self) -> Iterator[SourceHealth]:
        """Yield one record for each namespace with a ConfigMap to read."""
        for namespace in self._namespaces.values():
            yield namespace.guard.health()

    def hints(self) -> Iterator[str]:
        """Yield why limits in configuration files are not known, and what to do; not where a source's error says it."""
        unread = [record.key for record in self._records() if record.maps and not self.reads(record.namespace)]
        if unread:
            yield UNREAD.format(brief(", ".join(unread[:SHOWN]), 200))
        whys = ((record.key, one[0][1], self._answers.get(one)) for record in self._records() for one in record.maps)
        for key, name, why in islice((each for each in whys if isinstance(each[2], str)), SHOWN):
            yield f"Limits in the --config file of pod {key} are not known: ConfigMap {name}: {why}"

    def end(self) -> None:
        """End every task."""
        for namespace in self._namespaces.values():
            self._end_task(namespace.task)
        self._namespaces = {}

    def _records(self) -> Iterator[PodRecord]:
        return (record for store in self._stores() for record in store.records.values())

    async def _take(self, at_starts: Collection[MapAtStart], config_map: Object | None) -> None:
        self._answers |= {one: in_force(config_map, one[1]) for one in at_starts}
        for store in [*self._stores()]:
            for record in [
                pod for pod in store.records.values() if pod.raw and not set(at_starts).isdisjoint(pod.maps)
            ]:
                again = await on_share(SHARE, lambda raw: self.reader.read(json.loads(raw)), record.raw)
                if again is not None and store.records.get(record.key) is record:  # else it was replaced meanwhile
                    store.changed(again, deleted=False)


class _Namespace:
    """Reads the ConfigMaps of one namespace until each start has a response."""

    def __init__(
        self,
        namespace: str,
        connection: Connection,
        take: Callable[[Collection[MapAtStart], Object | None], Awaitable[None]],
        clock: Clock,
        tuning: Tuning,
    ) -> None:
        self._namespace, self._connection, self._take = namespace, connection, take
        self._clock, self._tuning = clock, tuning
        self._requested: set[MapAtStart] = set()
        self._more = asyncio.Event()
        self.guard: Guard[bool] = Guard(
            CONFIG_MAPS,
            namespace,
            interval_seconds=tuning.retry_seconds,
            deadline_seconds=tuning.list_seconds,
            clock=clock,
        )
        self.task = asyncio.get_running_loop().create_task(self._run(), name=f"{CONFIG_MAPS} {namespace}")

    def request(self, at_starts: set[MapAtStart]) -> None:
        """Set the ConfigMaps to read: those whose texts at a container's start are not known."""
        self._requested = at_starts
        if at_starts:
            self._more.set()

    async def _run(self) -> None:
        failures = 0
        try:
            while True:
                await self._more.wait()
                self._more.clear()
                while self._requested:
                    answered = await self.guard.attempt(self._read) and not self._requested
                    failures = 0 if answered else failures + 1
                    pause = self._tuning.pause_seconds(failures, self.guard.failure)
                    await self._clock.sleep_until(self._clock.monotonic() + pause)
        finally:
            await self._connection.aclose()

    async def _read(self) -> bool:
        for name in sorted({name for name, _ in self._requested}):
            at_starts = {one for one in self._requested if one[0] == name}
            config_map: Object | None = None
            try:
                config_map = await self._connection.config_map(*name)
            except KubeError as error:
                if isinstance(error, ForbiddenError):
                    raise ForbiddenError(
                        f"not allowed to get configmaps {name[1]} in namespace {self._namespace}, so limits in it are "
                        f"not known: give {refused_user(error.message)} a Role there (or a ClusterRole) with the rule "
                        '{apiGroups: [""], resources: [configmaps], verbs: [get]}; it is tried again within a minute',
                    ) from error
                if error.status != _NOT_FOUND:
                    raise
            self._requested -= at_starts
            await self._take(at_starts, config_map)
        return True

"""Reads the ConfigMaps that engines of this node mount their `--config` file from: by GET, each once for each start.

A server reads its file when it starts and never again, so nothing is watched: a ConfigMap is asked for when a
container that mounts it has started, and until there is an answer. What counts of it: `objects.config_maps`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final

from kvpressure.config.settings.kubernetes import KubernetesSettings
from kvpressure.kubernetes import KubeError
from kvpressure.kubernetes.objects.config_maps import (
    MapVersion,
    StartedAt,
    is_answered,
    read_version,
    why_not,
    with_version,
)
from kvpressure.kubernetes.objects.pods import MapName, PodReader, PodRecord
from kvpressure.kubernetes.watch.resource import Tuning, refused_user
from kvpressure.kubernetes.watch.stores import PodStore
from kvpressure.model.record import SourceError
from kvpressure.model.samples import SourceHealth
from kvpressure.net.guard import Guard
from kvpressure.net.schedule import Clock
from kvpressure.printable import brief

if TYPE_CHECKING:
    from kvpressure.kubernetes.watch.connection import Connection

CONFIG_MAPS: Final = "kubernetes_config_maps"
MAX_MAPS: Final = 64
"""ConfigMaps of all engines of a node that are read."""

MAX_NAMESPACES: Final = 32
SHOWN: Final = 8
UNREAD: Final = (
    "Limits in --config files that are mounted from ConfigMaps are not read (pods: {}). In the Helm chart set "
    "kubernetes.configMaps.enabled=true; it costs the permission to get ConfigMaps, everywhere or in the namespaces "
    "of kubernetes.configMaps.namespaces"
)
_NOT_FOUND: Final = 404


class ConfigMaps:
    """What was read, by namespace and name; one task for each namespace, which has permissions of its own.

    `reader` reads pods with what is known; those in `stores` that want a ConfigMap are read again once it is there.
    `end_task` cancels a task and waits for it later.
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
        self._versions: dict[MapName, tuple[MapVersion, ...]] = {}
        self._namespaces: dict[str, _Namespace] = {}
        self.reader = PodReader(settings, self.versions)

    def versions(self, name: MapName) -> tuple[MapVersion, ...]:
        """Return the observed versions of one ConfigMap, oldest first. Safe from any thread."""
        return self._versions.get(name, ())

    def reads(self, namespace: str) -> bool:
        """Return whether ConfigMaps of this namespace are read at all."""
        return self._on and (not self._allowed or namespace in self._allowed)

    def follow(self) -> None:
        """Read the ConfigMaps that the pods need now, and forget those that none of them mounts."""
        wants: dict[MapName, list[StartedAt]] = {}
        used: dict[MapName, None] = {}
        for record in self._records():
            used.update((name, None) for name in record.maps if self.reads(name[0]))
            for name, start in record.wants:
                wants.setdefault(name, []).append(start)
        kept = sorted(used)[:MAX_MAPS]
        self._versions = {name: found for name, found in self._versions.items() if name in used}
        namespaces = [*dict.fromkeys(namespace for namespace, _ in kept)][:MAX_NAMESPACES]
        for namespace in self._namespaces.keys() - set(namespaces):
            self._end_task(self._namespaces.pop(namespace).task)
        for namespace in namespaces:
            if namespace not in self._namespaces:
                one = _Namespace(namespace, self._connect, self._take, self._clock, self._tuning)
                self._namespaces[namespace] = one
            self._namespaces[namespace].want(
                frozenset(
                    name
                    for name in kept
                    if name[0] == namespace
                    and any(not is_answered(self.versions(name), start) for start in wants.get(name, ()))
                )
            )

    def health(self) -> Iterator[SourceHealth]:
        """Yield one record for each namespace with a ConfigMap that is read."""
        for one in self._namespaces.values():
            yield one.guard.health()

    def hints(self) -> Iterator[str]:
        """Yield why limits in configuration files are not known, and what to do; not where a 403 already says it."""
        wanting = [(record.key, name, start) for record in self._records() for name, start in record.wants]
        if unread := [key for key, name, _ in wanting if not self.reads(name[0])]:
            yield UNREAD.format(brief(", ".join([*dict.fromkeys(unread)][:SHOWN]), 200))
        for key, name, start in wanting[:SHOWN]:
            if self.reads(name[0]) and is_answered(versions := self.versions(name), start):
                why = why_not(versions, start)
                yield f"Limits in the --config file of pod {key} are not known: ConfigMap {name[1]}: {why}"

    def end(self) -> None:
        """End every task."""
        for one in self._namespaces.values():
            self._end_task(one.task)
        self._namespaces = {}

    def _records(self) -> Iterator[PodRecord]:
        return (record for store in self._stores() for record in store.records.values())

    async def _take(self, name: MapName, version: MapVersion) -> None:
        self._versions[name] = with_version(self.versions(name), version)
        for store in [*self._stores()]:
            for record in [one for one in store.records.values() if any(name == wanted for wanted, _ in one.wants)]:
                again = await asyncio.to_thread(lambda held: self.reader.read(json.loads(held)), record.held)
                if again is not None and store.records.get(record.key) is record:  # else it was read anew meanwhile
                    store.changed(again, deleted=False)


class _Namespace:
    """Asks for the ConfigMaps of one namespace while some start is without an answer."""

    def __init__(
        self,
        namespace: str,
        connect: Callable[[], Connection],
        take: Callable[[MapName, MapVersion], Awaitable[None]],
        clock: Clock,
        tuning: Tuning,
    ) -> None:
        self._namespace, self._connect, self._take = namespace, connect, take
        self._clock, self._tuning = clock, tuning
        self._connection: Connection | None = None
        self._wanted: frozenset[MapName] = frozenset()
        self._more = asyncio.Event()
        self.guard: Guard[bool] = Guard(
            CONFIG_MAPS,
            namespace,
            interval_seconds=tuning.retry_seconds,
            deadline_seconds=tuning.list_seconds,
            clock=clock,
        )
        self.task = asyncio.get_running_loop().create_task(self._run(), name=f"{CONFIG_MAPS} {namespace}")

    def want(self, names: frozenset[MapName]) -> None:
        """Set the ConfigMaps to read: those whose version at some container's start is not known."""
        self._wanted = names
        if names:
            self._more.set()

    async def _run(self) -> None:
        failures = 0
        try:
            while True:
                await self._more.wait()
                self._more.clear()
                while self._wanted:
                    answered = await self.guard.attempt(self._read) and not self._wanted
                    failures = 0 if answered else failures + 1
                    pause = self._tuning.pause_seconds(failures, self.guard.health().reason)
                    await self._clock.sleep_until(self._clock.monotonic() + pause)
        finally:
            if self._connection is not None:
                await self._connection.aclose()

    async def _read(self) -> bool:
        if self._connection is None:
            self._connection = self._connect()
        for name in sorted(self._wanted):
            began = self._clock.wall()  # what it answers may be as old as this
            try:
                version = read_version(await self._connection.config_map(*name), began)
            except KubeError as error:
                if error.reason == "forbidden":
                    raise SourceError(
                        "forbidden",
                        f"not allowed to get configmaps {name[1]} in namespace {self._namespace}, so limits in it are "
                        f"not known: give {refused_user(error.message)} a Role there (or a ClusterRole) with the rule "
                        '{apiGroups: [""], resources: [configmaps], verbs: [get]}; asked again within a minute',
                    ) from error
                if error.status != _NOT_FOUND:
                    raise
                version = MapVersion({}, None, began)
            self._wanted -= {name}
            await self._take(name, version)
        return True

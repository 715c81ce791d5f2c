"""Watches this node's engines through the API server: one task per kind of object and namespace.

Each is independent: without the permission for events only the events are missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import structlog

from kvpressure.config.settings.kubernetes import KubernetesSettings
from kvpressure.config.target import Target
from kvpressure.kubernetes.objects.pods import PodRecord
from kvpressure.kubernetes.objects.states import read_event, read_node
from kvpressure.kubernetes.watch.config_maps import CONFIG_MAPS, ConfigMaps
from kvpressure.kubernetes.watch.reflector import Reflector
from kvpressure.kubernetes.watch.resource import Resource, Tuning
from kvpressure.kubernetes.watch.stores import EventBook, EventStore, NodeStore, PodStore, in_turn, shown_pods
from kvpressure.model.environment import ContainerId, ContainerState, Environment, EventReport
from kvpressure.model.samples import SourceHealth
from kvpressure.net.credentials import in_cluster
from kvpressure.net.schedule import Clock, SystemClock
from kvpressure.sources.source import Known, Registration, Source, Wiring

if TYPE_CHECKING:
    from kvpressure.kubernetes.watch.connection import Connection

PODS: Final = "kubernetes_pods"
EVENTS: Final = "kubernetes_events"
NODE: Final = "kubernetes_node"
NODE_ID: Final = ContainerId("", "", "")
NODE_EVENTS_NAMESPACE: Final = "default"
"""The namespace of events on objects without one (`metav1.NamespaceDefault`, client-go's recorder)."""

MAX_EVENT_NAMESPACES: Final = 32
MAX_DELETED: Final = 256
MAX_PROBLEMS: Final = 64
NO_NODE_NAME: Final = (
    "kubernetes.node_name is not set, so no engines are looked for: in a pod, set KVPRESSURE_KUBERNETES__NODE_NAME "
    "from fieldRef spec.nodeName"
)

View: TypeAlias = tuple[tuple[Target, ...], Environment]
"""Targets in order, and the facts about them.

Targets stay while the API server does not answer; each container's `t` is the time of its state. `events` has the
containers of engines, for ten minutes also of deleted pods, and under `NODE_ID` the node; a missing key means that
events could not be watched.
"""

log = structlog.get_logger("kvpressure.sources")


def is_enabled(settings: KubernetesSettings) -> bool:
    """Return whether the settings enable Kubernetes, or with "auto" the place where this process runs."""
    if settings.enabled != "auto":
        return settings.enabled == "true"
    return in_cluster()


@dataclass(frozen=True, slots=True)
class _Part:
    """One running list-and-watch and its store."""

    reflector: Reflector[Any]
    store: Any
    task: asyncio.Task[None]


class KubernetesSource(Source):
    """Engines, their containers, their events and the node's memory pressure, as the API server reports them.

    Each list-and-watch has a connection of its own. Until the pods are listed, the view is the one that was `kept` from
    before a reload of the settings.
    """

    def __init__(
        self,
        settings: KubernetesSettings,
        clock: Clock | None = None,
        *,
        tuning: Tuning | None = None,
        kept: View | None = None,
    ) -> None:
        self._settings = settings
        self._clock: Clock = clock or SystemClock()
        self._tuning = tuning or Tuning()
        self._kept = kept
        self.discovers = is_enabled(settings)
        self._made = self._clock.wall()
        self._book = EventBook()
        # By namespace: "" is all of them, and for events the node.
        self._pods: dict[str, _Part] = {}
        self._events: dict[str, _Part] = {}
        self._node: _Part | None = None
        self._maps = ConfigMaps(settings, self._connect, self._pod_stores, self._end, self._clock, self._tuning)
        self._deleted: dict[ContainerId, tuple[str, float]] = {}
        self._shown: dict[ContainerId, str] = {}
        self._ending: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Follow the API server until cancelled; returns at once where Kubernetes is off. Raises nothing else."""
        if not self.discovers:
            return
        if not self._settings.node_name:
            log.warning("source down", source=PODS, reason="no_node_name", error=NO_NODE_NAME)
            return
        try:
            for namespace in self._settings.namespaces or ("",):
                params = {"fieldSelector": f"spec.nodeName={self._settings.node_name}"}
                resource = Resource(PODS, "pods", namespace, namespace, params)
                self._pods[namespace] = self._start(resource, self._maps.reader.read, PodStore(self._pods_changed))
            if self._settings.node_conditions:
                params = {"fieldSelector": f"metadata.name={self._settings.node_name}"}
                self._node = self._start(Resource(NODE, "nodes", params=params), read_node, NodeStore())
            if self._settings.events:
                self._events[""] = self._follow_events("")
            await asyncio.Event().wait()
        finally:
            for part in filter(None, (*self._pods.values(), self._node, *self._events.values())):
                self._end(part.task)
            self._maps.end()
            await asyncio.gather(*self._ending, return_exceptions=True)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        task.cancel()

    def health(self) -> tuple[SourceHealth, ...]:
        """Return one record for each list-and-watch; empty where Kubernetes is off."""
        if not self.discovers:
            return ()
        if not self._settings.node_name:
            return (SourceHealth(PODS, "", False, self._clock.wall(), error=NO_NODE_NAME, reason="no_node_name"),)
        parts = filter(None, (*self._pods.values(), self._node, *self._events.values()))
        health = (*(part.reflector.health() for part in parts), *self._maps.health())
        return health or (SourceHealth(PODS, "", False, self._made, error="not polled yet", reason="pending"),)

    @property
    def listed(self) -> bool:
        """Whether all requested pods have been listed once: before that, a pod missing from `view` may exist."""
        parts = self._pods.values()
        return bool(parts) and all(part.reflector.confirmed is not None for part in parts)

    def ended(self, container: ContainerId) -> bool:
        """Return whether a container belongs to an engine's pod that has finished and so holds no device any more."""
        part = self._pods.get(container.namespace) or self._pods.get("")
        record = part.store.records.get(f"{container.namespace}/{container.pod}") if part is not None else None
        return record is not None and record.finished

    def facts(self, known: Known) -> Environment:  # noqa: ARG002 - needs no facts of others
        """Return containers, events and the node's condition."""
        return self.view[1]

    @property
    def targets(self) -> tuple[Target, ...]:
        """The discovered engines."""
        return self.view[0]

    @property
    def view(self) -> View:
        """The known state of the cluster, with the engines from before a reload until the pods are listed."""
        targets, new = self._watched
        if self._kept is None or self.listed:
            self._kept = None
            return targets, new
        targets, old = self._kept
        return targets, replace(old, memory_pressure=new.memory_pressure, problems=new.problems, hints=new.hints)

    @property
    def _watched(self) -> View:
        now = self._clock.wall()
        shown = shown_pods(self._records())
        problems = (name for store in self._pod_stores() for some in store.problems.values() for name in some)
        return in_turn(shown), Environment(
            containers=self._containers(shown),
            events=self._event_reports(now),
            memory_pressure=self._memory_pressure(now),
            problems=tuple(islice(problems, MAX_PROBLEMS)),
            hints=tuple(self._maps.hints()),
        )

    def _connect(self) -> Connection:
        # Imported here: a process without Kubernetes need not load a second HTTP stack.
        from kvpressure.kubernetes.watch.connection import Connection  # noqa: PLC0415

        return Connection()

    def _pod_stores(self) -> Iterator[PodStore]:
        return (part.store for part in self._pods.values())

    def _records(self) -> Iterator[PodRecord]:
        return (record for store in self._pod_stores() for record in store.records.values())

    def _containers(self, records: list[PodRecord]) -> dict[ContainerId, ContainerState]:
        states: dict[ContainerId, ContainerState] = {}
        for record in records:
            part = self._pods.get(record.namespace) or self._pods.get("")
            t = (part.reflector.confirmed if part else None) or self._made
            states.update((state.id, replace(state, t=t)) for state in record.states)
        return states

    def _event_reports(self, now: float) -> dict[ContainerId, EventReport]:
        reports: dict[ContainerId, EventReport] = {}
        if self._listens(""):
            reports[NODE_ID] = self._book.report(NODE_ID, "")
        lingering = {container: uid for container, (uid, until) in self._deleted.items() if now < until}
        for container, uid in (lingering | self._shown).items():
            if uid and self._listens(container.namespace):
                reports[container] = self._book.report(container, uid)
        return reports

    def _listens(self, namespace: str) -> bool:
        part = self._events.get(namespace)
        return part is not None and part.store.since is not None

    def _memory_pressure(self, now: float) -> bool | None:
        part = self._node
        if part is None or part.store.record is None:
            return None
        confirmed = part.reflector.confirmed
        fresh = confirmed is not None and now - confirmed <= self._tuning.condition_seconds
        pressure: bool | None = part.store.record.memory_pressure
        return pressure if fresh else None

    def _pods_changed(self) -> None:
        now = self._clock.wall()
        before, self._shown = self._shown, {s.id: r.uid for r in shown_pods(self._records()) for s in r.states}
        self._deleted = {c: (uid, until) for c, (uid, until) in self._deleted.items() if now < until}
        gone = {c: (uid, now + self._tuning.linger_seconds) for c, uid in before.items() if c not in self._shown}
        self._deleted = dict([*self._deleted.items(), *gone.items()][-MAX_DELETED:])
        self._book.keep({uid for uid, _ in self._deleted.values()} | set(self._shown.values()) | {""})
        if self._settings.events:
            self._follow_namespaces()
        self._maps.follow()

    def _follow_namespaces(self) -> None:
        """Watch the events of the namespaces with engines, and of no others."""
        watched = self._events
        for namespace in watched.keys() - {c.namespace for c in (*self._shown, *self._deleted)} - {""}:
            self._end(watched.pop(namespace).task)
        for namespace in {c.namespace for c in self._shown} - watched.keys():
            if len(watched) <= MAX_EVENT_NAMESPACES:
                watched[namespace] = self._follow_events(namespace)

    def _follow_events(self, namespace: str) -> _Part:
        if namespace:
            resource = Resource(EVENTS, "events", namespace, namespace, {"fieldSelector": "involvedObject.kind=Pod"})
        else:
            selector = f"involvedObject.kind=Node,involvedObject.name={self._settings.node_name}"
            resource = Resource(EVENTS, "events", NODE_EVENTS_NAMESPACE, "", {"fieldSelector": selector})
        return self._start(resource, read_event, EventStore(self._book, self._clock.wall))

    def _start(self, resource: Resource, read: Callable[[Any], Any], store: Any) -> _Part:
        reflector = Reflector(resource, self._connect(), read, store, self._clock, self._tuning)
        name = f"{resource.source} {resource.target}".strip()
        return _Part(reflector, store, asyncio.get_running_loop().create_task(reflector.run(), name=name))


def _make(settings: KubernetesSettings, wiring: Wiring) -> Sequence[Source]:
    before = next((source for source in wiring.replaced if isinstance(source, KubernetesSource)), None)
    kept = before.view if before is not None and is_enabled(settings) else None
    return [KubernetesSource(settings, wiring.clock, kept=kept)]


SOURCE: Final = Registration[KubernetesSettings](
    "kubernetes",
    _make,
    {
        PODS: "Kubernetes: pods of this node",
        EVENTS: "Kubernetes: events of these pods",
        CONFIG_MAPS: "Kubernetes: --config files of these pods",
        NODE: "Kubernetes: this node",
    },
    section="kubernetes",
    settings=KubernetesSettings,
)

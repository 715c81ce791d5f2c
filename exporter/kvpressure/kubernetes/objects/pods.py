"""One pod, reduced to its engines, their addresses and states."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from kvpressure.config.settings.kubernetes import KubernetesSettings, parse_selector
from kvpressure.config.target import Target
from kvpressure.kubernetes.objects import Object, at, dns_name, mapping, moment, objects, text, uid
from kvpressure.kubernetes.objects.annotations import (
    PREFIX,
    AddressError,
    PodAnnotations,
    base_url,
    own_annotations,
    pod_ip,
    read_annotations,
)
from kvpressure.kubernetes.objects.config_maps import StartedAt, needed_maps
from kvpressure.kubernetes.objects.containers import (
    Container,
    engine_containers,
    limits_of,
    ports_of,
    read_containers,
    role_of,
)
from kvpressure.kubernetes.objects.states import ENDED, container_state
from kvpressure.model.environment import ContainerId, ContainerState

MAX_TARGETS: Final = 16
"""Targets of one pod: as many as it could have data-parallel ranks with a port each."""

MAX_POD_JSON_BYTES: Final = 64 << 10
"""Largest JSON of a pod that is kept until its ConfigMaps are read; most have a tenth of that."""

MapName = tuple[str, str]
"""Namespace and name of a ConfigMap."""

MapAtStart = tuple[MapName, StartedAt]
"""A ConfigMap as it was when a container started."""

_TOO_MUCH: Final = "its object holds more than is read; no engine is looked for in it"


@dataclass(frozen=True, slots=True)
class PodRecord:
    """A pod; one without engines has no `states`, and is not stored.

    `finished` pods stay only until they are deleted. `problems` are
    sentences about invalid annotations or addresses. `maps` are the ConfigMaps that the `--config` files of running
    engines may be in, each with the start of its container; where the text in force then is not known, `raw` is the
    pod as JSON, to be read again with it.
    """

    namespace: str
    name: str
    uid: str = ""
    finished: bool = False
    states: tuple[ContainerState, ...] = ()
    targets: tuple[Target, ...] = ()
    problems: tuple[str, ...] = ()
    maps: tuple[MapAtStart, ...] = ()
    raw: bytes = field(default=b"", compare=False, repr=False)

    @property
    def key(self) -> str:
        """The key of the pod in its store, unique among the pods of one moment."""
        return f"{self.namespace}/{self.name}"


class PodReader:
    """Reads pods by the settings; pure. `in_force` returns a ConfigMap's texts in force at a start, if known."""

    def __init__(
        self, settings: KubernetesSettings, in_force: Callable[[MapAtStart], Object | None] = lambda _: None
    ) -> None:
        self._settings = settings
        self._in_force = in_force
        self._selector = parse_selector(settings.label_selector)

    def read(self, pod: Object) -> PodRecord | None:
        """Return the pod's record, None for an object without a name; never raises."""
        meta = mapping(pod, "metadata")
        namespace, name = dns_name(meta, "namespace"), dns_name(meta, "name")
        if not namespace or not name:
            return None
        annotations = own_annotations(mapping(meta, "annotations"))
        requested = read_annotations(annotations)
        selected = bool(self._selector) and all(term.matches(mapping(meta, "labels")) for term in self._selector)
        bare = PodRecord(namespace, name, uid(meta, "uid"))
        if "spec" not in pod:
            return replace(bare, problems=_about(namespace, name, [_TOO_MUCH]))
        engines_in = partial(
            engine_containers, requested=requested, selected=selected, port_name=self._settings.port_name
        )
        containers = read_containers(pod)
        engines = engines_in(containers)
        maps, known = self._mounted(pod, bare, engines)
        if known:
            containers = read_containers(pod, lambda container: known.get(container, {}))
            engines = engines_in(containers)
        if engines:
            unread = self._settings.config_maps and any(self._in_force(one) is None for one in maps)
            bare = replace(bare, maps=maps, raw=_pod_json(pod) if unread else b"")
            return self._engine_pod(pod, bare, engines, requested, annotations)
        problems = [] if requested.scrape is False else [*requested.problems]
        missing = set(requested.containers) - {container.name for container in containers}
        if missing and requested.scrape is not False:
            shown = ", ".join(name for name in requested.containers if name in missing)
            problems.append(f"annotation {PREFIX}container names {shown}, which it does not have")
        return replace(bare, problems=_about(namespace, name, problems))

    def _mounted(
        self, pod: Object, bare: PodRecord, engines: Sequence[Container]
    ) -> tuple[tuple[MapAtStart, ...], dict[str, dict[str, Object]]]:
        """Return the ConfigMaps that containers started with; and those that are known, by container and name."""
        known: dict[str, dict[str, Object]] = {}
        maps: dict[MapAtStart, None] = {}
        for engine in engines:
            needed = needed_maps(pod, engine.name, engine.start)
            state = container_state(pod, ContainerId(bare.namespace, bare.name, engine.name), bare.uid)
            if not needed or state.started is None or not _is_served(pod):
                continue
            start = StartedAt(state.started, anew=state.restarts > 0)
            for name in needed:
                at_start = (bare.namespace, name), start
                maps[at_start] = None
                if (config_map := self._in_force(at_start)) is not None:
                    known.setdefault(engine.name, {})[name] = config_map
        return tuple(maps), known

    def _engine_pod(
        self,
        pod: Object,
        bare: PodRecord,
        engines: list[Container],
        requested: PodAnnotations,
        annotations: Mapping[str, str],
    ) -> PodRecord:
        problems = list(requested.problems)
        ip = ""
        if _is_served(pod) and not requested.refused:
            try:
                ip = pod_ip(_ip_text(pod))
            except AddressError as error:
                problems.append(str(error))
        pairs = ports_of(engines, requested, port_name=self._settings.port_name, port=self._settings.port) if ip else []
        if len(pairs) > MAX_TARGETS:
            problems.append(f"only the first {MAX_TARGETS} of its {len(pairs)} ports are polled")
        ids = {c.name: ContainerId(bare.namespace, bare.name, c.name) for c in engines}
        created = moment(pod, "metadata", "creationTimestamp")
        targets = (
            self._target(bare, container, base_url(requested.scheme or "http", ip, port), requested, annotations)
            for container, port in pairs
        )
        return replace(
            bare,
            finished=text(pod, "status", "phase") in ENDED,
            states=tuple(container_state(pod, container, bare.uid) for container in ids.values()),
            targets=tuple(
                replace(target, kv_events=self._settings.kv_events, role=role_of(pod), created=created)
                for target in targets
            )[:MAX_TARGETS],
            problems=_about(bare.namespace, bare.name, problems),
        )

    def _target(
        self, pod: PodRecord, container: Container, url: str, requested: PodAnnotations, annotations: Mapping[str, str]
    ) -> Target:
        settings = self._settings
        return Target(
            name=f"{pod.key}:{url.rpartition(':')[2]}",
            url=url,
            path=requested.path or settings.path,
            namespace=pod.namespace,
            pod=pod.name,
            kv_bytes_per_token=requested.kv_bytes_per_token,
            tls=settings.tls,
            bearer_token_file=settings.bearer_token_file,
            basic_auth=settings.basic_auth,
            container=container.name,
            limits=limits_of(container, annotations),
        )


def _pod_json(pod: Object) -> bytes:
    """Return the pod as JSON without `managedFields`; empty where it is too large to keep."""
    meta = {key: value for key, value in mapping(pod, "metadata").items() if key != "managedFields"}
    document = json.dumps({**pod, "metadata": meta}).encode()
    return document if len(document) <= MAX_POD_JSON_BYTES else b""


def _is_served(pod: Object) -> bool:
    running = text(pod, "status", "phase") == "Running" and at(pod, "metadata", "deletionTimestamp") is None
    return running and bool(_ip_text(pod))


def _ip_text(pod: Object) -> str:
    ips = objects(pod, "status", "podIPs", limit=1)
    return text(pod, "status", "podIP") or (text(ips[0], "ip") if ips else "")


def _about(namespace: str, name: str, problems: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"pod {namespace}/{name}: {problem}" for problem in problems)

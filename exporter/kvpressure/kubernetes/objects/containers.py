"""The containers of a pod that are engines, and the ports they serve on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kvpressure.commandline.words import MAX_ENTRIES, MORE, WORK, Budget, BudgetExceededError
from kvpressure.kubernetes.objects import Object, at, dns_name, mapping, objects, text, texts, whole
from kvpressure.kubernetes.objects.annotations import PodAnnotations
from kvpressure.kubernetes.objects.config_maps import files_of
from kvpressure.kubernetes.objects.states import ENDED
from kvpressure.launch import (
    TOO_MUCH,
    Reading,
    Start,
    annotated,
    declared,
    read_limits,
    read_start,
    runtime_of,
    serving_port,
)
from kvpressure.model.environment import ROLE_CODES, DeclaredLimit
from kvpressure.runtimes.runtime import Runtime

MAX_CONTAINERS: Final = 32

Maps = Callable[[str], Mapping[str, Object]]
"""Returns the ConfigMaps by name that were in force when a container, by name, started."""

_MAX_IMAGE: Final = 1024  # more than any has, and few enough for regular expressions

_GPU_VENDORS: Final = ("nvidia.com/", "amd.com/", "gpu.intel.com/", "habana.ai/")


@dataclass(frozen=True, slots=True)
class Container:
    """One container of a pod's spec; `ports` are those it declares, by name or else number.

    `holds_gpu` is true for a GPU resource or a claim; `runtime` is by image, command or arguments, None for other
    programs; `serving_port` is the port in the server's own arguments or environment.
    """

    name: str
    image: str
    ports: Mapping[str, int]
    holds_gpu: bool
    start: Start
    runtime: Runtime | None
    serving_port: int | None
    reading: Reading

    def declares(self, port: int) -> bool:
        """Return whether the pod declares that it serves this port."""
        return port in self.ports.values() or port == self.serving_port


def read_containers(pod: Object, maps: Maps = lambda _: {}) -> list[Container]:
    """Return the pod's regular containers, without init containers; `maps` returns the ConfigMaps of a container."""
    # Finished pods stay until they are deleted, perhaps by the thousand, and are not polled.
    budget = Budget(WORK // 4 if text(pod, "status", "phase") in ENDED else WORK)
    entries = objects(pod, "spec", "containers", limit=MAX_CONTAINERS)
    containers = []
    for entry in entries:
        known = maps(text(entry, "name"))
        files = files_of(pod, text(entry, "name"), known) if known else {}
        containers.append(_container(entry, budget, files))
    return [container for container in containers if container.name]


def _container(entry: Object, budget: Budget, files: Mapping[str, str]) -> Container:
    image = text(entry, "image")[:_MAX_IMAGE]
    try:
        budget.take()
        ports, holds_gpu = _ports(entry, budget), _holds_gpu(entry, budget)
        words = _words(entry, "command", budget), _words(entry, "args", budget)
        start = read_start(*words, _env(entry, budget), budget, files, image)
    except BudgetExceededError:
        ports = {}
        holds_gpu = False
        start = Start(cut=TOO_MUCH)
    return Container(
        name=dns_name(entry, "name"),
        image=image,
        ports=ports,
        holds_gpu=holds_gpu,
        start=start,
        runtime=runtime_of(image, start),
        serving_port=serving_port(start),
        reading=read_limits(start),
    )


def _words(entry: Object, name: str, budget: Budget) -> tuple[str, ...]:
    budget.take(steps=_entries(entry, name))
    return texts(entry, name, limit=MAX_ENTRIES)


def _env(entry: Object, budget: Budget) -> dict[str, str | None]:
    """Return variables by name; None for one from a Secret or the like, so that no default replaces it.

    With `envFrom`, which takes a whole Secret or ConfigMap, `MORE` is among them.
    """
    budget.take(steps=2 * _entries(entry, "env"))
    named = ((text(item, "name"), item) for item in objects(entry, "env", limit=MAX_ENTRIES))
    variables = {name: None if "valueFrom" in item else text(item, "value") for name, item in named}
    return variables | {MORE: ""} if objects(entry, "envFrom", limit=1) else variables


def _entries(entry: Object, name: str) -> int:
    """Return the number of entries to read, which is charged to the budget first."""
    listed = at(entry, name)
    return min(len(listed), MAX_ENTRIES) if isinstance(listed, list) else 0


def _holds_gpu(entry: Object, budget: Budget) -> bool:
    named = [mapping(entry, "resources", which) for which in ("limits", "requests")]
    budget.take(steps=sum(map(len, named)))
    gpu = any(str(key).startswith(_GPU_VENDORS) for keys in named for key in keys)
    return gpu or bool(at(entry, "resources", "claims"))


def _ports(entry: Object, budget: Budget) -> dict[str, int]:
    ports: dict[str, int] = {}
    for item in objects(entry, "ports", limit=64):
        budget.take(steps=4)
        number = whole(item, "containerPort")
        if number is not None and 0 < number <= 65535 and text(item, "protocol") in ("", "TCP"):
            ports.setdefault(text(item, "name") or str(number), number)
    return ports


def engine_containers(
    containers: Sequence[Container], requested: PodAnnotations, *, selected: bool, port_name: str
) -> list[Container]:
    """Return the containers that are engines, in the order of the pod.

    `scrape: "false"` overrides everything. A pod that is requested, by annotation or label selector, has at least one:
    the containers it names, those of a runtime or with a GPU and the named port, those that declare the port it names,
    the first with a GPU (service meshes put their sidecars before it), else its first. In other pods only those of a
    runtime, or with a GPU and the named port, are engines.
    """
    if requested.scrape is False:
        return []
    pool = [c for c in containers if c.name in requested.containers] if requested.containers else list(containers)
    is_requested = bool(requested.scrape) or selected
    if is_requested and requested.containers:
        return pool
    evident = [c for c in pool if c.runtime or (c.holds_gpu and port_name and port_name in c.ports)]
    if evident or not is_requested:
        return evident
    declaring = [c for c in pool if any(c.declares(port) for port in requested.ports)]
    return declaring or [c for c in pool if c.holds_gpu][:1] or pool[:1]


def ports_of(
    engines: Sequence[Container], requested: PodAnnotations, *, port_name: str, port: int
) -> list[tuple[Container, int]]:
    """Return each engine's ports, none twice, since containers of a pod share one network.

    An annotated port belongs to the container that declares it, else to the first engine. Without annotations it is the
    port of the server's own arguments, the named container port, the only declared one, or `port`.
    """
    by_port: dict[int, Container] = {}
    if requested.ports:
        for number in requested.ports:
            by_port[number] = next((c for c in engines if c.declares(number)), engines[0])
    else:
        for container in engines:
            declared_ports = {*container.ports.values()}
            only = declared_ports.pop() if len(declared_ports) == 1 else port
            own = container.serving_port or container.ports.get(port_name) or only
            by_port.setdefault(own, container)
    return [(container, number) for number, container in by_port.items()]


ROLE_LABELS: Final = (
    "llm-d.ai/role",
    "nvidia.com/dynamo-sub-component-type",
    "nvidia.com/dynamo-component-type",
)
"""Labels of llm-d's and Dynamo's pods in disaggregated prefill; other values mean neither role."""


def role_of(pod: Object) -> str:
    """Return the role of the pod's engine by its labels, `PREFILL` or `DECODE`, "" without one."""
    labels = mapping(pod, "metadata", "labels")
    return next((role for label in ROLE_LABELS if (role := text(labels, label)) in ROLE_CODES), "")


def limits_of(container: Container, annotations: Mapping[str, str]) -> tuple[DeclaredLimit, ...] | None:
    """Return the declared limits, None where there are none and a start script or a mounted file may have some."""
    is_known = container.start.is_known or (container.runtime is not None and not container.start.command)
    return declared(annotated(container.reading, annotations), command_is_known=is_known)

"""The engine of one pod: its container, port, state and limits, from the pod's object. PURE."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kvpressure.config.settings.kubernetes import KubernetesSettings
from kvpressure.kubernetes import KubeError
from kvpressure.kubernetes.objects import Object, mapping, objects, text, truth, uid
from kvpressure.kubernetes.objects.annotations import own_annotations, read_annotations
from kvpressure.kubernetes.objects.config_maps import needed_maps
from kvpressure.kubernetes.objects.containers import Container, limits_of, ports_of, read_containers, role_of
from kvpressure.kubernetes.objects.references import ReferencedPod
from kvpressure.kubernetes.objects.states import container_state
from kvpressure.model.environment import ContainerId, ContainerState, DeclaredLimit
from kvpressure.runtimes.registry import ASSUMED

DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"
_HASH: Final = "pod-template-hash"
_SHORT: Final[Mapping[str, str]] = {"Deployment": "deploy"}


@dataclass(frozen=True, slots=True)
class EnginePod:
    """One pod with an engine, as read at `state.t`.

    `workload` is its controller as kubectl names it, such as `deploy/llama`, "" without one. `trouble` is why its page
    cannot be polled, "" while the container runs. `limits` are those declared on the container, None where none is
    found and some may be in files. `needs` are the ConfigMaps that its configuration file may be in, `role` its role in
    disaggregated prefill by its labels.
    """

    state: ContainerState
    port: int
    scheme: str = "http"
    path: str = "/metrics"
    node: str = ""
    phase: str = ""
    workload: str = ""
    trouble: str = ""
    limits: tuple[DeclaredLimit, ...] | None = None
    needs: tuple[str, ...] = ()
    role: str = ""

    @property
    def name(self) -> str:
        """`namespace/pod:port`, as discovered targets are named."""
        return f"{self.state.id.namespace}/{self.state.id.pod}:{self.port}"


def engine_pod(
    reference: ReferencedPod,
    now: float,
    container: str = "",
    port: int | None = None,
    maps: Mapping[str, Object] | None = None,
) -> EnginePod:
    """Return the engine of a pod; `maps` are known ConfigMaps by name.

    Raises KubeError where it is ambiguous which container is the engine.
    """
    pod, defaults = reference.pod, KubernetesSettings()
    chosen = engine_container(pod, container, maps)
    annotations = own_annotations(mapping(pod, "metadata", "annotations"))
    requested = read_annotations(annotations)
    pairs = ports_of([chosen], requested, port_name=defaults.port_name, port=defaults.port)
    id_ = ContainerId(text(pod, "metadata", "namespace"), text(pod, "metadata", "name"), chosen.name)
    state = replace(container_state(pod, id_, uid(pod, "metadata", "uid")), t=now)
    tls = f"--{(chosen.runtime or ASSUMED).starting.flags.tls}"
    words = (word.partition("=")[0].replace("_", "-") for word in (*chosen.start.command, *chosen.start.args))
    return EnginePod(
        state=state,
        port=port or pairs[0][1],
        scheme=requested.scheme or ("https" if tls in words else "http"),
        path=requested.path or defaults.path,
        node=text(pod, "spec", "nodeName"),
        phase=text(pod, "status", "phase"),
        workload=f"{reference.through}"
        if reference.through and reference.through.kind.short != "service"
        else workload_of(pod),
        trouble=_trouble(pod, state),
        limits=limits_of(chosen, annotations),
        needs=needed_maps(pod, chosen.name, chosen.start),
        role=role_of(pod),
    )


def engine_container(pod: Object, name: str = "", maps: Mapping[str, Object] | None = None) -> Container:
    """Return the container `name`, the only one, the engine's, or kubectl's default one. Raises KubeError."""
    containers = {container.name: container for container in read_containers(pod, lambda _: maps or {})}
    where, names = f"pod/{text(pod, 'metadata', 'name')}", ", ".join(containers)
    if name:
        if name in containers:
            return containers[name]
        raise KubeError(f"{where} has no container {name!r}; it has {names}")
    candidates = _candidates(pod, list(containers.values()))
    if len(candidates) == 1:
        return candidates[0]
    what = "several of them run" if candidates else "none of them is known to run"
    raise KubeError(f"{where} has the containers {names}, and {what} an engine: name it in kvpressure.io/container")


def _candidates(pod: Object, containers: Sequence[Container]) -> list[Container]:
    annotations = mapping(pod, "metadata", "annotations")
    named = read_annotations(own_annotations(annotations)).containers or (text(annotations, DEFAULT_CONTAINER),)
    if len(containers) < 2:
        return list(containers)
    engines = [container for container in containers if container.runtime is not None]
    chosen = [container for container in engines or containers if container.name in named]
    return chosen or engines


def workload_of(pod: Object) -> str:
    """Return the pod's controller as kubectl names it; a ReplicaSet's Deployment is derived from its name.

    >>> owner = [{"kind": "ReplicaSet", "name": "llama-5d4f8c", "controller": True}]
    >>> workload_of({"metadata": {"ownerReferences": owner, "labels": {"pod-template-hash": "5d4f8c"}}})
    'deploy/llama'
    """
    owner = next(
        (reference for reference in objects(pod, "metadata", "ownerReferences") if truth(reference, "controller")), None
    )
    if owner is None:
        return ""
    kind, name = text(owner, "kind"), text(owner, "name")
    suffix = f"-{text(mapping(pod, 'metadata', 'labels'), _HASH)}"
    if kind == "ReplicaSet" and len(suffix) > 1 and name.endswith(suffix):
        return f"deploy/{name.removesuffix(suffix)}"
    return f"{_SHORT.get(kind, kind.lower())}/{name}"


def _trouble(pod: Object, state: ContainerState) -> str:
    where, phase = f"pod {state.id.namespace}/{state.id.pod}", text(pod, "status", "phase")
    if phase == "Running" and state.started is not None:
        return ""
    if state.waiting_reason and phase not in ("Failed", "Succeeded"):
        return f"container {state.id.container} of {where} waits: {state.waiting_reason}{_last(state)}"
    if phase == "Running":
        return f"container {state.id.container} of {where} is not running{_last(state)}"
    reasons = [text(pod, "status", key) for key in ("reason", "message")]
    unscheduled = (
        text(status, "message") or text(status, "reason")
        for status in objects(pod, "status", "conditions")
        if text(status, "type") == "PodScheduled" and text(status, "status") != "True"
    )
    why = ": ".join(filter(None, reasons)) or next(unscheduled, "")
    return f"{where} is {phase or 'not started'}, not running{f' ({why})' if why else ''}"


def _last(state: ContainerState) -> str:
    ended = state.termination
    return "" if ended is None else f"; it ended last with {ended.reason or 'no reason'}, exit code {ended.exit_code}"

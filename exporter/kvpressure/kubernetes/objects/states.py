"""What the API server says of one container (restarts, readiness, how it ended, why it waits) and of the node."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kvpressure.kubernetes.objects import (
    Object,
    at,
    dns_name,
    mapping,
    moment,
    objects,
    text,
    truth,
    whole,
    word,
)
from kvpressure.kubernetes.objects.address import ip_of
from kvpressure.model.environment import ContainerId, ContainerState, Termination

ENDED: Final = ("Failed", "Succeeded")
"""Phases of a pod that has run, and stays only until somebody cleans up."""


def container_state(pod: Object, container: ContainerId, pod_uid: str) -> ContainerState:
    """Return the container's state with `t` 0: the caller sets when it was observed.

    A pod that failed as a whole (`Evicted`, `NodeShutdown`) may have no container status left; its reason then
    stands where a waiting container's would.
    """
    status = next((s for s in objects(pod, "status", "containerStatuses") if s.get("name") == container.container), {})
    state, finished = mapping(status, "state"), text(pod, "status", "phase") in ENDED
    return ContainerState(
        id=container,
        t=0.0,
        pod_uid=pod_uid,
        runtime_id=text(status, "containerID").rpartition("://")[2][:128],
        restarts=max(0, whole(status, "restartCount") or 0),
        started=moment(state, "running", "startedAt"),
        ready=False if finished else truth(status, "ready"),
        waiting_reason=word(pod, "status", "reason") if finished else word(state, "waiting", "reason"),
        termination=_termination(at(state, "terminated")) or _termination(at(status, "lastState", "terminated")),
    )


def _termination(ended: object) -> Termination | None:
    code = whole(ended, "exitCode")
    return None if code is None else Termination(word(ended, "reason"), code, moment(ended, "finishedAt"))


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """The node; `memory_pressure` is None where the kubelet has not said, or not for too long ("Unknown")."""

    name: str
    memory_pressure: bool | None = None
    addresses: frozenset[str] = frozenset()


def read_node(node: Object) -> NodeRecord | None:
    """Return the node's record, None for an object without a name."""
    name = dns_name(mapping(node, "metadata"), "name")
    if not name:
        return None
    found = (c for c in objects(node, "status", "conditions") if c.get("type") == "MemoryPressure")
    pressure = {"True": True, "False": False}.get(text(next(found, {}), "status"))
    addresses = (text(item, "address") for item in objects(node, "status", "addresses", limit=32))
    ips = (ip_of(item) for item in addresses)  # host names are listed beside the addresses
    return NodeRecord(name, pressure, frozenset(str(ip) for ip in ips if ip is not None))

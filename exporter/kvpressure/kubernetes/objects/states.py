"""States of containers (restarts, readiness, termination, waiting reason), of the node, and events, as records."""

from __future__ import annotations

import re
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
    uid,
    whole,
    word,
)
from kvpressure.model.environment import ContainerId, ContainerState, Termination

ENDED: Final = ("Failed", "Succeeded")
"""Phases of a finished pod, which stays until it is deleted."""


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
        image=text(status, "image")[:256],
        termination=_termination(at(state, "terminated")) or _termination(at(status, "lastState", "terminated")),
    )


def _termination(ended: object) -> Termination | None:
    code = whole(ended, "exitCode")
    return None if code is None else Termination(word(ended, "reason"), code, moment(ended, "finishedAt"))


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """The node; `memory_pressure` is None where the kubelet has not reported it, or not lately ("Unknown")."""

    name: str
    memory_pressure: bool | None = None


def read_node(node: Object) -> NodeRecord | None:
    """Return the node's record, None for an object without a name."""
    name = dns_name(mapping(node, "metadata"), "name")
    if not name:
        return None
    conditions = (c for c in objects(node, "status", "conditions") if c.get("type") == "MemoryPressure")
    pressure = {"True": True, "False": False}.get(text(next(conditions, {}), "status"))
    return NodeRecord(name, pressure)


OTHER: Final = "other"
REASONS: Final = (
    "BackOff",
    "ErrImageNeverPull",
    "Evicted",
    "EvictionThresholdMet",
    "ExceededGracePeriod",
    "Failed",
    "FailedAttachVolume",
    "FailedCreatePodSandBox",
    "FailedMount",
    "FailedScheduling",
    "Killing",
    "NodeHasDiskPressure",
    "NodeHasInsufficientMemory",
    "NodeNotReady",
    "OOMKilling",
    "Preempted",
    "Preempting",
    "Rebooted",
    "SystemOOM",
    "TaintManagerEviction",
    "Unhealthy",
    OTHER,
)
"""Reasons that are counted under their own name; any other warning counts as `other`.

Other events of type Normal (`Pulled`, `Created`, `Scheduled`, ...) are not counted.
"""

_KNOWN: Final = frozenset(REASONS) - {OTHER}
_FIELD_PATH: Final = re.compile(r"spec\.(?:init|ephemeral)?[cC]ontainers\{([^}]{1,63})\}")


@dataclass(frozen=True, slots=True)
class EventRecord:
    """One event object, which stands for `count` occurrences between `first` and `last` (unix seconds).

    `subject` is the uid of the pod it is about, "" for a node; `container` the one of the pod's containers that it
    names, "" when it is about the pod.
    """

    uid: str
    subject: str
    container: str
    reason: str
    count: int
    first: float | None
    last: float | None


def read_event(event: Object) -> EventRecord | None:
    """Return the event's record; None for events that are not counted and for objects that are not events."""
    own = uid(mapping(event, "metadata"), "uid")
    about = mapping(event, "involvedObject")
    kind, reason = text(about, "kind"), text(event, "reason")
    subject = "" if kind == "Node" else uid(about, "uid")
    if not own or kind not in ("Node", "Pod") or (kind == "Pod" and not subject):
        return None
    if reason not in _KNOWN and (not reason or text(event, "type") != "Warning"):
        return None
    named = _FIELD_PATH.fullmatch(text(about, "fieldPath"))
    created = moment(event, "metadata", "creationTimestamp")
    begun = moment(event, "firstTimestamp") or moment(event, "eventTime") or created
    ended = moment(event, "series", "lastObservedTime") or moment(event, "lastTimestamp") or begun
    return EventRecord(
        uid=own,
        subject=subject,
        container=named[1] if named else "",
        reason=reason if reason in _KNOWN else OTHER,
        count=max(1, whole(event, "count") or 0, whole(event, "series", "count") or 0),
        first=begun,
        last=ended,
    )

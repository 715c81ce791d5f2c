"""Kubernetes events: one event as a small record, and its reason as one of a short table."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from kvpressure.kubernetes.objects import Object, mapping, moment, text, uid, whole

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

Other events of type Normal (`Pulled`, `Created`, `Scheduled`, ...) are the ordinary course of things and not counted.
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

"""What the API server has told of this node's engines: pods shown, targets in order, all of it at one moment. PURE."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kvpressure.config.target import Target
from kvpressure.kubernetes.objects.pods import PodRecord
from kvpressure.kubernetes.watch.stores import MAX_FINISHED
from kvpressure.model.environment import ContainerId, ContainerState, EventReport


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Engines as of `t` (unix seconds).

    `targets` stay when the API server does not answer; each container's `t` then says how old its state is. `events`
    holds the containers of engines, for ten minutes also those of pods that were deleted, and under
    `ContainerId("", "", "")` the node; a missing key means that events could not be watched. `problems` are
    sentences about pods whose annotations or addresses cannot be used, `hints` about what is not read, and what brings
    it.
    """

    t: float
    targets: tuple[Target, ...] = ()
    containers: Mapping[ContainerId, ContainerState] = field(default_factory=dict)
    events: Mapping[ContainerId, EventReport] = field(default_factory=dict)
    memory_pressure: bool | None = None
    problems: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()


def shown_pods(records: Iterable[PodRecord]) -> list[PodRecord]:
    """Return pods by name, then the last few of those that have ended."""
    ordered = sorted(records, key=lambda record: record.key)
    ended = sorted((record for record in ordered if record.finished), key=_ended)
    return [record for record in ordered if not record.finished] + ended[-MAX_FINISHED:]


def in_turn(records: Iterable[PodRecord]) -> tuple[Target, ...]:
    """Return targets with namespaces in turn, and each pod's first target before any second one.

    Where there are more than may be polled, no namespace then crowds out the others.
    """
    queues: dict[str, list[tuple[int, Target]]] = {}
    for record in records:
        queues.setdefault(record.namespace, []).extend(enumerate(record.targets))
    turns = [turn for queue in queues.values() for turn in enumerate(sorted(queue, key=lambda entry: entry[0]))]
    return tuple(target for _, (_, target) in sorted(turns, key=lambda entry: entry[0]))


def _ended(record: PodRecord) -> float:
    return max((s.termination.finished or 0.0 for s in record.states if s.termination), default=0.0)

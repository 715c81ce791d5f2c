"""Which pods are shown, and in which order their engines are polled. PURE."""

from __future__ import annotations

from collections.abc import Iterable

from kvpressure.config.target import Target
from kvpressure.kubernetes.objects.pods import PodRecord
from kvpressure.kubernetes.watch.stores import MAX_FINISHED


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

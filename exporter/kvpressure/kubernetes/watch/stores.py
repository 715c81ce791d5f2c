"""What the reflectors have learned: pods, which of them are shown with their targets in order; events; the node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

import structlog

from kvpressure.config.target import Target
from kvpressure.kubernetes.objects.events import EventRecord
from kvpressure.kubernetes.objects.pods import PodRecord
from kvpressure.kubernetes.objects.states import NodeRecord
from kvpressure.kubernetes.watch.event_book import EventBook

MAX_PODS: Final = 1024
MAX_FINISHED: Final = 32
"""Evicted pods stay in the API until somebody cleans up; of these so many are shown."""

log = structlog.get_logger("kvpressure.sources")


class PodStore:
    """The engine pods of one namespace, or of all; `on_change` is called when a record differs."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self.records: dict[str, PodRecord] = {}
        self.problems: dict[str, tuple[str, ...]] = {}

    def replaced(self, records: Sequence[PodRecord]) -> None:
        """Take a whole list."""
        gone = self.records.keys() - {record.key for record in records}
        changed = [self._put(record) for record in records] + [self._drop(key) for key in gone]
        self.problems = {r.key: self.problems[r.key] for r in records if r.key in self.problems}
        if any(changed):
            self._on_change()

    def changed(self, record: PodRecord, *, deleted: bool) -> None:
        """Take one event of a watch."""
        if deleted:
            self.problems.pop(record.key, None)
        if self._drop(record.key) if deleted else self._put(record):
            self._on_change()

    def _put(self, record: PodRecord) -> bool:
        self._tell(record)
        if not record.states:
            return self._drop(record.key)
        before = self.records.get(record.key)
        if before is None and len(self.records) >= MAX_PODS:
            # What piles up on a node are the remains of evicted pods; they must not keep out those that run.
            oldest = next((key for key, one in self.records.items() if one.finished), None)
            if oldest is None:
                return False
            self._drop(oldest)
        self.records[record.key] = record
        return record != before

    def _drop(self, key: str) -> bool:
        return self.records.pop(key, None) is not None

    def _tell(self, record: PodRecord) -> None:
        if record.problems == self.problems.get(record.key, ()):
            return
        for problem in record.problems:
            log.warning("pod annotation ignored", source="kubernetes_pods", error=problem)
        if not record.problems:
            del self.problems[record.key]
        elif len(self.problems) < MAX_PODS:
            self.problems[record.key] = record.problems


class EventStore:
    """Passes the events of one namespace on to the book; the first list is history, the rest counts."""

    def __init__(self, book: EventBook, wall: Callable[[], float]) -> None:
        self._book = book
        self._wall = wall
        self.since: float | None = None

    def replaced(self, records: Sequence[EventRecord]) -> None:
        """Take a whole list: what is new in a later one happened while the watch was broken."""
        now = self._wall()
        self._book.take(records, now, self.since)
        self.since = now if self.since is None else self.since

    def changed(self, record: EventRecord, *, deleted: bool) -> None:
        """Take one event of a watch."""
        if deleted:
            self._book.forget(record)
        else:
            self._book.take([record], self._wall(), self.since)


class NodeStore:
    """The node's record, None while there is none."""

    record: NodeRecord | None = None

    def replaced(self, records: Sequence[NodeRecord]) -> None:
        """Take a whole list, of one node or none."""
        self.record = records[0] if records else None

    def changed(self, record: NodeRecord, *, deleted: bool) -> None:
        """Take one event of a watch."""
        self.record = None if deleted else record


def shown_pods(records: Iterable[PodRecord]) -> list[PodRecord]:
    """Return pods by name, then the last few of those that have ended."""
    ordered = sorted(records, key=lambda record: record.key)
    ended = sorted(
        (record for record in ordered if record.finished),
        key=lambda record: max((s.termination.finished or 0.0 for s in record.states if s.termination), default=0.0),
    )
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

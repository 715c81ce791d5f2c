"""The records of the reflectors: pods, with their targets in order; events; the node.

Events are counted once each, by subject and reason, since the first list.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from kvpressure.config.target import Target
from kvpressure.kubernetes.objects.pods import PodRecord
from kvpressure.kubernetes.objects.states import REASONS, EventRecord, NodeRecord
from kvpressure.logs import RateLimitedLogger
from kvpressure.model.environment import ContainerId, EventReport

RECENT_SECONDS: Final = 600.0
"""How old an event of the first list may be to count as evidence."""

MAX_SUBJECTS: Final = 512
MAX_EVENTS_PER_SUBJECT: Final = 128
MAX_CONTAINERS_PER_SUBJECT: Final = 32


@dataclass(slots=True)
class _Subject:
    """Events of one pod, or of the node: occurrences by event, counts and times by container and reason."""

    known: OrderedDict[str, int] = field(default_factory=OrderedDict)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    latest: dict[tuple[str, str], float] = field(default_factory=dict)

    def take(self, event: EventRecord, now: float, listening_since: float | None) -> None:
        """Count the new occurrences of an event, and update its time."""
        growth = self._growth(event, listening_since)
        containers = {name for name, _ in (*self.latest, *self.counts)}
        has_room = event.container in containers or len(containers) < MAX_CONTAINERS_PER_SUBJECT
        place = (event.container if has_room else "", event.reason)
        if growth:
            self.counts[place] += growth
        if event.last is not None and (growth or now - event.last <= RECENT_SECONDS):
            self.latest[place] = max(event.last, self.latest.get(place, event.last))

    def _growth(self, event: EventRecord, listening_since: float | None) -> int:
        """Return how many occurrences are new; 0 of those before the first list."""
        before = self.known.pop(event.uid, None)
        self.known[event.uid] = max(event.count, before or 0)
        if len(self.known) > MAX_EVENTS_PER_SUBJECT:
            self.known.popitem(last=False)
        if listening_since is None:
            return 0
        if before is not None:
            return max(0, event.count - before)
        # Of an event that began before the first list, or was evicted here, only the last occurrence is certain.
        return event.count if event.first is not None and event.first >= listening_since else 1


class EventBook:
    """All observed events. Bounded: the least recently updated subjects are evicted first, those `kept` last."""

    def __init__(self) -> None:
        self._subjects: OrderedDict[str, _Subject] = OrderedDict()
        self._kept: frozenset[str] = frozenset()

    def keep(self, subjects: Collection[str]) -> None:
        """Set the subjects that are shown, which are never evicted."""
        self._kept = frozenset(subjects)

    def take(self, events: Iterable[EventRecord], now: float, listening_since: float | None) -> None:
        """Add events that were listed or watched at `now`.

        `listening_since` is the time of the first list, None for that list: its events happened before and are not
        counted, but those younger than ten minutes set the time of the last one.
        """
        for event in events:
            subject = self._subjects.pop(event.subject, None) or _Subject()
            self._subjects[event.subject] = subject
            if len(self._subjects) > MAX_SUBJECTS:
                others = (known for known in self._subjects if known not in self._kept and known != event.subject)
                if (oldest := next(others, None)) is not None:
                    del self._subjects[oldest]
            subject.take(event, now, listening_since)

    def forget(self, event: EventRecord) -> None:
        """Forget an event that the API server dropped; its occurrences stay counted."""
        if (subject := self._subjects.get(event.subject)) is not None:
            subject.known.pop(event.uid, None)

    def report(self, container: ContainerId, subject: str) -> EventReport:
        """Return the events of that container and its pod; every reason has a count.

        Events that name another container of the pod are left out.
        """
        counts, latest = dict.fromkeys(REASONS, 0), dict[str, float]()
        about = self._subjects.get(subject, _Subject())
        for place in ("", container.container) if container.container else ("",):
            for reason in REASONS:
                counts[reason] += about.counts.get((place, reason), 0)
                when = about.latest.get((place, reason))
                if when is not None:
                    latest[reason] = max(when, latest.get(reason, when))
        return EventReport(container, counts, latest)


MAX_PODS: Final = 1024
MAX_FINISHED: Final = 32
"""Finished pods that are shown; they stay in the API until they are deleted."""

log = structlog.get_logger("kvpressure.sources")


class PodStore:
    """The engine pods of one namespace, or of all; `on_change` is called when a record differs."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._on_change = on_change
        self.records: dict[str, PodRecord] = {}
        self.problems: dict[str, tuple[str, ...]] = {}
        self._tell = RateLimitedLogger(log.warning, time.monotonic)  # who writes an annotation writes no log

    def replaced(self, records: Sequence[PodRecord]) -> None:
        """Replace all records by those of a list."""
        gone = self.records.keys() - {record.key for record in records}
        changed = [self._put(record) for record in records] + [self._drop(key) for key in gone]
        self.problems = {r.key: self.problems[r.key] for r in records if r.key in self.problems}
        if any(changed):
            self._on_change()

    def changed(self, record: PodRecord, *, deleted: bool) -> None:
        """Apply one event of a watch."""
        if deleted:
            self.problems.pop(record.key, None)
        if self._drop(record.key) if deleted else self._put(record):
            self._on_change()

    def _put(self, record: PodRecord) -> bool:
        self._log_problems(record)
        if not record.states:
            return self._drop(record.key)
        before = self.records.get(record.key)
        if before is None and len(self.records) >= MAX_PODS:
            # Evicted pods accumulate on a node; they must not displace running ones.
            oldest = next((key for key, kept in self.records.items() if kept.finished), None)
            if oldest is None:
                return False
            self._drop(oldest)
        self.records[record.key] = record
        return record != before

    def _drop(self, key: str) -> bool:
        return self.records.pop(key, None) is not None

    def _log_problems(self, record: PodRecord) -> None:
        if record.problems == self.problems.get(record.key, ()):
            return
        for problem in record.problems:
            self._tell("pod annotation ignored", source="kubernetes_pods", error=problem)
        if not record.problems:
            del self.problems[record.key]
        elif len(self.problems) < MAX_PODS:
            self.problems[record.key] = record.problems


class EventStore:
    """Passes the events of one namespace to the book; those of the first list are not counted."""

    def __init__(self, book: EventBook, wall: Callable[[], float]) -> None:
        self._book = book
        self._wall = wall
        self.since: float | None = None

    def replaced(self, records: Sequence[EventRecord]) -> None:
        """Add the events of a list; new ones in a later list happened while the watch was broken."""
        now = self._wall()
        self._book.take(records, now, self.since)
        self.since = now if self.since is None else self.since

    def changed(self, record: EventRecord, *, deleted: bool) -> None:
        """Apply one event of a watch."""
        if deleted:
            self._book.forget(record)
        else:
            self._book.take([record], self._wall(), self.since)


class NodeStore:
    """The node's record, None where there is none."""

    record: NodeRecord | None = None

    def replaced(self, records: Sequence[NodeRecord]) -> None:
        """Replace the record by that of a list."""
        self.record = records[0] if records else None

    def changed(self, record: NodeRecord, *, deleted: bool) -> None:
        """Apply one event of a watch."""
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

    Where there are more than may be polled, no namespace displaces the others.
    """
    queues: dict[str, list[tuple[int, Target]]] = {}
    for record in records:
        queues.setdefault(record.namespace, []).extend(enumerate(record.targets))
    turns = [turn for queue in queues.values() for turn in enumerate(sorted(queue, key=lambda entry: entry[0]))]
    return tuple(target for _, (_, target) in sorted(turns, key=lambda entry: entry[0]))

"""Counts events once each: by what they are about and reason, from the moment somebody began to listen."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from kvpressure.kubernetes.objects.events import REASONS, EventRecord
from kvpressure.model.environment import ContainerId, EventReport

RECENT_SECONDS: Final = 600.0
"""How old an event of the first list may be to count as evidence."""

MAX_SUBJECTS: Final = 512
MAX_EVENTS_PER_SUBJECT: Final = 128
MAX_CONTAINERS_PER_SUBJECT: Final = 32


@dataclass(slots=True)
class _Subject:
    """Events of one pod (or of the node): occurrences known by event, and what came of them by container and reason."""

    known: OrderedDict[str, int] = field(default_factory=OrderedDict)
    counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    latest: dict[tuple[str, str], float] = field(default_factory=dict)

    def take(self, event: EventRecord, now: float, listening_since: float | None) -> None:
        """Take in what is new of an event, and when the last of it was."""
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
        # An object that began before we listened was missed, or forgotten here: only its newest occurrence is sure.
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
        """Take events that were listed or watched at `now`.

        `listening_since` is when this listener had its first list, None while it has it: what that list holds
        happened before and is not counted, but what is younger than ten minutes sets the time of the last one.
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
        found = self._subjects.get(subject, _Subject())
        for place in ("", container.container) if container.container else ("",):
            for reason in REASONS:
                counts[reason] += found.counts.get((place, reason), 0)
                when = found.latest.get((place, reason))
                if when is not None:
                    latest[reason] = max(when, latest.get(reason, when))
        return EventReport(container, counts, latest)

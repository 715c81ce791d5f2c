"""One target's stretches through the pipeline: pages in, incidents out as JSON. What a worker does."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from kvpressure.advice import Place, advise
from kvpressure.config.target import Target
from kvpressure.config.thresholds import Thresholds
from kvpressure.engine_state.registry import Pipeline
from kvpressure.model.action import Action
from kvpressure.model.environment import DeclaredLimit
from kvpressure.model.samples import EnginePage
from kvpressure.model.view import EngineKey, EngineView
from kvpressure.tools.incidents.client import Prometheus
from kvpressure.tools.incidents.collect import Collector, Ended, with_fired
from kvpressure.tools.incidents.discover import Seen
from kvpressure.tools.incidents.document import Json, incident_json
from kvpressure.tools.incidents.found import PastIncident
from kvpressure.tools.incidents.pace import LONGEST_STEP_SECONDS, SHORTEST_STEP_SECONDS, paced
from kvpressure.tools.incidents.paging import Span
from kvpressure.tools.incidents.raw import PageMaker, interval_of, read_pages

MAX_PREDICTED: Final = 5
"""Incidents of one engine whose advice is simulated, the costliest: each takes a fraction of a second of CPU."""

PROBED_PAGES: Final = 21
LATE_FACTOR: Final = 1.25
"""Scrapes come a little late, and some not at all."""

STEP_FACTOR: Final = 1.5
"""Between stretches: a difference that is no lost scrape. What was healthy is learned again then."""

SURE_PAGES: Final = 4
"""Of a stretch, that another interval shows in: between fewer, scrapes may have been lost."""

LATE_INTERVALS: Final = 3
"""Between samples, that a verdict comes after the trouble at most: told ones are so much shorter than they were."""

LATE_SECONDS: Final = 300.0
"""An alert that fires so shortly after an incident fires because of it."""


@dataclass(slots=True)
class Followed:
    """What came of one target."""

    incidents: list[Json] = field(default_factory=list)
    unjudged: list[Json] = field(default_factory=list)
    samples: int = 0
    unread: str = ""


@dataclass(slots=True)
class Follower:
    """One target, stretch after stretch; what is healthy for its engines is remembered between them."""

    seen: Seen
    step: float
    thresholds: Thresholds
    shortest_seconds: float
    declared: tuple[DeclaredLimit, ...] | None = None
    advises: bool = True
    samples: int = 0
    _newest: float = float("-inf")
    _pipeline: Pipeline = field(init=False)
    _target: Target = field(init=False)
    _limits: Thresholds = field(init=False)
    _collectors: dict[EngineKey, Collector] = field(default_factory=dict)
    _ended: dict[EngineKey, list[Ended]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        settings, self._limits = paced(self.step, self.thresholds)
        self._pipeline = Pipeline(settings, self._limits)
        target = self.seen.target
        self._target = Target(target.name, target.namespace, target.pod, target.get("container"), limits=self.declared)

    def page(self, page: EnginePage) -> None:
        """Take the next page in."""
        self._newest = page.t
        samples = {(one.model_name, one.engine): one for one in page.engines}
        for view in self._pipeline.on_page(self._target, page):
            self.samples += 1
            collector = self._collector(view)
            self._ended.setdefault(view.key, []).extend(
                collector.add(view, samples[view.key.model_name, view.key.rank])
            )
        self._pipeline.expire(page.t)

    def stretch_ends(self, *, last: bool) -> None:
        """Note that the next page is of a later stretch.

        With `last` this one reached to the end of the time looked at.
        """
        for key, collector in self._collectors.items():
            over = not last or collector.silent_since(self._newest)
            self._ended.setdefault(key, []).extend(collector.finish(ended=over))

    def incidents(self) -> Iterator[PastIncident]:
        """Those that were long enough, with what would have fired and what would have helped."""
        least = max(self.step, self.shortest_seconds - LATE_INTERVALS * self.step)
        for key, ended in self._ended.items():
            fired = self._collectors[key].fired()
            long = [one for one in ended if one.incident.seconds >= least]
            costly = sorted(long, key=lambda one: -(one.incident.lost_tokens or one.incident.seconds))[:MAX_PREDICTED]
            for one in long:
                yield replace(
                    with_fired(one.incident, fired, LATE_SECONDS),
                    actions=self._advice(one.view if one in costly else replace(one.view, observed=None)),
                )

    def unjudged(self) -> Iterator[Json]:
        """Where requests waited for long, and nothing told why."""
        for key, collector in self._collectors.items():
            for detail, seconds in collector.unjudged.items():
                if seconds >= self.shortest_seconds:
                    names = {"target": key.target, "model_name": key.model_name, "engine": key.rank}
                    yield {**names, "detail": detail or None, "seconds": seconds}

    def _collector(self, view: EngineView) -> Collector:
        if view.key not in self._collectors:
            self._collectors[view.key] = Collector(dict(self.seen.target.labels), self._limits, self.step)
        return self._collectors[view.key]

    def _advice(self, view: EngineView) -> tuple[Action, ...]:
        if view.diagnosis is None or not self.advises:
            return ()
        place = Place(
            namespace=view.namespace,
            pod=view.pod,
            container=self._target.container if view.pod else "",
            model_name=view.shown.model_name,
            runtime=view.runtime,
        )
        return advise(view.diagnosis, view.derived, view.limits, place, self._limits, observed=view.observed)


def follow(
    server: Prometheus,
    seen: Seen,
    stretches: Sequence[tuple[Span, bool]],
    step: float | None,
    settings: Sequence[Thresholds],
    shortest_seconds: float,
    declared: tuple[DeclaredLimit, ...] | None = None,
) -> list[Followed]:
    """One target's incidents, oldest first, by each of the settings; its samples are asked for once.

    `step` is None for as often as it was scraped, `declared` None where nobody told its limits. Raises PrometheusError.
    """
    maker = PageMaker(seen.table, seen.target, step or SHORTEST_STEP_SECONDS)
    eras: list[list[Follower]] = []
    unread = ""
    for span, last in stretches:
        pages = read_pages(server, seen.target, maker, seen.table, span, seen.lacks)
        first = list(itertools.islice(pages, PROBED_PAGES))
        own = interval_of([page.t for page in first]) if not eras or len(first) >= SURE_PAGES else None
        if own and own > LONGEST_STEP_SECONDS * LATE_FACTOR:
            unread = f"scraped every {own:.0f} s; verdicts need a scrape a minute"
            continue
        every = max(own or SHORTEST_STEP_SECONDS, step or 0.0)
        if first and (not eras or (own and _another(every, eras[-1][0].step))):
            eras.append([Follower(seen, every, one, shortest_seconds, declared) for one in settings])
        if eras:
            for page in itertools.chain(first, pages):
                for follower in eras[-1]:
                    follower.page(page)
            for follower in eras[-1]:
                follower.stretch_ends(last=last)
    return [_followed(followers, unread) for followers in zip(*eras, strict=True)] or [
        Followed(unread=unread) for _ in settings
    ]


def _another(step: float, before: float) -> bool:
    """Whether somebody has changed how often is scraped: windows that are made for the one fail with the other."""
    return max(step, before) > STEP_FACTOR * min(step, before)


def _followed(followers: Sequence[Follower], unread: str) -> Followed:
    past = itertools.chain.from_iterable(follower.incidents() for follower in followers)
    found = sorted((incident_json(one) for one in past), key=lambda one: one["began"])
    unjudged = list(itertools.chain.from_iterable(follower.unjudged() for follower in followers))
    return Followed(found, unjudged, sum(follower.samples for follower in followers), unread)

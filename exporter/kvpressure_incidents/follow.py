"""The pages of targets' stretches through the pipeline to incidents as JSON, in this process or in several."""

from __future__ import annotations

import itertools
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from kvpressure.advice.advise import Case, Place, advise_on
from kvpressure.config.target import Target
from kvpressure.config.thresholds import Thresholds
from kvpressure.engine_state import Pipeline
from kvpressure.engine_state.pace import paced
from kvpressure.model.codec import action_json
from kvpressure.model.environment import DeclaredLimit, Environment, GatewayReport
from kvpressure.model.samples import EnginePage, GpuReport
from kvpressure.model.view import EngineKey, EngineView
from kvpressure.prometheus.answers import PrometheusError
from kvpressure.prometheus.client import Prometheus, Server
from kvpressure.prometheus.declared import Gpus
from kvpressure.prometheus.gateways import Pool, Queue
from kvpressure.prometheus.names import Discovered, Json
from kvpressure.prometheus.paging import Span
from kvpressure.prometheus.raw import PageMaker, interval_of, read_pages
from kvpressure.signals.gateway import with_gateways
from kvpressure.sources.gpu.exporter_pages import NAME as GPU_EXPORTER
from kvpressure_incidents.collect import Collector, Ended

MAX_PREDICTED: Final = 5
"""Incidents of one engine whose advice is simulated, the costliest: each takes a fraction of a second of CPU."""

PROBED_PAGES: Final = 21
LATE_FACTOR: Final = 1.25
"""Scrapes come a little late, and some not at all."""

STEP_FACTOR: Final = 1.5
"""Between stretches: a larger difference is not a lost scrape; the healthy baselines are learned again then."""

SURE_PAGES: Final = 4
"""With fewer pages in a stretch, a longer interval may be lost scrapes."""

LATE_INTERVALS: Final = 3
"""A verdict comes at most so many samples after the trouble: incidents come out as much shorter than they were."""

SHORTEST_STEP_SECONDS: Final = 15.0
LONGEST_STEP_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class Task:
    """One target to follow, as a worker process gets it.

    Each of the `stretches` says whether it reaches the end of the question's time. `step` is None for the scrape
    interval, `declared` None where the limits are unknown, `pool` None without a gateway, `role` and `gpus`, which
    selects their series, "" where the Prometheus has none.
    """

    server: Server
    discovered: Discovered
    stretches: tuple[tuple[Span, bool], ...]
    step: float | None
    settings: tuple[Thresholds, ...]
    shortest_seconds: float
    declared: tuple[DeclaredLimit, ...] | None = None
    pool: Pool | None = None
    role: str = ""
    gpus: str = ""


@dataclass(slots=True)
class Follower:
    """One target, stretch after stretch; the baselines of its engines are kept between them."""

    task: Task
    step: float
    thresholds: Thresholds
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
        task = self.task
        self._target = task.discovered.polled(task.declared, task.role, gpus=bool(task.gpus))

    def page(self, page: EnginePage, gateways: tuple[GatewayReport, ...] = (), gpus: GpuReport | None = None) -> None:
        """Process the next page, with what gateways reported then and the engine's GPUs."""
        self._newest = page.t
        if gpus is not None:
            self._pipeline.on_gpus(GPU_EXPORTER, gpus)
        self._pipeline.set_environment(page.t, Environment(reports=gateways))
        ranks = len(page.engines)
        whole = (with_gateways(sample, self._target, ranks, gateways)[0] for sample in page.engines)
        samples = {(sample.model_name, sample.engine): sample for sample in whole}
        for view in self._pipeline.on_page(self._target, page):
            self.samples += 1
            if view.key not in self._collectors:
                labels = dict(self.task.discovered.target.labels)
                self._collectors[view.key] = Collector(labels, self._limits, self.step)
            ended = self._collectors[view.key].add(view, samples[view.key.model_name, view.key.rank])
            self._ended.setdefault(view.key, []).extend(ended)
        self._pipeline.expire(page.t)

    def stretch_ends(self, *, last: bool) -> None:
        """Record that the next page is of a later stretch; with `last` this one reached the end of the time."""
        for key, collector in self._collectors.items():
            over = not last or collector.silent_since(self._newest)
            self._ended.setdefault(key, []).extend(collector.finish(ended=over))

    def incidents(self) -> Iterator[Json]:
        """Yield the incidents that were long enough, with the advice."""
        least = max(self.step, self.task.shortest_seconds - LATE_INTERVALS * self.step)
        for every in self._ended.values():
            long = [ended for ended in every if ended.seconds >= least]
            costly = sorted(long, key=lambda ended: -ended.cost)[:MAX_PREDICTED]
            for ended in long:
                actions = self._advice(ended.view if ended in costly else replace(ended.view, observed=None))
                yield {**ended.incident, "actions": actions}

    def unjudged(self) -> Iterator[Json]:
        """Yield where requests waited for long without a known cause."""
        for key, collector in self._collectors.items():
            for detail, seconds in collector.unjudged.items():
                if seconds >= self.task.shortest_seconds:
                    names = {"target": key.target, "model_name": key.model_name, "engine": key.rank}
                    yield {**names, "detail": detail or None, "seconds": seconds}

    def _advice(self, view: EngineView) -> list[Json]:
        if view.diagnosis is None or not self.advises:
            return []
        place = Place(
            namespace=view.namespace,
            pod=view.pod,
            container=self._target.container if view.pod else "",
            model_name=view.shown.model_name,
            runtime=view.runtime,
        )
        case = Case(view.diagnosis, view.derived, view.limits, self._limits, place, view.observed)
        return [action_json(action) for action in advise_on(case)]


def follow(server: Prometheus, task: Task) -> Json:
    """Return one target's incidents, oldest first, by each of the settings; its samples are queried once.

    Raises PrometheusError.
    """
    reading = _Reading(server, task)
    for span, last in task.stretches:
        reading.stretch(span, last=last)
    by_setting = zip(*reading.eras, strict=True) if reading.eras else itertools.repeat((), len(task.settings))
    incidents, *others = [_oldest_first(followers) for followers in by_setting]
    followers = [era[0] for era in reading.eras]
    return {
        "incidents": incidents,
        "others": others,
        "unjudged": [row for follower in followers for row in follower.unjudged()],
        "samples": sum(follower.samples for follower in followers),
        "unread": reading.unread,
        "warnings": list(server.warnings),
    }


class _Reading:
    """What was read of a target: `eras` have a follower for each of the settings, and one scrape interval each."""

    def __init__(self, server: Prometheus, task: Task) -> None:
        self._server, self._task = server, task
        discovered = task.discovered
        self._maker = PageMaker(discovered.table, discovered.target, task.step or SHORTEST_STEP_SECONDS)
        self._queue = Queue(server, task.pool, discovered.target.name) if task.pool else None
        self._gpus = Gpus(server, task.gpus) if task.gpus else None
        self.eras: list[list[Follower]] = []
        self.unread = ""

    def stretch(self, span: Span, *, last: bool) -> None:
        """Read the next stretch; the `last` reaches the end of the time."""
        discovered = self._task.discovered
        pages = read_pages(self._server, discovered.target, self._maker, discovered.table, span, discovered.lacks)
        probed = list(itertools.islice(pages, PROBED_PAGES))
        known = not self.eras or len(probed) >= SURE_PAGES
        interval = interval_of([page.t for page in probed]) if known else None
        if interval and interval > LONGEST_STEP_SECONDS * LATE_FACTOR:
            self.unread = f"scraped every {interval:.0f} s; verdicts need a scrape a minute"
            return
        if probed:
            self._begin_era(interval)
        if self.eras:
            self._read(itertools.chain(probed, pages), last=last)

    def _begin_era(self, interval: float | None) -> None:
        """Begin another era where the scrape interval was changed: windows made for one do not suit the other."""
        step = max(interval or SHORTEST_STEP_SECONDS, self._task.step or 0.0)
        if self.eras:
            before = self.eras[-1][0].step
            if not interval or max(step, before) <= STEP_FACTOR * min(step, before):
                return
        self.eras.append([Follower(self._task, step, thresholds) for thresholds in self._task.settings])

    def _read(self, pages: Iterator[EnginePage], *, last: bool) -> None:
        followers = self.eras[-1]
        for page in pages:
            gateways = self._queue.at(page.t) if self._queue else ()
            gpus = self._gpus.at(page.t) if self._gpus else None
            for follower in followers:
                follower.page(page, gateways, gpus)
        for follower in followers:
            follower.stretch_ends(last=last)


def _oldest_first(followers: Sequence[Follower]) -> list[Json]:
    incidents = [incident for follower in followers for incident in follower.incidents()]
    return sorted(incidents, key=lambda incident: incident["began"])


def work(task: Task) -> Json:
    """Follow one target, with a connection of its own. Raises PrometheusError."""
    with Prometheus(task.server) as client:
        return follow(client, task)


def in_parallel(tasks: Sequence[Task], workers: int, finished: Callable[[Task, Json], None]) -> None:
    """Run tasks in `workers` processes, the longest first, so that all end together. Raises PrometheusError."""
    longest = sorted(tasks, key=lambda task: -sum(span.seconds for span, _ in task.stretches))
    context = multiprocessing.get_context("spawn")
    before = set(multiprocessing.active_children())
    # Ctrl-C is left to the parent, which ends the others: a terminal sends it to every process.
    ignore = partial(signal.signal, signal.SIGINT, signal.SIG_IGN)
    pool = ProcessPoolExecutor(min(workers, len(tasks)), context, initializer=ignore)
    over = False
    try:
        running: dict[Future[Json], Task] = {pool.submit(work, task): task for task in longest}
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                finished(running.pop(future), future.result())
        over = True
    except BrokenProcessPool as error:
        text = "a process that read was killed, perhaps for want of memory; give fewer --workers"
        raise PrometheusError(text) from error
    finally:
        if not over:
            for process in set(multiprocessing.active_children()) - before:
                process.terminate()
        pool.shutdown(wait=True, cancel_futures=True)

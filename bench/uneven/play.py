"""One run: requests through a router to four engines of vLLM's scheduler, and the series a Prometheus would have."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from bench.detection.shipped import asked_of_vllm
from bench.scaling.replica import Replica, Request
from bench.scaling.shapes import COST, FLAGS
from bench.uneven.routers import Router
from bench.uneven.traffic import REPLICAS, SECONDS, Traffic
from kvpressure.config.target import Target
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engine_state import Pipeline, PipelineSettings
from kvpressure.engines.reader import PageReader
from kvpressure.exposition import Snapshot
from kvpressure.exposition.text import SnapshotCollector
from kvpressure.model.environment import DeclaredLimit
from kvpressure.runtimes.vllm.metrics import ALL_NAMES, POLL_NAMES
from tests.lab.clock import BEGIN, Clock
from tests.lab.events import Events
from tests.lab.regime import Cost, Flags, Regime

POLL_SECONDS: Final = 2.5
"""The exporter polls every second; a window of 20 s has the eight polls that a verdict needs at this pace too."""
SCRAPE_POLLS: Final = 6
SCRAPES: Final = round(SECONDS / POLL_SECONDS / SCRAPE_POLLS)
LIMITS: Final = ("max_num_seqs", "max_num_batched_tokens")
_ROW: Final = re.compile(r"^(vllm:\w+)\{([^}]*)\} (\S+)$", re.MULTILINE)
ASKED: Final = frozenset(
    f"kvpressure_{name}"
    for name in (
        "bottleneck",
        "demand_replicas",
        "engine_up",
        "kv_cache_usage_ratio",
        "kv_capacity_tokens",
        "prefix_cache_hit_ratio",
        "requests_running",
        "requests_waiting",
        "role",
    )
)
Series = dict[str, list[str]]
"""By name and labels, a value a scrape; `_` where there is none."""


class Watched(Replica):
    """A replica that knows how long its requests waited, also after they were preempted."""

    def __init__(self, number: int, regime: Regime, package: Path, events: Events, slower: float) -> None:
        super().__init__(number, regime, package, events, BEGIN)
        self.slower = slower
        self.waited: dict[str, float] = {}
        self._since: dict[str, float] = {}
        self._now = events.clock

    def send(self, name: str, request: Request) -> None:
        """A request comes."""
        self._since[name] = self._now.now
        super().send(name, request)

    def scheduled(self, decision: Any) -> None:
        """Those that are admitted have waited; those that are preempted wait again."""
        for name in decision.preempted_req_ids or ():
            self._since[name] = self._now.now
        for name in decision.num_scheduled_tokens:
            if name in self._since:
                self.waited[name] = self.waited.get(name, 0.0) + self._now.now - self._since.pop(name)

    def still(self, now: float) -> dict[str, float]:
        """Seconds that each request has waited, those that still do so among them."""
        return self.waited | {name: self.waited.get(name, 0.0) + now - since for name, since in self._since.items()}


class Run:
    """`series` stays empty without `scraped`; `waits` has (minute of its arrival, seconds waited) of each request."""

    def __init__(self, traffic: Traffic, router: Router, package: Path, clock: Clock, name: str = "") -> None:
        clock.now = BEGIN
        self._clock, self._events, self._router, self._name = clock, Events(clock), router, name
        self._replicas = [self._replica(traffic, number, package) for number in range(REPLICAS)]
        self._pipeline, self._readers = (
            Pipeline(PipelineSettings(), load_thresholds()),
            [PageReader() for _ in range(REPLICAS)],
        )
        self._polls = 0
        self._minutes: dict[str, int] = {}
        self.series: Series = {}
        for number, request in enumerate(traffic.requests()):
            self._minutes[f"r{number}"] = int((request.arrived - BEGIN) // 60)
            self._events.at(request.arrived, partial(self._arrive, f"r{number}", replace(request)))
        if name:
            self._events.at(BEGIN + POLL_SECONDS, self._poll)

    def play(self) -> list[tuple[int, float]]:
        """All of it: of each request the minute in which it came, and the seconds that it waited."""
        self._events.play(BEGIN + SECONDS, self._move)
        waits = [(name, s) for one in self._replicas for name, s in one.still(self._clock.now).items()]
        return [(self._minutes[name], seconds) for name, seconds in waits]

    def _replica(self, traffic: Traffic, number: int, package: Path) -> Watched:
        slower = traffic.slower.get(number, 1.0)
        cost = Cost(**{key: slower * seconds for key, seconds in COST.items()})
        flags = Flags(**{**FLAGS, "enable_prefix_caching": True})
        regime = Regime(name=traffic.name, family="uneven", about="", expect="", flags=flags, cost=cost)
        return Watched(number, regime, package, self._events, slower)

    def _move(self, t: float) -> None:
        self._clock.now = max(self._clock.now, t)

    def _arrive(self, name: str, request: Request) -> None:
        self._router(request, self._replicas).send(name, request)

    def _poll(self) -> None:
        now, scrape = self._clock.now, self._polls % SCRAPE_POLLS == 0
        limits = tuple(DeclaredLimit(name, FLAGS[name], name) for name in LIMITS)
        for one, reader in zip(self._replicas, self._readers, strict=True):
            pod = f"vllm-7c9d8b5f6-{'abcd'[one.number] * 5}"
            page = one.page(ALL_NAMES if scrape else POLL_NAMES)
            target = Target(f"{self._name}/{pod}:8000", namespace=self._name, pod=pod, limits=limits)
            self._pipeline.on_page(target, reader.read(page, now))
            if scrape:
                place = f'job="vllm",instance="{pod}.{self._name}:8000",namespace="{self._name}",pod="{pod}"'
                for name, labels, value in _ROW.findall(page.decode()):
                    if name in asked_of_vllm():
                        self._note(f"{name}{{{place},{labels}}}", float(value))
        self._pipeline.expire(now)
        if scrape:
            for metric in SnapshotCollector(Snapshot(now, self._pipeline.engine_views(now))).collect():
                for sample in metric.samples:
                    if sample.name in ASKED:
                        shown = ",".join(f'{key}="{value}"' for key, value in sample.labels.items() if value)
                        self._note(f'{sample.name}{{job="kvpressure",instance="node:10405",{shown}}}', sample.value)
        self._polls += 1
        self._events.at(now + POLL_SECONDS, self._poll)

    def _note(self, series: str, value: float) -> None:
        values = self.series.setdefault(series, [])
        values += ["_"] * (self._polls // SCRAPE_POLLS - len(values)) + [f"{value:.6g}"]

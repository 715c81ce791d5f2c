"""One run: requests through a router to engines of vLLM's scheduler, and the series a Prometheus would have."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bench.detection.shipped import named_by
from bench.scaling.replica import Replicas
from bench.scaling.routers import ROUTERS, Router, where_it_fits
from bench.scaling.shapes import FLAGS, Shape
from bench.uneven.traffic import HELD_OUT, TRAFFIC
from kvpressure.bundle.options import EXPORTER, VLLM_ONLY
from kvpressure.config.target import Target
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engine_state import Pipeline, PipelineSettings
from kvpressure.engines.reader import PageReader
from kvpressure.exposition import Snapshot
from kvpressure.exposition.text import SnapshotCollector
from kvpressure.model.environment import DeclaredLimit
from kvpressure.runtimes.vllm.metrics import ALL_NAMES, POLL_NAMES
from tests.lab.clock import BEGIN, Clock

POLL_SECONDS: Final = 2.5
"""The exporter polls every second; a window of 20 s has the eight polls that a verdict needs at this pace too."""
SCRAPE_POLLS: Final = 6
LIMITS: Final = ("max_num_seqs", "max_num_batched_tokens")
_ROW: Final = re.compile(r"^(vllm:\w+)\{([^}]*)\} (\S+)$", re.MULTILINE)
Waits = tuple[float, Sequence[tuple[float, float]]]
Series = dict[str, list[str]]
"""By name and labels, a value a scrape; `_` where there is none."""


class Run(Replicas):
    """`series` stays empty without the `name` of an episode."""

    def __init__(self, traffic: Shape, router: Router, clock: Clock, name: str = "") -> None:
        super().__init__(traffic, router, clock)
        self._name, self._polls, self.series = name, 0, Series()
        self._pipeline = Pipeline(PipelineSettings(), load_thresholds())
        self._readers = [PageReader() for _ in range(traffic.replicas)]
        for _ in self._readers:
            self.start()
        if name:
            self.events.at(BEGIN + POLL_SECONDS, self._poll)

    def waits(self) -> list[Waits]:
        """Of each request the second in which it came, and those from and until which it waited."""
        now = self._clock.now
        still = ([*one.waits, *([] if one.waits_since is None else [(one.waits_since, now)])] for one in self.requests)
        times = ([(begin - BEGIN, end - BEGIN) for begin, end in spans] for spans in still)
        return [(one.arrived - BEGIN, spans) for one, spans in zip(self.requests, times, strict=True)]

    def _poll(self) -> None:
        now, scrape = self._clock.now, self._polls % SCRAPE_POLLS == 0
        limits = tuple(DeclaredLimit(name, FLAGS[name], name) for name in LIMITS)
        for one, reader in zip(self.replicas, self._readers, strict=True):
            pod = f"vllm-7c9d8b5f6-{'abcdef'[one.number] * 5}"
            page = one.page(ALL_NAMES if scrape else POLL_NAMES)
            target = Target(f"{self._name}/{pod}:8000", namespace=self._name, pod=pod, limits=limits)
            self._pipeline.on_page(target, reader.read(page, now))
            if scrape:
                place = f'job="vllm",instance="{pod}.{self._name}:8000",namespace="{self._name}",pod="{pod}"'
                for name, labels, value in _ROW.findall(page.decode()):
                    if name in named_by(VLLM_ONLY):
                        self._note(f"{name}{{{place},{labels}}}", float(value))
        self._pipeline.expire(now)
        if scrape:
            for metric in SnapshotCollector(Snapshot(now, self._pipeline.engine_views(now))).collect():
                for sample in metric.samples:
                    if sample.name in named_by(EXPORTER):
                        shown = ",".join(f'{key}="{value}"' for key, value in sample.labels.items() if value)
                        self._note(f'{sample.name}{{job="kvpressure",instance="node:10405",{shown}}}', sample.value)
        self._polls += 1
        self.events.at(now + POLL_SECONDS, self._poll)

    def _note(self, series: str, value: float) -> None:
        values = self.series.setdefault(series, [])
        values += ["_"] * (self._polls // SCRAPE_POLLS - len(values)) + [f"{value:.6g}"]


def answer(wish: Mapping[str, Any], clock: Clock) -> dict[str, Any]:
    """Run the traffic of a wish, a place among all, through its `router`; its series are those of its `episode`."""
    made = ROUTERS.get(wish["router"], where_it_fits)
    run = Run((*TRAFFIC, *HELD_OUT)[wish["traffic"]], made(), clock, wish["episode"])
    run.run()
    return {**wish, "waits": run.waits(), "series": run.series}

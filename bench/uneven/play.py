"""One run: requests through a router to engines of vLLM's scheduler, and the series a Prometheus would have.

What comes when, and which replica is slower, is drawn from a seed, the same for every router.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from bench.detection.shipped import named_by
from bench.scaling.replica import ROUTERS, Replicas, Router, where_it_fits
from bench.scaling.shapes import FLAGS, Kind, Rate, Shape, flat, steps
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

MINUTES: Final = 40
SKEWED: Final = (600, 1800)
"""What makes traffic skewed lasts from one to the other; a slower card is slower all the time."""
LONG_PROMPT: Final = 14_000
LONG_EVERY_SECONDS: Final = 75
CACHING: Final = {"enable_prefix_caching": True}


def _chat(rate: float) -> Kind:
    """Of 200 sessions that have little in common."""
    return Kind(flat(rate), (500, 1300), (20, 48), sessions=(100, 299), shared=300)


def _hot(rate: float) -> Kind:
    """Of one session that sends many requests."""
    return Kind(_skewed(rate), (900, 1300), (20, 48), sessions=(3, 3), shared=800)


def _long(session: int) -> Kind:
    """Of one session that has a long context."""
    rate = _skewed(1 / LONG_EVERY_SECONDS)
    return Kind(rate, (LONG_PROMPT, LONG_PROMPT), (150, 150), (session, session), LONG_PROMPT - 500)


def _skewed(rate: float) -> Rate:
    return steps((0, 0.0), (SKEWED[0], rate), (SKEWED[1], 0.0))


def _shape(name: str, *kinds: Kind, slower: Mapping[int, float] | None = None, replicas: int = 4) -> Shape:
    return Shape(name, "", kinds, CACHING, seconds=60 * MINUTES, replicas=replicas, slower=slower or {})


TRAFFIC: Final = (
    _shape("equal", _chat(2.0)),
    _shape("equal, nearly full", _chat(3.2)),
    _shape("equal, too much", _chat(4.8)),
    _shape("two long contexts", _chat(1.6), _long(4), _long(8)),
    _shape("two long contexts, busy", _chat(2.4), _long(4), _long(8)),
    _shape("one hot session", _chat(1.2), _hot(1.2)),
    _shape("one hot session, busy", _chat(1.6), _hot(1.8)),
    _shape("a slower card", _chat(1.6), slower={3: 2.5}),
    _shape("a slower card, busy", _chat(2.4), slower={3: 2.5}),
)
_DOCUMENTS: Final = Kind(
    steps((0, 0.05), (500, 0.45), (900, 0.1), (1300, 0.6), (1900, 0.05)), (2500, 5500), (40, 70), (10, 21), 2000
)
HELD_OUT: Final = (
    *(replace(shape, seed=49) for shape in TRAFFIC),
    _shape("documents in waves, six replicas", _chat(2.6), _DOCUMENTS, replicas=6),
)
"""Run once, when the rules were done: a seed, a kind of traffic and a number of replicas that they had not seen."""


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

"""Finite values that no engine has, 1e308 or denormals, from a page to all that is shown: no error, no infinity."""

import itertools
import json
import math
import random
import re
from collections.abc import Iterator, Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpressure.advice.advise import Action, Place, advise
from kvpressure.cli.console import console
from kvpressure.cli.findings import Finding
from kvpressure.cli.replay import ReplayTarget
from kvpressure.cli.report import triage_report
from kvpressure.commandline import options as numbers
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engine_state import Pipeline, PipelineSettings
from kvpressure.engines.reader import PageReader
from kvpressure.exposition import Snapshot, status, text
from kvpressure.kubernetes import objects as fields
from kvpressure.model.environment import DeclaredLimit
from kvpressure.model.samples import HistogramSample
from kvpressure.model.values import Value
from kvpressure.model.view import EngineView
from kvpressure.promtext.lines import PageError
from kvpressure.signals.history import Histories
from tests.support.pages import single
from tests.support.schemas import check

THRESHOLDS = load_thresholds()
EXTREMES = [
    *("0", "5e-324", "2.3e-308", "1e-300", "1e-9", "1", "9007199254740992", "9007199254740994"),
    *("1e19", "1e154", "1e300", "1e308", "-1", "-1e308"),
]
EVERYTHING = [*EXTREMES, "1.7976931348623157e308", "NaN", "+Inf", "-Inf", "1e999"]
CACHE_LABELS = (
    *("block_size", "num_gpu_blocks", "num_gpu_blocks_override", "kv_cache_size_tokens", "kv_cache_memory_bytes"),
    *("kv_cache_max_concurrency", "gpu_memory_utilization"),
)
LINES = [
    line for line in single("vllm-0.32.0-two-ranks.prom").decode().splitlines() if line and 'engine="1"' not in line
]
KINDS = {
    "gauges": re.compile(r"vllm:(num_requests_|kv_cache_usage|engine_sleep)"),
    "counters": re.compile(r"\S*_total\b|vllm:\w+_count\b"),
    "buckets": re.compile(r"vllm:\w+_(bucket|count)\b"),
    "sums": re.compile(r"vllm:\w+_sum\b"),
    "all values": re.compile(r"[^#]"),
}


def plain(value: Value) -> object:
    """A value as JSON may have it: numbers, and objects keyed by label value or bucket bound."""
    if isinstance(value, HistogramSample):
        buckets = {"+Inf" if math.isinf(b) else str(b): n for b, n in zip(value.bounds, value.counts, strict=True)}
        return {"buckets": buckets, "sum": value.sum, "count": value.count}
    if isinstance(value, Mapping):
        return {name: plain(below) for name, below in value.items()}
    return value


def page(kind: str, value: str) -> str:
    """The recorded page with one value in every line of a kind."""
    return "\n".join(f"{line.rpartition(' ')[0]} {value}" if KINDS[kind].match(line) else line for line in LINES) + "\n"


def with_cache(where: str, label: str, value: str) -> str:
    return re.sub(rf'\b{label}="[^"]*"', f'{label}="{value}"', where)


class Story:
    """Pages on their way to everything that people and programs are shown."""

    def __init__(self, declared: Sequence[DeclaredLimit] = ()) -> None:
        self.target = ReplayTarget("t", limits=tuple(declared) or None)
        self.pipeline, self.reader, self.histories = Pipeline(PipelineSettings(), THRESHOLDS), PageReader(), Histories()
        self.t = 1.8e9

    def read(self, page: str, seconds: float = 1.0) -> None:
        self.t += seconds
        try:
            read = self.reader.read(page.encode(), self.t)
        except PageError:
            return
        self.pipeline.on_page(self.target, read)
        self.pipeline.expire(self.t)
        self.histories.add(self.t, self.pipeline.engine_views(self.t), ())

    def check(self) -> None:
        snapshot = Snapshot(self.t, engines=self.pipeline.engine_views(self.t), histories=self.histories)
        for openmetrics in (False, True):
            for line in text.render(snapshot, openmetrics=openmetrics).decode().splitlines():
                assert line.startswith("#") or math.isfinite(float(line.rpartition(" ")[2])), line
        document = status.diagnosis_json(snapshot, self.advice)
        json.dumps(document, allow_nan=False)
        check("diagnosis", document)
        assert "please report" not in status.status_html(snapshot, "/metrics", self.advice)
        for view in snapshot.engines:
            for value in view.derived.values():
                json.dumps(plain(value), allow_nan=False)
            out = console()
            with out.capture():
                out.print(triage_report([Finding("t", view, actions=self.advice(view))], self.t))

    def advice(self, view: EngineView) -> tuple[Action, ...]:
        return advise(view.diagnosis, view.derived, view.limits, Place(target="t"), THRESHOLDS)


@pytest.mark.fault(
    "a page with 1e308, a denormal or a negative number in its gauges, counters, buckets or sums",
    "no `internal` error: impossible values are absent, all others on the page count, and no infinite value is shown",
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value", EXTREMES)
def test_an_extreme_value_everywhere_is_no_error_and_shows_no_infinity(kind: str, value: str) -> None:
    story = Story()
    for pages in ([page(kind, "1")] * 10, [page(kind, value)] * 10, [page(kind, "2")] * 3):
        for one in pages:
            story.read(one)
        story.check()


@pytest.mark.fault("a page that reports 1e308 blocks for its cache, or 1e-300 of the memory", "the value is ignored")
@pytest.mark.parametrize("label", CACHE_LABELS)
@pytest.mark.parametrize("value", EXTREMES)
def test_an_extreme_cache_is_no_error(label: str, value: str) -> None:
    story = Story()
    for _ in range(10):
        story.read(with_cache(page("gauges", "1"), label, value))
    story.check()


def test_an_impossible_reading_is_absent_and_its_neighbours_are_not() -> None:
    lines = [
        re.sub(r" \S+$", " 1e308", line) if line.startswith("vllm:num_requests_running") else line for line in LINES
    ]
    (engine,) = PageReader().read(("\n".join(lines) + "\n").encode(), 0.0).engines
    assert "running" not in engine.gauges
    assert engine.gauges.keys() >= {"waiting", "kv_usage"}


def test_the_largest_number_that_counts_by_one_is_still_a_reading() -> None:
    (engine,) = PageReader().read(page("counters", "9007199254740992").encode(), 0.0).engines
    assert engine.counters["generation_tokens"] == 2**53
    (engine,) = PageReader().read(page("counters", "9007199254740994").encode(), 0.0).engines
    assert "generation_tokens" not in engine.counters


def test_a_share_of_the_memory_that_no_server_starts_with_is_not_a_limit() -> None:
    assert numbers.share("1e-300") is None
    assert numbers.share("0.001") == 0.001


def test_a_count_of_the_api_server_that_no_float_can_hold_is_not_known() -> None:
    assert fields.whole({"restartCount": 10**400}, "restartCount") is None
    assert fields.whole({"restartCount": 2**53}, "restartCount") == 2**53


STEMS = sorted({line.partition("_bucket")[0] for line in LINES if re.match(r"vllm:\w+_bucket", line)})
BOUNDS = sorted(float(value) for value in EXTREMES)


def grown(stem: str, scale: float, total: str, bounds: Sequence[float]) -> list[str]:
    """The page with one histogram that is sound but for its size; `bounds` replace the first of its own."""
    counts, lines, ends = itertools.count(1), [], iter(bounds)
    for line in LINES:
        head = line.rpartition(" ")[0]
        if line.startswith(f"{stem}_bucket") and 'le="+Inf"' not in line:
            head = re.sub(r'le="([^"]*)"', lambda found: f'le="{next(ends, found[1])}"', head)
            lines.append(f"{head} {next(counts) * scale!r}")
        elif line.startswith((f"{stem}_bucket", f"{stem}_count")):
            lines.append(f"{head} {1000 * scale!r}")
        else:
            lines.append(f"{head} {total}" if line.startswith(f"{stem}_sum") else line)
    return lines


def strange(chance: random.Random) -> Iterator[str]:
    """Three pages of one server, each with some values changed."""
    labels = {label: chance.choice(EVERYTHING) for label in CACHE_LABELS if chance.random() < 0.4}
    stem, total = chance.choice(STEMS), chance.choice(EVERYTHING)
    bounds = BOUNDS if chance.random() < 0.2 else ()
    rate, scale = chance.choice([0.0, 0.02, 0.1, 0.3]), chance.choice([1.0, 1e10, 1e16, 1e300, 5e-324])
    for number in range(1, 4):
        lines = grown(stem, scale * number, total, bounds)
        for at, line in enumerate(lines):
            if not line.startswith(("#", stem)) and chance.random() < rate:
                lines[at] = f"{line.rpartition(' ')[0]} {chance.choice(EVERYTHING)}"
        whole = "\n".join(lines) + "\n"
        for label, value in labels.items():
            whole = with_cache(whole, label, value)
        yield whole


@given(st.integers(0, 2**64), st.sampled_from([1e-6, 0.1, 1.0, 5.0]))
@settings(max_examples=60)
def test_whatever_stands_on_pages_nothing_fails_and_nothing_shown_is_infinite(seed: int, seconds: float) -> None:
    chance = random.Random(seed)
    limits = [
        DeclaredLimit("gpu_memory_utilization", chance.choice([0.001, 0.9, 1.0]), "args"),
        DeclaredLimit("max_num_seqs", chance.choice([1.0, 256.0, 1e18]), "args"),
        DeclaredLimit("max_model_len", chance.choice([1.0, 8192.0, 1e18]), "args"),
    ]
    story = Story([limit for limit in limits if chance.random() < 0.3])
    for one in strange(chance):
        for _ in range(4):
            story.read(one, seconds)
    story.check()

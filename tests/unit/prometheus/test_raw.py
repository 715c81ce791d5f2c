"""Samples of a Prometheus, put together again, are the pages that were scraped."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from kvpressure.engines.reader import PageReader
from kvpressure.model.samples import EnginePage
from kvpressure.prometheus.names import (
    Discovered,
    Selection,
    Spelled,
    Target,
    all_names,
    labelled_engine,
    spelled,
    target_of,
)
from kvpressure.prometheus.raw import PageMaker, interval_of
from kvpressure.runtimes.registry import TABLES
from kvpressure.runtimes.vllm.metrics import VLLM
from tests.support.tools import FIXTURES

LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)", re.MULTILINE)
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
TARGET = {"namespace": "prod", "pod": "llm-0", "instance": "10.0.0.1:8000", "job": "vllm"}


def answer(pages: Mapping[float, str], **labels: str) -> list[dict[str, Any]]:
    """As a range selector is answered."""
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for t, page in pages.items():
        for name, inner, value in LINE.findall(page):
            metric = {"__name__": name, **dict(LABEL.findall(inner)), **TARGET, **labels}
            one = found.setdefault(tuple(sorted(metric.items())), {"metric": metric, "values": []})
            one["values"].append([t, float(value)])
    return list(found.values())


def pages_of(series: list[dict[str, Any]]) -> Iterator[EnginePage]:
    return PageMaker(VLLM, target_of(TARGET, VLLM), 15.0).pages(series)


@pytest.mark.parametrize("name", ["vllm-0.12.0-multiprocess", "vllm-0.32.0-two-ranks"])
def test_the_page_is_the_one_that_the_reader_reads(name: str) -> None:
    text = (FIXTURES / "pages" / f"{name}.prom").read_text()
    made = list(pages_of(answer({100.0: text, 115.0: text})))
    assert made == [PageReader().read(text.encode(), t) for t in (100.0, 115.0)]


def test_samples_of_one_scrape_may_be_a_little_apart_and_copies_count_once() -> None:
    text = (FIXTURES / "pages" / "vllm-0.32.0-two-ranks.prom").read_text()
    first = answer({100.0: text, 115.0: text}, prometheus_replica="a")
    late = [{**one, "values": [[t + 0.02, value] for t, value in one["values"]]} for one in first[::2]]
    copies = answer({115.0: text}, prometheus_replica="b")
    (whole, again) = pages_of([*late, *first[1::2], *copies])
    assert [engine.counters for engine in whole.engines] == [
        engine.counters for engine in PageReader().read(text.encode(), 100.0).engines
    ]
    assert whole.engines == again.engines


def counts(pages: Any) -> list[tuple[float, list[int]]]:
    return [(page.t, [len(engine.counters) for engine in page.engines]) for page in pages]


def test_a_page_is_of_one_of_the_servers_that_scrape_at_times_of_their_own() -> None:
    text = (FIXTURES / "pages" / "vllm-0.32.0-two-ranks.prom").read_text()
    first = answer({100.0 + 15 * turn: text for turn in range(8)}, prometheus_replica="a")
    second = answer({107.0 + 15 * turn: text for turn in range(8)}, prometheus_replica="b")
    for one in first[::2]:
        del one["values"][-1]  # such as of a scrape that was cut by the end of what was asked
    whole = [len(engine.counters) for engine in PageReader().read(text.encode(), 100.0).engines]
    made = counts(pages_of([*first, *second]))
    assert made == [(107.0 + 15 * turn, whole) for turn in range(8)]


def test_what_one_server_missed_is_taken_from_the_other() -> None:
    text = 'vllm:num_requests_running{engine="0",model_name="m"} 1\n'
    first = answer({100.0 + 15 * turn: text for turn in range(20) if turn not in (5, 6, 7)}, prometheus_replica="a")
    second = answer({105.0 + 15 * turn: text for turn in range(10)}, prometheus_replica="b")
    times = [page.t for page in pages_of([*first, *second])]
    assert times[:8] == [100.0, 115.0, 130.0, 145.0, 160.0, 180.0, 195.0, 220.0]
    assert len(times) == 19


def test_series_that_come_later_are_there_from_then_on() -> None:
    text = 'vllm:num_requests_running{engine="0",model_name="m"} 1\n'
    more = text + 'vllm:request_success_total{engine="0",finished_reason="stop",model_name="m"} 5\n'
    before, after = pages_of(answer({100.0: text, 115.0: more}))
    assert (before.engines[0].counters, after.engines[0].counters) == ({}, {"finished": 5.0})


def test_scrapes_that_come_too_often_are_thinned() -> None:
    text = 'vllm:num_requests_running{engine="0",model_name="m"} 1\n'
    made = pages_of(answer({100.0 + 5 * turn: text for turn in range(10)}))
    assert [page.t for page in made] == [100.0, 115.0, 130.0, 145.0]
    assert interval_of([0.0, 15.0, 30.0, 75.0]) == 15.0
    assert interval_of([0.0, 15.0]) is None


def test_what_tells_targets_apart_is_every_label_that_is_not_the_metrics_own() -> None:
    labels = {"__name__": "vllm:num_requests_running", "model_name": "m", "engine": "1", **TARGET, "cluster": "eu"}
    target = target_of({**labels, "prometheus_replica": "a"}, VLLM)
    assert dict(target.labels) == {**TARGET, "cluster": "eu"}
    assert (target.name, target.namespace, target.pod) == ("eu/prod/llm-0", "prod", "llm-0")
    assert Target((("instance", "h:1"),)).name == "h:1"
    assert Target((("episode", "x"),)).name == "episode=x"
    assert target.labels[0] == ("cluster", "eu")


def test_both_models_of_a_page_by_triton_are_of_one_target() -> None:
    text = "".join(f'vllm:num_requests_running{{model="{model}",version="1"}} 3\n' for model in "ab")
    series = answer({100.0: text})
    assert len({target_of(one["metric"], VLLM) for one in series}) == 1
    (page,) = pages_of(series)
    assert [(one.model_name, one.gauges["running"]) for one in page.engines] == [("a", 3.0), ("b", 3.0)]


def test_engines_of_several_servers_are_those_of_their_rank() -> None:
    names = ("num_requests_running", "num_requests_waiting", "prompt_tokens_total", "num_preemptions_total")
    text = "".join(
        f'ray_vllm_{name}{{ReplicaId="{one}",WorkerId="w{one}",engine="0",model_name="m"}} 3\n'
        for name in names
        for one in "ab"
    )
    series = answer({100.0: text})
    (target,) = {target_of(one["metric"], VLLM) for one in series}
    (page,) = pages_of(series)
    assert [one.engine for one in page.engines] == ["0@a", "0@b"]
    selected = Discovered(target, "vllm", 15.0, engines=frozenset({labelled_engine(series[0]["metric"], VLLM)}))
    incidents = [{"model_name": one.model_name, "engine": one.engine} for one in page.engines]
    other = {"model_name": "other", "engine": "0@a"}
    found = {"incidents": [*incidents, other], "unjudged": [], "others": []}
    assert selected.selected(found) == {**found, "incidents": incidents}


def test_names_in_every_spelling_and_the_one_that_is_there() -> None:
    present = ["ray_vllm:num_requests_running", "ray_vllm:num_requests_waiting", "ray_vllm:gpu_cache_usage_perc"]
    assert set(present) <= all_names(TABLES)
    (one,) = spelled(TABLES, present)
    assert isinstance(one, Spelled)
    assert (one.spelling, one.named("waiting"), one.named("preemptions")) == (
        "ray_vllm:",
        "ray_vllm:num_requests_waiting",
        None,
    )


@pytest.mark.parametrize("text", ['{namespace="a",}', ' namespace="a" ', 'namespace="a"'])
def test_a_selector_with_and_without_braces(text: str) -> None:
    assert Selection.of(text).and_also('x="y"') == '{x="y", namespace="a"}'

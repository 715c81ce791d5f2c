"""What an exporter reported at the time stands beside what a look back finds, and what it alone knew is not lost."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.simulator.scenarios import episode
from kvpressure.prometheus.client import Prometheus, Server
from kvpressure.prometheus.names import Target
from kvpressure.prometheus.paging import DAY_SECONDS, Span, pages
from kvpressure_incidents.reported import (
    EVERY_SECONDS,
    Key,
    attach,
    is_of,
    known_names,
    read_page,
    spans_of,
    troubles,
)
from tests.support.fake_prometheus import FakePrometheus, success
from tests.support.past import START, Scrape, incidents, past, pod_labels, simulated
from tests.support.schemas import check

pytestmark = pytest.mark.process

STEP = 15.0


def told(pod: str, cause: str, detail: str, begin: float, end: float) -> Iterator[Scrape]:
    """The exporter's series about one pod, while that holds."""
    page = (
        f'kvpressure_bottleneck_info{{namespace="prod",pod="{pod}",target="http://{pod}:8000",model_name="llama-3.1-8b",'
        f'engine="0",cause="{cause}",detail="{detail}"}} 1\n'
    )
    for number in range(int((end - begin) / STEP) + 1):
        yield Scrape(begin + STEP * number, {"instance": "node:10405", "job": "kvpressure"}, page.encode())


def scrapes() -> Iterator[Scrape]:
    yield from simulated(episode("kv_cache_pressure", 2), 2, pod_labels("kv"), STEP, START)
    yield from simulated(episode("healthy", 1), 1, pod_labels("idle"), STEP, START)
    yield from told("kv", "kv_cache_pressure", "admission", START + 160, START + 440)
    yield from told("kv", "healthy", "", START, START + 150)
    yield from told("idle", "stuck", "frozen", START + 100, START + 340)
    yield from told("idle", "stuck", "frozen", START + 900, START + 930)
    yield from told("elsewhere", "stuck", "frozen", START + 100, START + 340)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with past(tmp_path_factory.mktemp("past"), scrapes()) as address:
        yield address


def test_what_it_told_of_an_incident_and_what_it_alone_told(url: str) -> None:
    found = incidents(url, "--json")
    assert found.exit_code == 1
    document = json.loads(found.stdout)
    check("incidents", document)
    (one,) = document["incidents"]
    assert (document["has_rules"], one["fired"]) == (False, None)
    assert (one["target"], one["exporter"]["cause"], one["exporter"]["detail"]) == (
        "prod/kv",
        "kv_cache_pressure",
        "admission",
    )
    assert one["exporter"]["began"] == pytest.approx(START + 160, abs=30)
    assert one["exporter"]["seconds"] == pytest.approx(280, abs=45)
    (alone,) = document["exporter_alone"]
    assert (alone["target"], alone["cause"], alone["detail"]) == ("prod/idle", "stuck", "frozen")
    assert alone["seconds"] == pytest.approx(240, abs=45)


def test_it_is_said_in_words_everywhere(url: str, tmp_path: Path) -> None:
    page, report = tmp_path / "x.html", tmp_path / "x.md"
    found = incidents(url, "--html", str(page), "--markdown", str(report))
    assert "  exporter    reported KV cache pressure/admission from 22:1" in found.output
    assert "only the exporter reported: stuck/frozen, prod/idle (llama-3.1-8b, engine 0)" in found.output
    assert "The exporter reported KV cache pressure/admission from 22:1" in page.read_text()
    assert "- The exporter reported KV cache pressure/admission from 22:1" in report.read_text()


def test_trouble_that_the_exporter_alone_told_is_an_incident_for_the_exit_code(url: str) -> None:
    assert incidents(url, "--selector", 'pod="idle"').exit_code == 1


def test_where_no_exporter_was_nothing_is_said(url: str) -> None:
    with Prometheus(Server(url)) as client:
        assert read_page(client, Span(START - 3600, START - 600), frozenset({"kv"})) == []


def row(times: list[float], **labels: str) -> tuple[dict[str, str], list[tuple[float, float, int]]]:
    return {"pod": "a", "engine": "0", "cause": "stuck", **labels}, spans_of(times)


def test_troubles_go_on_over_pages_and_short_gaps_and_end_at_long_ones() -> None:
    first, second = row([30.0, 60.0, 90.0]), row([120.0, 150.0, 600.0], cause="kv_cache_pressure")
    ((_, its),) = troubles([[first], [second]], gap=30.0).items()
    assert [(one.began, one.ended) for one in its] == [(15.0, 135.0), (585.0, 585.0)]
    assert its[0].causes == {("stuck", ""): 3, ("kv_cache_pressure", ""): 2}


def test_a_month_is_asked_for_by_days() -> None:
    found = list(pages(Span(0.0, 30 * 86_400.0), EVERY_SECONDS, DAY_SECONDS))
    assert (len(found), found[0].end, found[-1].end) == (30, 86_400.0, 30 * 86_400.0)


@pytest.mark.parametrize(
    ("told", "labels", "its"),
    [
        ({"pod": "a", "namespace": "n"}, {"pod": "a", "namespace": "n", "instance": "x:1"}, True),
        ({"pod": "a", "namespace": "n"}, {"pod": "a", "namespace": "other"}, False),
        ({"pod": "a"}, {"pod": "a", "namespace": "n"}, True),
        ({"target": "http://h:8000/metrics"}, {"instance": "h:8000"}, True),
        ({"target": "h:8000"}, {"instance": "h:8000"}, True),
        ({"target": "h:8001"}, {"instance": "h:8000"}, False),
        ({"pod": "a", "cluster": "eu"}, {"pod": "a", "cluster": "us"}, False),
        ({}, {"job": "vllm"}, False),
    ],
)
def test_an_engine_is_known_by_its_pod_or_its_address(told: dict[str, str], labels: dict[str, str], its: bool) -> None:
    key = Key(*(told.get(name, "") for name in Key._fields))
    assert is_of(key, Target(tuple(sorted(labels.items())))) is its


def found_one(target: str, **changes: Any) -> dict[str, Any]:
    dated = {"began": 0.0, "seconds": 600.0, "step_seconds": 15.0}
    return {"target": target, "model_name": "", "engine": "0", **dated, "exporter": None, **changes}


def test_several_exporters_of_one_engine_tell_it_once() -> None:
    times = [float(t) for t in range(1000, 1300, 30)]
    rows = [row(times, target=address) for address in ("http://10.0.0.1:8000", "http://a.svc:8000", "")]
    target = Target((("namespace", "n"), ("pod", "a")))
    (alone,) = attach([], troubles([rows], gap=30.0), [target], 120.0)
    assert (alone["target"], alone["began"], alone["seconds"]) == ("n/a", 985.0, 270.0)


def test_what_is_told_of_another_model_or_port_is_not_of_this_incident() -> None:
    times = [float(t) for t in range(30, 300, 30)]
    its = troubles([[row(times, model_name="other", target="http://h:8001")]], gap=30.0)
    targets = [Target((("instance", f"h:{port}"), ("pod", "a"))) for port in (8000, 8001)]
    both = [found_one("h:8000", model_name="m"), found_one("a", model_name="m")]
    (alone,) = attach(both, its, targets, 120.0)
    assert (alone["model_name"], [one["exporter"] for one in both]) == ("other", [None, None])


def test_an_exporter_whose_labels_were_not_honored_is_understood() -> None:
    labels = {"pod": "kvpressure-x", "namespace": "monitoring", "exported_pod": "a", "exported_namespace": "n"}
    ((key, _),) = troubles([[row([30.0, 60.0], **labels)]], gap=30.0).items()
    assert is_of(key, Target((("namespace", "n"), ("pod", "a"))))


def test_a_month_of_trouble_is_a_few_numbers_and_what_is_told_of_others_is_let_go() -> None:
    values = [[float(t), "1"] for t in range(0, 86_400, 30)]
    series = [{"metric": {"pod": pod, "engine": "0", "cause": "stuck"}, "values": values} for pod in ("a", "b")]
    with (
        FakePrometheus(lambda _: success({"resultType": "matrix", "result": series})) as server,
        Prometheus(Server(server.url)) as client,
    ):
        ((labels, spans),) = read_page(client, Span(0, 86_400), known_names([Target((("pod", "a"),))]))
    assert (labels["pod"], spans) == ("a", [(0.0, 86_370.0, 2880)])


def test_the_longest_of_several_is_what_it_told() -> None:
    incident = found_one("n/a")
    its = troubles([[row([float(t) for t in range(30, 150, 30)]), row([400.0], cause="host_bound")]], gap=30.0)
    target = Target((("namespace", "n"), ("pod", "a")))
    assert attach([incident], its, [target], 120.0) == []
    assert incident["exporter"] == {"cause": "stuck", "detail": None, "began": 15.0, "ended": 105.0, "seconds": 90.0}


def test_a_kind_that_this_version_does_not_know_is_left_out() -> None:
    ((_, (one,)),) = troubles([[row([30.0], detail="of_later_versions")]], gap=30.0).items()
    assert one.causes == {("stuck", ""): 1}


def test_an_address_that_is_none_and_a_cause_that_nobody_asked_for_are_let_go() -> None:
    target = Target((("instance", "a:8000"), ("pod", "a")))
    rows = [row([30.0, 60.0], target="http://[", pod=""), row([30.0], cause="bogus")]
    assert attach([], troubles([rows], gap=30.0), [target], 0.0) == []

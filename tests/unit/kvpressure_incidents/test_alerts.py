"""Which incidents an alert of `ALERTS` belongs to: by pod, address, rank and model, and by time."""

from typing import Any

import pytest

from kvpressure.prometheus.client import Prometheus, Server
from kvpressure.prometheus.names import Target
from kvpressure.prometheus.paging import Span
from kvpressure_incidents.alerts import attach, read_page, recorded
from kvpressure_incidents.reported import Rows
from tests.support.fake_prometheus import FakePrometheus, success

A = Target((("instance", "a:8000"), ("namespace", "prod"), ("pod", "a")))
B = Target((("instance", "b:8000"), ("namespace", "prod"), ("pod", "b")))
BARE = Target((("instance", "10.0.0.1:8000"),))
UNTIL = 10_000.0


def incident(target: Target, began: float = 1000.0, ended: float | None = 1300.0) -> dict[str, Any]:
    return {"target": target.name, "model_name": "m", "engine": "0", "began": began, "ended": ended, "fired": None}


def rows(begin: float = 1020.0, end: float = 1230.0, **labels: str) -> Rows:
    whole = {"alertname": "KVPressureCacheTooSmall", "alertstate": "firing", "severity": "warning", **labels}
    return [(whole, [(begin, end, 8)])]


def count(found: dict[str, Any], answer: Rows) -> int:
    attach([found], recorded([answer]), (A, B, BARE), UNTIL)
    return len(found["fired"])


@pytest.mark.parametrize(
    ("labels", "of_a", "of_b", "of_bare"),
    [
        ({"namespace": "prod", "pod": "a", "model_name": "m", "engine": "0"}, 1, 0, 0),
        ({"namespace": "prod", "pod": "a", "model_name": "m", "engine": "1"}, 0, 0, 0),
        ({"namespace": "prod", "pod": "a", "model_name": "other"}, 0, 0, 0),
        ({"namespace": "test", "pod": "a", "model_name": "m"}, 0, 0, 0),
        ({"exported_namespace": "prod", "exported_pod": "b", "namespace": "monitoring", "pod": "kvp-x"}, 0, 1, 0),
        # Without Kubernetes: the exporter's target, or the engine's own instance without an exporter.
        ({"target": "http://10.0.0.1:8000/metrics", "instance": "node:10405", "model_name": "m"}, 0, 0, 1),
        ({"instance": "10.0.0.1:8000", "model_name": "m"}, 0, 0, 1),
        # All replicas of a model.
        ({"namespace": "prod", "model_name": "m"}, 1, 1, 1),
        ({"namespace": "test", "model_name": "m"}, 0, 0, 1),
        # An exporter's own.
        ({"namespace": "monitoring", "job": "kvpressure"}, 0, 0, 0),
        ({"instance": "node:10405", "job": "kvpressure"}, 0, 0, 0),
    ],
)
def test_an_alert_is_of_the_engines_that_its_labels_name(
    labels: dict[str, str], of_a: int, of_b: int, of_bare: int
) -> None:
    assert [count(incident(one), rows(**labels)) for one in (A, B, BARE)] == [of_a, of_b, of_bare]


@pytest.mark.parametrize(
    ("begin", "end", "ended", "belongs"),
    [
        (100.0, 900.0, 1300.0, 0),
        (100.0, 1100.0, 1300.0, 1),
        (1590.0, 1700.0, 1300.0, 1),
        (1700.0, 1800.0, 1300.0, 0),
        (9000.0, 9100.0, None, 1),
    ],
)
def test_it_counts_from_the_begin_of_an_incident_until_shortly_after_its_end(
    begin: float, end: float, ended: float | None, belongs: int
) -> None:
    assert count(incident(A, ended=ended), rows(begin, end, pod="a")) == belongs


def test_what_still_fires_at_the_end_has_no_end() -> None:
    one = incident(A, began=9000.0, ended=None)
    assert count(one, rows(9030.0, UNTIL, pod="a")) == 1
    (fired,) = one["fired"]
    assert (fired["ended"], fired["seconds"]) == (None, UNTIL - fired["began"])


def test_two_exporters_tell_one_alert_once_and_pages_are_put_together() -> None:
    own = {"pod": "a", "target": "http://a:8000"}
    assert count(incident(A), [*rows(1020.0, 1110.0, **own, instance="x"), *rows(**own, instance="y")]) == 1
    one = incident(A)
    attach([one], recorded([rows(1020.0, 1110.0, pod="a"), rows(1110.0, 1230.0, pod="a")]), (A,), UNTIL)
    assert [(fired["began"], fired["ended"]) for fired in one["fired"]] == [(1005.0, 1185.0)]


def test_a_pending_alert_shows_that_there_are_rules_and_has_not_fired() -> None:
    found = recorded([rows(pod="a", alertstate="pending")])
    assert (found.any, found.fired, recorded([[]]).any) == (True, {}, False)


def test_only_alerts_of_kvpressure_are_asked_for() -> None:
    with (
        FakePrometheus(lambda _: success({"resultType": "matrix", "result": []})) as server,
        Prometheus(Server(server.url)) as client,
    ):
        assert read_page(client, Span(0, 3600)) == []
        asked = [request.query["query"] for request in server.requests if "query" in request.query]
    assert asked
    assert all('ALERTS{alertname=~"KVPressure.+"}' in query for query in asked)

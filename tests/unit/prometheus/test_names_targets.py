"""Who is there: engines that were relabelled in between, and those that a selector chooses on one page."""

import pytest

from kvpressure.prometheus.answers import PrometheusError
from kvpressure.prometheus.client import Prometheus, Server
from kvpressure.prometheus.names import MAX_LABELLINGS, MAX_TARGETS, Selection, Target, lacking, spelled, targets_there
from kvpressure.prometheus.paging import Span
from kvpressure.runtimes.registry import TABLES
from tests.support.fake_prometheus import NAMES, FakePrometheus, success


def test_what_was_relabelled_is_not_read_as_both() -> None:
    before = Target((("instance", "a:1"), ("job", "v")))
    after = Target((("instance", "a:1"), ("job", "v"), ("pod", "x")))
    other = Target((("instance", "b:1"), ("job", "v")))
    assert lacking([before, after, other]) == {before: ("pod",)}


def test_engines_are_told_apart_only_where_the_selector_asks_for_them() -> None:
    (one,) = spelled(TABLES, NAMES)
    with FakePrometheus() as server, Prometheus(Server(server.url)) as client:
        found = [
            targets_there(client, one, Selection.of(text), Span(0, 3600))[0].engines
            for text in ("", 'namespace="model_name"', 'engine="0"', '{pod="x", model_name=~"a|m"}')
        ]
    assert found == [None, None, frozenset({("m", "0")}), frozenset({("m", "0")})]


@pytest.mark.fault(
    "a Prometheus queried by `incidents` has tens of thousands of engines",
    "one error message with the option that narrows the query",
)
def test_more_targets_than_are_looked_at_are_one_sentence() -> None:
    rows = [{"metric": {"pod": f"p{number}"}, "values": [[60, "40"]]} for number in range(MAX_TARGETS + 1)]
    (engine,) = spelled(TABLES, NAMES)
    answer = success({"resultType": "matrix", "result": rows})
    with (
        FakePrometheus(lambda one: None if "series" in one.path else answer) as server,
        Prometheus(Server(server.url)) as client,
        pytest.raises(PrometheusError, match=r"more than the 10,000 .* narrow --selector"),
    ):
        targets_there(client, engine, Selection(), Span(0, 600))


def test_thousands_of_ways_to_label_are_nobodys_relabelling() -> None:
    pair = [Target((("a", "1"),)), Target((("a", "1"), ("b", "2")))]
    assert lacking(pair) == {pair[0]: ("b",)}
    assert lacking([*pair, *(Target(((f"l{number}", ""),)) for number in range(MAX_LABELLINGS))]) == {}

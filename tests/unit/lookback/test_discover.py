"""Who is there: engines that were relabelled in between, and those that a selector chooses on one page."""

from __future__ import annotations

from kvpressure.lookback.client import Prometheus, Server
from kvpressure.lookback.discover import lacking, targets_there
from kvpressure.lookback.names import Selection, Target, spelled
from kvpressure.lookback.paging import Span
from kvpressure.runtimes.registry import TABLES
from tests.support.fake_prometheus import NAMES, FakePrometheus


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

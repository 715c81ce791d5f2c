"""When copied rules would have fired, from answers in which one engine comes more than once."""

from __future__ import annotations

from kvpressure.runtimes.registry import TABLES
from kvpressure.tools.incidents.client import Prometheus, Server
from kvpressure.tools.incidents.judged_alerts import Fired, attach, read_page
from kvpressure.tools.incidents.names import EngineName, spelled
from kvpressure.tools.incidents.paging import Span
from tests.support.fake_prometheus import LABELS, NAMES, FakePrometheus, success


def test_copies_of_several_servers_are_put_together_in_order() -> None:
    (engine,) = spelled(TABLES, NAMES)
    held = {"a": range(3000, 3301, 60), "b": [*range(600, 901, 60), *range(3000, 3301, 60)]}
    series = [
        {"metric": {**LABELS, "prometheus_replica": replica}, "values": [[float(t), "1"] for t in times]}
        for replica, times in held.items()
    ]
    with (
        FakePrometheus(lambda _: success({"resultType": "matrix", "result": series})) as server,
        Prometheus(Server(server.url)) as client,
    ):
        ((_, spans),) = read_page(client, "x > 0", engine, Span(0, 3600))
    assert spans == [(600.0, 900.0), (3000.0, 3300.0)]


def test_an_alert_of_a_rank_is_of_the_engines_that_have_it_on_a_page_of_several_servers() -> None:
    incident = {"target": "t", "model_name": "m", "engine": "0@a", "began": 0.0, "ended": 900.0, "fired": []}
    alert = Fired("x", 300.0, 600.0, copied=True)
    assert attach([incident], {EngineName("t", "m", "0"): [alert], EngineName("t", "m", "1"): [alert]}) == [
        {"target": "t", "model_name": "m", "engine": "1", "rule": "x", "at": 300.0, "ended": 600.0}
    ]
    assert incident["fired"] == [alert.json()]

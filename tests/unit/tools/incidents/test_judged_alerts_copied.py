"""When copied rules would have fired, from answers in which one engine comes more than once."""

from __future__ import annotations

from kvpressure.runtimes.registry import TABLES
from kvpressure.tools.incidents.client import Prometheus, Server
from kvpressure.tools.incidents.judged_alerts import read_page
from kvpressure.tools.incidents.names import spelled
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

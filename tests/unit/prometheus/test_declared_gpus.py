"""GPUs of engines, as the series of a GPU exporter in a Prometheus have them."""

from typing import Any, cast

import pytest

from kvpressure.prometheus.client import Prometheus
from kvpressure.prometheus.declared import Gpus, gpus_there
from kvpressure.prometheus.names import Target
from kvpressure.prometheus.paging import Span

Labels = dict[str, str]
USED: Labels = {"__name__": "DCGM_FI_DEV_FB_USED", "gpu": "0", "UUID": "GPU-1", "Hostname": "node"}


class Server:
    def __init__(self, *series: Labels) -> None:
        self._series = series

    def series(self, matchers: list[str], start: float, end: float) -> tuple[Labels, ...]:
        assert matchers
        assert start < end
        return self._series

    def range(self, expr: str, start: float, end: float, step: float) -> list[dict[str, Any]]:
        assert "DCGM_FI_DEV_GPU_UTIL" in expr
        assert start < end
        return [{"metric": labels, "values": [(start + step, 5.0)]} for labels in self._series]


def selected(series: Labels, **labels: str) -> str:
    target = Target(tuple(sorted({"namespace": "prod", "pod": "one", **labels}.items())))
    return gpus_there(cast("Prometheus", Server(series)), [target], Span(0.0, 1.0)).get(target, "")


@pytest.mark.parametrize(
    ("series", "labels", "end"),
    [
        ({**USED, "namespace": "prod", "pod": "one"}, {}, ', namespace="prod", pod="one"}'),
        (
            {**USED, "exported_namespace": "prod", "exported_pod": "one", "namespace": "gpu", "pod": "dcgm"},
            {},
            ', exported_namespace="prod", exported_pod="one"}',
        ),
        (
            {**USED, "namespace": "prod", "pod": "one", "cluster": "a"},
            {"cluster": "a"},
            ', cluster="a", namespace="prod", pod="one"}',
        ),
        ({**USED, "namespace": "prod", "pod": "another"}, {}, ""),
        ({**USED, "namespace": "prod", "pod": "one"}, {"cluster": "a"}, ""),
        ({**USED, "__name__": "up", "namespace": "prod", "pod": "one"}, {}, ""),
        (USED, {}, ""),
    ],
)
def test_the_gpus_of_a_pod_are_those_whose_series_name_it(series: Labels, labels: Labels, end: str):
    found = selected(series, **labels)
    assert found.endswith(end)
    assert bool(found) == bool(end)


def test_they_are_those_of_the_moment_and_none_where_several_nodes_answer():
    one = Gpus(cast("Prometheus", Server(USED, {**USED, "__name__": "up"})), '{__name__=~"DCGM_FI_DEV_GPU_UTIL"}')
    assert one.at(100.0) is None
    report = one.at(115.0)
    assert [(gpu.uuid, gpu.memory_used_bytes) for gpu in report.gpus] == [("GPU-1", 5.0 * 2**20)]
    assert one.at(130.0) is None
    two = Gpus(cast("Prometheus", Server(USED, {**USED, "Hostname": "other"})), '{__name__=~"DCGM_FI_DEV_GPU_UTIL"}')
    assert [two.at(t) for t in (100.0, 115.0)] == [None, None]

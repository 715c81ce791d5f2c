"""GPUs of engines by dcgm-exporter's series in a real Prometheus: evidence of incidents without an exporter of ours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

import pytest
from click.testing import CliRunner

from bench.simulator.scenarios import episode
from kvpressure.cli import main
from kvpressure.prometheus.client import Prometheus
from kvpressure.prometheus.gpus import Gpus, gpus_there
from kvpressure.prometheus.names import Target
from kvpressure.prometheus.paging import Span
from tests.support.past import START, Scrape, past, simulated

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
    assert report is not None
    assert [(gpu.uuid, gpu.memory_used_bytes) for gpu in report.gpus] == [("GPU-1", 5.0 * 2**20)]
    assert one.at(130.0) is None
    two = Gpus(cast("Prometheus", Server(USED, {**USED, "Hostname": "other"})), '{__name__=~"DCGM_FI_DEV_GPU_UTIL"}')
    assert [two.at(t) for t in (100.0, 115.0)] == [None, None]


def dcgm(pod: str) -> bytes:
    of = f'gpu="0",UUID="GPU-{pod}",Hostname="node",exported_namespace="prod",exported_pod="{pod}"'
    fields = {"FB_USED": 76_000, "FB_FREE": 4_000, "GPU_UTIL": 20}
    return "".join(f"DCGM_FI_DEV_{name}{{{of}}} {value}\n" for name, value in fields.items()).encode()


def scrapes() -> Iterator[Scrape]:
    for number, pod in enumerate(("with", "without"), 1):
        own = {"namespace": "prod", "pod": pod, "instance": f"{pod}:8000", "job": "vllm"}
        yield from simulated(episode("kv_cache_pressure", number), number, own, 15.0, START)
    exporter = {"namespace": "gpu", "pod": "dcgm", "instance": "node:9400", "job": "dcgm"}
    for t in range(5, 720, 30):
        yield Scrape(START + t, exporter, dcgm("with"))


@pytest.mark.process
def test_memory_high_and_compute_low_is_evidence_where_a_gpu_exporter_was_scraped(tmp_path: Any):
    with past(tmp_path, scrapes()) as url:
        span = ("--since", f"{START - 3600:.0f}", "--until", f"{START + 7200:.0f}")
        answer = CliRunner().invoke(main, ["incidents", "--prometheus", url, *span, "--workers", "1", "--json"])
    assert answer.exit_code == 1, answer.output
    found = {one["target"]: one["symptoms"] for one in json.loads(answer.stdout)["incidents"]}
    assert found.keys() == {"prod/with", "prod/without"}
    states = {
        name: [found[target][symptom]["state"] for symptom in ("gpu_memory_high", "gpu_compute_low")]
        for name, target in (("with", "prod/with"), ("without", "prod/without"))
    }
    assert states == {"with": [True, True], "without": [None, None]}

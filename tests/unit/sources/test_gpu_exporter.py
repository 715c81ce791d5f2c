"""GPUs from dcgm-exporter's and AMD's pages: units, names, holders, what cannot be true, who reads a GPU already."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from kvpressure.config.settings import Settings
from kvpressure.config.settings.keys import validate
from kvpressure.daemon.node_sources import NodeSources, settings_model
from kvpressure.model.environment import Assignment, ContainerId, Environment
from kvpressure.model.errors import SourceError
from kvpressure.model.samples import GpuReport
from kvpressure.net.schedule import SystemClock
from kvpressure.promtext.scanner import PageScanner
from kvpressure.sources.gpu.exporter_pages import AMD_PREFIX, MAX_GPUS, WANTED, read_page
from kvpressure.sources.gpu_exporter import SOURCE, GpuExporterSettings, GpuExporterSource
from kvpressure.sources.source import Known, Wiring

PAGES = Path(__file__).parents[2] / "fixtures" / "gpu_exporters"
DCGM = (PAGES / "dcgm-exporter-4.6.prom").read_text()
AMD = (PAGES / "amd-device-metrics-exporter-1.5.prom").read_text()
CARD = "GPU-11111111-aaaa-4bbb-8ccc-00000000000"
MIB = 2**20
VLLM = ContainerId("serving", "vllm-0", "vllm")
MIG = ContainerId("serving", "vllm-mig", "vllm")


def read(page: str) -> tuple[GpuReport, dict[ContainerId, Assignment]]:
    series, values = PageScanner(WANTED, tuple).scan(page.encode())
    return read_page(series, values, 5.0)


def test_a_dcgm_page() -> None:
    busy, idle, part = read(DCGM)[0].gpus
    assert (busy.uuid, busy.index, busy.vendor, busy.t) == (f"{CARD}1", "0", "nvidia", 5.0)
    assert (busy.name, busy.driver_version) == ("NVIDIA H100 80GB HBM3", "580.105.08")
    assert busy.memory_used_bytes == 73642 * MIB
    assert busy.memory_total_bytes == (73642 + 7431 + 486) * MIB
    assert busy.utilization == (0.97,)
    assert (busy.sm_active_ratio, busy.tensor_active_ratio, busy.dram_active_ratio) == (0.713, 0.128, 0.584)
    assert idle.utilization == (0.0,)
    assert (part.uuid, part.index, part.parent_uuid, part.profile) == (f"{CARD}3/2", "2:2", f"{CARD}3", "3g.40gb")
    assert part.utilization == (pytest.approx(0.641),)  # a MIG instance has no utilization, but its engine's activity


def test_its_pods_hold_their_gpus() -> None:
    assert read(DCGM)[1] == {
        VLLM: Assignment((f"{CARD}1",)),
        MIG: Assignment((f"{CARD}3/2",)),
    }


@pytest.mark.parametrize("prefix", [AMD_PREFIX, ""])
def test_an_amd_page(prefix: str) -> None:
    report, held = read(AMD.replace(AMD_PREFIX, prefix))
    whole, first, second = report.gpus
    assert (whole.uuid, whole.index, whole.vendor, whole.profile) == ("692251001124", "0", "amd", "")
    assert (whole.memory_used_bytes, whole.memory_total_bytes) == (176932 * MIB, 196592 * MIB)
    assert (whole.utilization, whole.dram_active_ratio) == ((0.96,), 0.43)
    assert [part.uuid for part in (first, second)] == ["692251001125/0", "692251001125/1"]
    assert (first.utilization, first.parent_uuid, first.profile) == ((), "692251001125", "cpx")
    assert held == {ContainerId("serving", "vllm-1", "vllm"): Assignment(("692251001124",))}


def test_what_cannot_be_true_is_absent_and_counted() -> None:
    broken = DCGM.replace("} 97\n", "} 4294967295\n").replace("} 73642\n", "} 9223372036854775794\n")
    busy = read(broken)[0].gpus[0]
    assert (busy.utilization, busy.memory_used_bytes, busy.memory_total_bytes) == ((), None, None)
    assert sum(read(broken)[0].rejected.values()) == 2


def test_a_gpu_with_two_holders_is_nobodys_alone() -> None:
    second = DCGM.replace("vllm-0", "p").replace("serving", "n").replace('container="vllm"', 'container="x"')
    held = read(DCGM + second)[1]
    assert not held[VLLM].exclusive
    assert held[ContainerId("n", "p", "x")].why == f"GPU {CARD}1 has 2 holders"


def test_gpus_of_several_nodes_are_refused() -> None:
    with pytest.raises(SourceError, match="of 2 hosts") as caught:
        read(DCGM + DCGM.replace("node-a", "node-b"))
    assert caught.value.reason == "several_hosts"


def test_more_gpus_than_a_node_has_are_refused() -> None:
    many = "".join(f'DCGM_FI_DEV_GPU_UTIL{{gpu="{i}",UUID="{i}"}} 1\n' for i in range(MAX_GPUS + 1))
    with pytest.raises(SourceError, match=f"{MAX_GPUS + 1} GPUs"):
        read(many)


@pytest.mark.parametrize("page", ["", "up 1\n", 'DCGM_FI_DEV_GPU_UTIL{gpu="x",UUID="y"} 1\n'])
def test_a_page_without_gpus_is_said_to_be_one(page: str) -> None:
    with pytest.raises(SourceError, match="dcgm-exporter") as caught:
        read(page)
    assert caught.value.reason == "not_metrics"


class Exporter:
    """A server of one page, and the source that reads it."""

    def __init__(self) -> None:
        self.page = DCGM
        self.reports: list[GpuReport] = []

    async def serve(self, _: web.Request) -> web.Response:
        return web.Response(text=self.page)

    def source(self, url: str) -> GpuExporterSource:
        wiring = Wiring(SystemClock(), lambda _, report: self.reports.append(report), lambda _: False)
        return GpuExporterSource(GpuExporterSettings(url=url), wiring)


@pytest.fixture
async def exporter() -> AsyncIterator[tuple[Exporter, GpuExporterSource]]:
    made = Exporter()
    app = web.Application()
    app.router.add_get("/metrics", made.serve)
    async with TestServer(app) as server:
        source = made.source(str(server.make_url("/metrics")))
        yield made, source
        await source._page.aclose()


async def test_read_over_http_and_left_to_whoever_reads_them_too(exporter: tuple[Exporter, GpuExporterSource]) -> None:
    made, source = exporter
    await source.read()
    first = made.reports[0].gpus
    assert len(first) == 3
    assert source.health()[0].up
    assert source.facts(Known(gpus=first)).devices.keys() == {VLLM, MIG}

    read_by_nvml = replace(first[0], t=first[0].t + 0.5)
    kubelet = Environment(devices={VLLM: Assignment((f"{CARD}1",))})
    assert source.facts(Known(gpus=(read_by_nvml, *first[1:]), environment=kubelet)).devices.keys() == {MIG}
    await source.read()
    assert f"{CARD}1" not in {gpu.uuid for gpu in made.reports[1].gpus}

    gone = made.reports[1].gpus
    assert source.facts(Known(gpus=gone)).devices.keys() == {VLLM, MIG}
    await source.read()
    assert f"{CARD}1" in {gpu.uuid for gpu in made.reports[2].gpus}


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        ("<html>no metrics</html>\n", "not_metrics"),
        ("", "not_metrics"),
        (DCGM[:-3], "truncated"),
        ("DCGM_FI_DEV_FB_USED{gpu= 1\n", "malformed"),
        ("#" * (5 << 20), "too_large"),
    ],
)
async def test_what_cannot_be_read_is_said_and_holds_nothing(
    exporter: tuple[Exporter, GpuExporterSource], page: str, reason: str
) -> None:
    made, source = exporter
    await source.read()
    made.page = page
    await source.read()
    health = source.health()[0]
    assert (health.up, health.reason, len(made.reports)) == (False, reason, 1)
    assert "/metrics" in health.error
    assert not source.facts(Known()).devices


async def test_without_an_address_there_is_no_source() -> None:
    sources = NodeSources(Settings(), SystemClock(), lambda _, __: None, (SOURCE,))
    assert sources.gpu_health() == ()


async def test_nobody_logs_its_changes_of_state_a_second_time() -> None:
    section = {"gpu_exporter": {"url": "http://127.0.0.1:9400/metrics"}}
    sources = NodeSources(validate(settings_model(), section), SystemClock(), lambda _, __: None, (SOURCE,))
    assert [one.source for one in sources.gpu_health()] == ["gpu_exporter"]
    assert sources.unlogged_health() == ()

"""The real NVML binding in a real child process, against a libnvidia-ml.so.1 that shows each scenario."""

from itertools import pairwise
from pathlib import Path

import pytest

from kvpressure.model.samples import GpuReport, GpuSample
from tests.stubs.world import GIB, World, nvidia, nvidia_mig, report_where, until

INT64_MAX = 2**63 - 1


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path / "scenario", monkeypatch)


def by_index(report: GpuReport) -> dict[str, GpuSample]:
    return {gpu.index: gpu for gpu in report.gpus}


async def test_several_gpus_with_memory_and_the_drivers_own_samples(world: World) -> None:
    world.show(nvidia(2))
    async with world.source("nvidia") as source:
        report = await report_where(source, lambda report: len(report.gpus) == 2 and bool(report.gpus[0].utilization))
        first, second = report.gpus
        assert (first.uuid, first.index, first.vendor) == ("GPU-00000000-1111-2222-3333-444444444444", "0", "nvidia")
        assert (first.name, first.driver_version) == ("NVIDIA H100 80GB HBM3", "580.95.05")
        assert first.memory_used_bytes == 10 * GIB, "what the driver reserves is not used"
        assert second.memory_used_bytes == 11 * GIB
        assert first.memory_total_bytes == 80 * GIB
        assert set(first.utilization) == {0.37}
        assert (first.sm_active_ratio, first.memory_kind, first.profile, first.parent_uuid) == (None, "device", "", "")
        health = source.health()[0]
        assert (health.source, health.target, health.up, health.error) == ("nvml", "", True, "")
        assert source.starts == 1


async def test_every_sample_is_read_once(world: World) -> None:
    world.show(nvidia(1) | {"gpu.0.samples": " ".join(map(str, range(50))), "gpu.0.sample_period_us": 50000})
    async with world.source("nvidia") as source:
        seen: list[float] = []
        source._on_report = lambda report: seen.extend(report.gpus[0].utilization)
        await until(lambda: len(seen) > 12, source)
    steps = [round(100 * (after - before)) % 50 for before, after in pairwise(seen)]
    assert set(steps) == {1}, "the series counts up by one: a gap or a repetition would show"


async def test_a_driver_without_a_sample_buffer_gives_its_last_average(world: World) -> None:
    world.show(nvidia(1) | {"gpu.0.call.nvmlDeviceGetSamples": "error 3", "gpu.0.rates": 64})
    async with world.source("nvidia") as source:
        assert (await report_where(source, lambda report: bool(report.gpus))).gpus[0].utilization == (0.64,)


async def test_a_sample_buffer_with_nothing_new_is_no_trouble_with_the_device(world: World) -> None:
    world.show(nvidia(1) | {"gpu.0.sample_buffer": 0, "gpu.0.rates": 64})
    async with world.source("nvidia") as source:
        report = await report_where(source, lambda report: bool(report.gpus))
        assert report.gpus[0].utilization == (0.64,)
        assert report.errors == {}


async def test_a_driver_without_the_second_memory_call_gives_the_first_ones(world: World) -> None:
    world.show(nvidia(1) | {"gpu.0.call.nvmlDeviceGetMemoryInfo_v2": "error 13"})
    async with world.source("nvidia") as source:
        gpu = (await report_where(source, lambda report: bool(report.gpus))).gpus[0]
        assert gpu.memory_used_bytes == 11 * GIB, "version 1 cannot tell the reserved GiB from used"


async def test_mig_instances_have_memory_and_no_utilization_and_neither_has_their_card(world: World) -> None:
    world.show(nvidia_mig())
    async with world.source("nvidia") as source:
        gpus = by_index(await report_where(source, lambda report: report.gpus[1].sm_active_ratio is not None))
        assert list(gpus) == ["0", "0:0", "0:3"]
        card, large, small = gpus.values()
        assert card.utilization == large.utilization == small.utilization == ()
        assert (large.memory_used_bytes, large.memory_total_bytes) == (30 * GIB, 40 * GIB)
        assert (large.name, large.profile, small.profile) == ("NVIDIA H100 80GB HBM3", "3g.40gb", "1g.10gb")
        assert large.parent_uuid == small.parent_uuid == card.uuid
        assert (large.sm_active_ratio, large.tensor_active_ratio, large.dram_active_ratio) == (0.8, 0.6, 0.2)
        assert small.sm_active_ratio is None, "GPM gives nothing for that instance"
        assert card.sm_active_ratio is None


async def test_instances_come_and_go_while_mig_stays_on(world: World) -> None:
    world.show(nvidia_mig())
    async with world.source("nvidia") as source:
        await report_where(source, lambda report: len(report.gpus) == 3)
        world.show({key: value for key, value in nvidia_mig().items() if not key.startswith("gpu.0.mig.0.")})
        await report_where(source, lambda report: [gpu.index for gpu in report.gpus] == ["0", "0:3"])
        world.show(nvidia_mig())
        await report_where(source, lambda report: len(report.gpus) == 3)
        assert source.starts == 1


async def test_an_instance_that_goes_away_while_it_is_read_takes_nothing_along(world: World) -> None:
    world.show(nvidia_mig() | {"gpu.0.mig.3.call.nvmlDeviceGetMemoryInfo_v2": "error 2"})
    async with world.source("nvidia", reopen_seconds=60.0) as source:
        report = await report_where(source, lambda report: bool(report.errors))
        assert [gpu.index for gpu in report.gpus] == ["0", "0:0"]
        assert list(report.errors) == ["MIG-bbbbbbbb-1111-2222-3333-444444444444"]


async def test_switching_mig_on_makes_new_handles_in_a_new_child(world: World) -> None:
    world.show(nvidia(1) | {"gpu.0.mig": 0})
    async with world.source("nvidia") as source:
        await report_where(source, lambda report: bool(report.gpus and report.gpus[0].utilization))
        world.show(nvidia_mig())
        await report_where(source, lambda report: len(report.gpus) == 3)
        assert source.starts == 2
        assert "crashed" not in source.health()[0].errors


async def test_gpm_gives_activity_where_there_is_gpm(world: World) -> None:
    world.show(nvidia(2) | {"gpu.0.gpm": "55.5 20.25 80"})
    async with world.source("nvidia") as source:
        gpus = by_index(await report_where(source, lambda report: report.gpus[0].sm_active_ratio is not None))
        first = gpus["0"]
        assert (first.sm_active_ratio, first.tensor_active_ratio, first.dram_active_ratio) == (0.555, 0.2025, 0.8)
        assert gpus["1"].sm_active_ratio is None


@pytest.mark.parametrize(
    ("more", "gpm"),
    [
        ({}, False),
        ({"gpu.0.call.nvmlGpmSampleGet": "error 4"}, True),
        ({"call.nvmlGpmQueryDeviceSupport": "error 4"}, True),
    ],
    ids=["switched off", "no permission for samples", "no permission to ask"],
)
async def test_gpm_is_silently_off_where_it_is_not_ours(world: World, more: dict[str, object], gpm: bool) -> None:
    world.show(nvidia(1) | {"gpu.0.gpm": "50 40 30"} | more)
    async with world.source("nvidia", gpm=gpm) as source:
        start = await report_where(source, lambda report: bool(report.gpus))
        later = await report_where(source, lambda report: report.t > start.t)
        assert later.gpus[0].sm_active_ratio is None
        assert source.health()[0].up


async def test_an_integrated_gpu_that_supports_nothing_is_there_with_nothing(world: World) -> None:
    world.show({"count": 1, "gpu.0.uuid": "GPU-0", "gpu.0.name": "NVIDIA GB10"})
    async with world.source("nvidia") as source:
        gpu = (await report_where(source, lambda report: bool(report.gpus))).gpus[0]
        assert (gpu.name, gpu.memory_kind) == ("NVIDIA GB10", "integrated")
        assert (gpu.memory_used_bytes, gpu.memory_total_bytes, gpu.utilization) == (None, None, ())
        assert source.health()[0].up


async def test_memory_that_a_container_may_not_see_is_absent(world: World) -> None:
    denied = {"gpu.0.call.nvmlDeviceGetMemoryInfo": "error 4", "gpu.0.call.nvmlDeviceGetMemoryInfo_v2": "error 4"}
    world.show(nvidia(1) | denied)
    async with world.source("nvidia") as source:
        gpu = (await report_where(source, lambda report: bool(report.gpus))).gpus[0]
        assert (gpu.memory_used_bytes, gpu.memory_kind) == (None, "device")


async def test_absurd_values_are_absent_and_counted(world: World) -> None:
    absurd = {
        "gpu.0.samples": 4294967295,
        "gpu.0.memory": f"{80 * GIB} 0 {INT64_MAX}",
        "gpu.1.memory": f"{80 * GIB} 0 {81 * GIB}",
        "gpu.2.memory": "0 0 0",
        "gpu.2.gpm": "nan 4294967295 50",
    }
    world.show(nvidia(3) | absurd)
    async with world.source("nvidia") as source:
        report = await report_where(
            source, lambda report: len(report.gpus) == 3 and report.gpus[2].dram_active_ratio is not None
        )
        first, second, third = report.gpus
        assert (first.utilization, first.memory_used_bytes, first.memory_total_bytes) == ((), None, 80 * GIB)
        assert (second.memory_used_bytes, third.memory_total_bytes) == (None, None)
        assert (third.sm_active_ratio, third.tensor_active_ratio, third.dram_active_ratio) == (None, None, 0.5)
        assert set(second.utilization) <= {0.37}
        expected = {"memory_used_out_of_range": 1, "memory_used_above_total": 1, "memory_total_out_of_range": 1}
        assert expected.items() <= report.rejected.items()
        assert report.rejected["activity_out_of_range"] == 2
        await report_where(source, lambda report: report.rejected.get("utilization_out_of_range", 0) >= 1)


async def test_a_lost_gpu_is_named_and_the_others_go_on(world: World) -> None:
    world.show(nvidia(2))
    async with world.source("nvidia") as source:
        await report_where(source, lambda report: len(report.gpus) == 2)
        world.show(nvidia(2) | {"gpu.1.call.nvmlDeviceGetMemoryInfo_v2": "error 15"})
        report = await report_where(source, lambda report: bool(report.errors))
        assert [gpu.index for gpu in report.gpus] == ["0"]
        (uuid, error), *_ = report.errors.items()
        assert uuid == "GPU-00000001-1111-2222-3333-444444444444"
        assert error.startswith("gpu_lost: ")
        health = source.health()[0]
        assert (health.up, health.reason) == (False, "gpu_lost")
        assert "XID" in health.error


async def test_a_lost_gpu_gets_new_handles_until_it_is_back(world: World) -> None:
    lost = {"gpu.1.call.nvmlDeviceGetHandleByIndex_v2": "error 15", "gpu.1.call.nvmlDeviceGetMigMode": "error 15"}
    world.show(nvidia(2))
    async with world.source("nvidia") as source:
        await report_where(source, lambda report: len(report.gpus) == 2)
        world.show(nvidia(2) | lost)
        await report_where(source, lambda report: "1" in report.errors and len(report.gpus) == 1)
        world.show(nvidia(2))
        await report_where(source, lambda report: len(report.gpus) == 2 and not report.errors)
        await until(lambda: source.health()[0].up, source)
        assert source.starts >= 3

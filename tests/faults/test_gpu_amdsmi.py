"""The real amdsmi binding in a real child process, against a libamd_smi.so that shows each scenario."""

from pathlib import Path

import pytest

from kvpressure.model.samples import GpuReport, GpuSample
from kvpressure.sources.gpu.process import GpuSource
from tests.stubs.world import GIB, World, amd, amd_partitioned, report_where, until


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path / "scenario", monkeypatch)


async def all_gpus(source: GpuSource, count: int) -> tuple[GpuSample, ...]:
    return (await report_where(source, lambda report: len(report.gpus) == count)).gpus


async def test_whole_cards_have_memory_activity_and_an_address(world: World) -> None:
    world.show(amd(2))
    async with world.source("amd") as source:
        first, second = await all_gpus(source, 2)
        assert (first.uuid, first.index, first.vendor) == ("0000:05:00.0", "0", "amd")
        assert (second.uuid, second.index) == ("0000:06:00.0", "1")
        assert (first.name, first.driver_version) == ("AMD Instinct MI210", "6.14.14")
        assert (first.memory_used_bytes, first.memory_total_bytes) == (8 * GIB, 64 * GIB)
        assert (first.utilization, first.memory_kind, first.parent_uuid) == ((0.42,), "device", "")
        assert (source.health()[0].source, source.health()[0].up) == ("amdsmi", True)


async def test_partitions_have_their_own_activity_and_share_a_card(world: World) -> None:
    world.show(amd_partitioned())
    async with world.source("amd") as source:
        first, second = await all_gpus(source, 2)
        assert (first.uuid, second.uuid) == ("0000:05:00.0/0", "0000:05:00.1/1")
        assert (first.index, second.index) == ("0:0", "0:1")
        assert first.parent_uuid == second.parent_uuid == "0000:05:00.0"
        assert first.profile == second.profile == "DPX"
        assert first.utilization == pytest.approx((0.2,))
        assert second.utilization == pytest.approx((0.9,)), "the averaged field is not this partition's"


async def test_a_partition_without_instances_has_no_activity(world: World) -> None:
    world.show({key: value for key, value in amd_partitioned().items() if ".xcp." not in key})
    async with world.source("amd") as source:
        assert [gpu.utilization for gpu in await all_gpus(source, 2)] == [(), ()]


async def test_a_partitionable_card_in_one_piece_averages_its_engines(world: World) -> None:
    world.show(amd(1) | {"gpu.0.mode": "SPX", "gpu.0.xcp.0": "10 20 30 40 50 60 70 80", "gpu.0.activity": 13})
    async with world.source("amd") as source:
        (gpu,) = await all_gpus(source, 1)
        assert gpu.utilization == pytest.approx((0.45,))
        assert (gpu.uuid, gpu.index, gpu.profile, gpu.parent_uuid) == ("0000:05:00.0", "0", "", "")


@pytest.mark.parametrize("activity", [65535, 4294967295])
async def test_values_that_are_not_available_are_absent_and_not_counted(world: World, activity: int) -> None:
    world.show(amd(1) | {"gpu.0.activity": activity, "gpu.0.vram": f"{2**64 - 1} {2**64 - 1}"})
    async with world.source("amd") as source:
        report = await report_where(source, lambda report: bool(report.gpus))
        gpu = report.gpus[0]
        assert (gpu.utilization, gpu.memory_used_bytes, gpu.memory_total_bytes) == ((), None, None)
        assert report.rejected == {}
        assert source.health()[0].up


async def test_memory_comes_in_mebibytes_where_the_driver_has_no_bytes(world: World) -> None:
    scenario = {key: value for key, value in amd(1).items() if key != "gpu.0.vram"}
    world.show(scenario | {"gpu.0.vram_mib": "65536 1024"})
    async with world.source("amd") as source:
        (gpu,) = await all_gpus(source, 1)
        assert (gpu.memory_used_bytes, gpu.memory_total_bytes) == (GIB, 64 * GIB)


async def test_absurd_values_are_absent_and_counted(world: World) -> None:
    world.show(amd(1) | {"gpu.0.activity": 250, "gpu.0.vram": f"{64 * GIB} {65 * GIB}"})
    async with world.source("amd") as source:
        report = await report_where(source, lambda report: bool(report.gpus))
        assert (report.gpus[0].utilization, report.gpus[0].memory_used_bytes) == ((), None)
        assert report.rejected == {"utilization_out_of_range": 1, "memory_used_above_total": 1}


async def test_the_memory_of_an_apu_is_a_carve_out(world: World) -> None:
    world.show(amd(1) | {"gpu.0.vram_type": 15, "gpu.0.name": "AMD Radeon 8060S"})
    async with world.source("amd") as source:
        assert (await all_gpus(source, 1))[0].memory_kind == "carve-out"


async def test_a_slow_card_delays_no_other(world: World) -> None:
    world.show(amd(2) | {"gpu.1.call.amdsmi_get_gpu_activity": "sleep 0.4"})
    async with world.source("amd", device_error_seconds=30.0) as source:
        times: dict[str, list[float]] = {"0": [], "1": []}

        def note(report: GpuReport) -> None:
            for gpu in report.gpus:
                times[gpu.index].append(gpu.t)

        source._on_report = note
        await until(lambda: len(times["1"]) >= 2, source)
        assert len(times["0"]) > len(times["1"]) + 2
        assert times["1"] == sorted(set(times["1"])), "each reading is reported once, with its own time"
        assert source.health()[0].up


async def test_a_card_that_hangs_is_named_and_the_others_go_on(world: World) -> None:
    world.show(amd(2) | {"gpu.1.call.amdsmi_get_gpu_memory_total": "hang"})
    async with world.source("amd") as source:
        report = await report_where(source, lambda report: bool(report.errors))
        assert [gpu.uuid for gpu in report.gpus] == ["0000:05:00.0"]
        assert report.errors["0000:06:00.0"].startswith("timeout: ")
        assert (source.health()[0].up, source.health()[0].reason) == (False, "timeout")
        later = await report_where(source, lambda report: report.t > source.health()[0].t - 10 and bool(report.gpus))
        assert later.gpus
        assert source.starts == 1, "killing the child would risk the GPUs that still answer"


async def test_a_card_in_trouble_does_not_hide_its_other_partition(world: World) -> None:
    world.show(amd_partitioned() | {"gpu.1.call.amdsmi_get_gpu_memory_total": "error 16"})
    async with world.source("amd", reopen_seconds=60.0) as source:
        report = await report_where(source, lambda report: bool(report.errors))
        assert [gpu.uuid for gpu in report.gpus] == ["0000:05:00.0/0"]
        assert list(report.errors) == ["0000:05:00.1/1"]
        assert source.health()[0].reason == "driver_error"


async def test_a_driver_that_is_not_loaded_is_waited_for(world: World) -> None:
    world.show({"call.amdsmi_init": "error 34"})
    async with world.source("amd") as source:
        await until(lambda: source.health()[0].reason == "driver_not_loaded", source)
        world.show(amd(1))
        await all_gpus(source, 1)


async def test_no_library_is_a_calm_state(world: World) -> None:
    async with world.source("amd", library_paths=()) as source:
        await until(lambda: source.health()[0].reason == "library_not_found", source)
        assert source.health()[0].absent
        assert "libamd_smi.so" in source.health()[0].error

"""What the stub libraries show: scenarios as dictionaries, and the environment that leads the bindings to them."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from kvpressure.model.samples import GpuReport
from kvpressure.sources.gpu.backend import GpuSettings
from kvpressure.sources.gpu.process import GpuSource
from tests.stubs.build import libraries

GIB = 2**30
PATIENCE_SECONDS = 120.0
Scenario = Mapping[str, object]


def nvidia(count: int = 2, **more: object) -> dict[str, object]:
    """`count` H100s: 80 GiB, 1 GiB reserved, 10 GiB used by the first, 11 by the second..., 37 % busy."""
    scenario: dict[str, object] = {"count": count}
    for gpu in range(count):
        scenario |= {
            f"gpu.{gpu}.uuid": f"GPU-{gpu:08d}-1111-2222-3333-444444444444",
            f"gpu.{gpu}.name": "NVIDIA H100 80GB HBM3",
            f"gpu.{gpu}.memory": f"{80 * GIB} {GIB} {(10 + gpu) * GIB}",
            f"gpu.{gpu}.samples": "37",
            f"gpu.{gpu}.sample_period_us": 20000,
        }
    return scenario | more


def nvidia_mig() -> dict[str, object]:
    """One card cut into two instances."""
    return nvidia(1) | {
        "gpu.0.mig": 1,
        "gpu.0.gpm": "50 40 30",
        "gpu.0.mig.0.uuid": "MIG-aaaaaaaa-1111-2222-3333-444444444444",
        "gpu.0.mig.0.name": "NVIDIA H100 80GB HBM3 MIG 3g.40gb",
        "gpu.0.mig.0.memory": f"{40 * GIB} 0 {30 * GIB}",
        "gpu.0.mig.0.gpu_instance": 2,
        "gpu.0.gpm.2": "80 60 20",
        "gpu.0.mig.3.uuid": "MIG-bbbbbbbb-1111-2222-3333-444444444444",
        "gpu.0.mig.3.name": "NVIDIA H100 80GB HBM3 MIG 1g.10gb",
        "gpu.0.mig.3.memory": f"{10 * GIB} 0 {1 * GIB}",
        "gpu.0.mig.3.gpu_instance": 9,
    }


def amd(count: int = 2, **more: object) -> dict[str, object]:
    """`count` cards in one piece: 64 GiB, 8 GiB used, 42 % busy."""
    scenario: dict[str, object] = {"count": count}
    for gpu in range(count):
        scenario |= {
            f"gpu.{gpu}.address": f"0 {5 + gpu} 0 0",
            f"gpu.{gpu}.name": "AMD Instinct MI210",
            f"gpu.{gpu}.vram": f"{64 * GIB} {8 * GIB}",
            f"gpu.{gpu}.vram_type": 3,
            f"gpu.{gpu}.activity": 42,
        }
    return scenario | more


def amd_partitioned() -> dict[str, object]:
    """One MI300X in DPX: two partitions, engines busy 10+30 % and 80+100 %; the averaged field says something else."""
    return amd(2) | {
        "gpu.0.address": "0 5 0 0",
        "gpu.1.address": "0 5 0 1",
        "gpu.0.mode": "DPX",
        "gpu.1.mode": "DPX",
        "gpu.0.partition": 0,
        "gpu.1.partition": 1,
        "gpu.0.xcp.0": "10 30",
        "gpu.0.xcp.1": "80 100",
    }


class World:
    """One scenario file and the settings of sources that live in it."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._path = path
        self._monkeypatch = monkeypatch
        monkeypatch.setenv("STUB_SCENARIO", str(path))
        monkeypatch.delenv("ROCM_HOME", raising=False)
        monkeypatch.delenv("ROCM_PATH", raising=False)

    def show(self, scenario: Scenario) -> None:
        """Change the world, also under running children: the file is replaced in one step."""
        fresh = self._path.with_suffix(".new")
        fresh.write_text("".join(f"{key} {value}\n" for key, value in scenario.items()), encoding="utf-8")
        os.replace(fresh, self._path)  # noqa: PTH105 one word for one step

    def settings(self, **more: object) -> GpuSettings:
        """Settings with short times that find the stub libraries."""
        times: dict[str, object] = {
            "interval_seconds": 0.05,
            "start_seconds": 5.0,
            "deadline_seconds": 3.0,
            "device_wait_ratio": 1.0,
            "device_error_seconds": 0.2,
            "reopen_seconds": 0.2,
            "probe_seconds": 0.1,
            "backoff_min_seconds": 0.05,
            "backoff_max_seconds": 0.1,
            "detach_seconds": 0.3,
            "library_paths": (str(libraries()),),
        }
        return GpuSettings(**(times | more))  # type: ignore[arg-type]

    @asynccontextmanager
    async def source(self, vendor: str, **more: object) -> AsyncIterator[GpuSource]:
        """A running source; its child is gone afterwards."""
        source = GpuSource(vendor, self.settings(**more))
        task = asyncio.create_task(source.run())
        try:
            yield source
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def until(true: Callable[[], bool], source: GpuSource, seconds: float = PATIENCE_SECONDS) -> None:
    """Wait for a condition; a failure shows what the source says instead."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    while not true():
        assert loop.time() < end, f"still not so after {seconds} s; {source.health()[0]}; {source.latest}"
        await asyncio.sleep(0.01)


async def report_where(source: GpuSource, true: Callable[[GpuReport], bool]) -> GpuReport:
    """The first report from now on for which `true` holds."""
    await until(lambda: source.latest is not None and true(source.latest), source)
    assert source.latest is not None
    return source.latest

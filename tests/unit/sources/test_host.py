"""The host source over time: intervals, containers that come and go, kernels without PSI, files that fail."""

from __future__ import annotations

import asyncio
import errno
import itertools
from pathlib import Path

import pytest

from kvpressure.config.settings.model import HostSettings
from kvpressure.model.environment import ContainerId, ContainerState, Environment, HostReport
from kvpressure.sources import host as source
from kvpressure.sources.host import HostSource
from kvpressure.sources.source import Known
from tests.support.engine_kit import VirtualClock

POD = ContainerId("ns", "vllm-0", "vllm")
FIRST, SECOND = "4f" * 32, "5a" * 32


class Host:
    """A made-up /proc and /sys/fs/cgroup."""

    def __init__(self, root: Path) -> None:
        self.proc, self.cgroups = root / "proc", root / "cgroup"
        (self.proc / "pressure").mkdir(parents=True)
        self.cgroups.mkdir()
        (self.cgroups / "cgroup.controllers").touch()
        self.stalls(0)

    def stalls(self, microseconds: int) -> None:
        text = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={microseconds}\n"
        (self.proc / "pressure" / "cpu").write_text(text)

    def runs(self, runtime_id: str, periods: int, throttled: int) -> Path:
        group = self.cgroups / "kubepods.slice" / f"cri-containerd-{runtime_id}.scope"
        group.mkdir(parents=True, exist_ok=True)
        (group / "cpu.stat").write_text(f"usage_usec 1\nnr_periods {periods}\nnr_throttled {throttled}\n")
        return group

    def ends(self, group: Path) -> None:
        (group / "cpu.stat").unlink()
        group.rmdir()


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def reading(host: Host, clock: VirtualClock) -> HostSource:
    return HostSource(HostSettings(proc_dir=host.proc, cgroup_dir=host.cgroups), clock)


def follow(reading: HostSource, *states: ContainerState) -> None:
    reading.facts(Known(environment=Environment(containers={state.id: state for state in states})))


def state(runtime_id: str = FIRST) -> ContainerState:
    return ContainerState(POD, 0.0, runtime_id=runtime_id)


async def read(reading: HostSource, clock: VirtualClock, seconds: float = 5.0) -> HostReport:
    clock.now += seconds
    await reading.read()
    return reading.report


async def test_the_second_reading_knows_pressure_and_throttling(reading: HostSource, host: Host, clock: VirtualClock):
    follow(reading, state())
    host.runs(FIRST, 100, 10)
    assert await read(reading, clock) == HostReport(clock.wall())
    host.stalls(2_500_000)
    host.runs(FIRST, 150, 35)
    assert await read(reading, clock) == HostReport(clock.wall(), 0.5, {POD: 0.5})
    assert reading.health()[0].up


async def test_a_container_without_a_limit_is_absent(reading: HostSource, host: Host, clock: VirtualClock):
    follow(reading, state())
    host.runs(FIRST, 0, 0)
    await read(reading, clock)
    assert (await read(reading, clock)).throttled_ratio == {}


async def test_a_new_container_under_the_same_name_starts_over(reading: HostSource, host: Host, clock: VirtualClock):
    follow(reading, state())
    group = host.runs(FIRST, 10, 0)
    await read(reading, clock)
    host.ends(group)
    host.runs(SECOND, 100, 90)
    follow(reading, state(SECOND))
    assert (await read(reading, clock)).throttled_ratio == {}
    host.runs(SECOND, 200, 90)
    assert (await read(reading, clock)).throttled_ratio == {POD: 0.0}


async def test_a_container_that_ended_is_absent_and_found_again_later(
    reading: HostSource, host: Host, clock: VirtualClock
):
    follow(reading, state())
    group = host.runs(FIRST, 10, 0)
    await read(reading, clock)
    host.ends(group)
    await read(reading, clock)
    assert reading.report.throttled_ratio == {}
    host.runs(FIRST, 20, 0)
    await read(reading, clock, source.SEARCH_SECONDS)
    host.runs(FIRST, 30, 5)
    assert (await read(reading, clock)).throttled_ratio == {POD: 0.5}


async def test_cgroups_are_walked_once_and_not_at_every_reading(
    reading: HostSource, host: Host, clock: VirtualClock, monkeypatch
):
    walks = []
    monkeypatch.setattr(source, "find", lambda root, ids: walks.append(set(ids)) or {})
    follow(reading, state())
    for _ in range(5):
        await read(reading, clock)
    assert walks == [{FIRST}]
    follow(reading, state(), ContainerState(ContainerId("ns", "new", "vllm"), 0.0, runtime_id=SECOND))
    await read(reading, clock)
    assert walks[1:] == [{FIRST, SECOND}]
    await read(reading, clock, source.SEARCH_SECONDS)
    assert len(walks) == 3


async def test_a_kernel_without_psi_is_no_failure_and_pressure_is_absent(
    reading: HostSource, host: Host, clock: VirtualClock
):
    (host.proc / "pressure" / "cpu").unlink()
    follow(reading, state())
    host.runs(FIRST, 10, 0)
    await read(reading, clock)
    host.runs(FIRST, 20, 10)
    assert await read(reading, clock) == HostReport(clock.wall(), None, {POD: 1.0})
    (health,) = reading.health()
    assert (health.up, health.errors) == (True, {"no_psi": 1})


@pytest.mark.parametrize(
    ("code", "up"), [(errno.EOPNOTSUPP, True), (errno.ENOENT, True), (errno.EACCES, True), (errno.EIO, False)]
)
async def test_psi_that_is_switched_off_or_forbidden_differs_from_psi_that_fails(
    reading: HostSource, clock: VirtualClock, monkeypatch, code: int, up: bool
):
    def failing(path: Path) -> str:
        raise OSError(code, "no")

    await read(reading, clock)
    with monkeypatch.context() as patch:
        patch.setattr(source, "_text", failing)
        await read(reading, clock)
        assert (reading.health()[0].up, reading.report) == (up, HostReport(clock.wall()))
    await read(reading, clock)
    assert reading.health()[0].up
    assert (await read(reading, clock)).cpu_pressure_ratio == 0.0


async def test_cgroups_that_are_not_mounted_are_counted_once(reading: HostSource, clock: VirtualClock):
    follow(reading, state())
    for _ in range(3):
        await read(reading, clock)
    assert reading.health()[0].errors == {"no_cgroup": 1}


async def test_it_reads_at_its_interval_and_when_switched_off_never(host: Host, clock: VirtualClock, monkeypatch):
    times: list[float] = []
    monkeypatch.setattr(source, "_text", lambda path: times.append(clock.monotonic()) or "")
    running = asyncio.create_task(HostSource(HostSettings(proc_dir=host.proc), clock).run())
    for _ in range(52):
        await clock.advance(1)
        await asyncio.sleep(0.002)
    running.cancel()
    assert len(times) in (10, 11, 12)
    assert all(4.5 < b - a < 5.5 for a, b in itertools.pairwise(times[1:]))
    off = HostSource(HostSettings(enabled=False, proc_dir=host.proc), clock)
    await off.run()
    assert off.health() == ()

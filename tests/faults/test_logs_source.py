"""All logs together: followed and forgotten, switched off, hung, forbidden, and back again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import structlog

from kvpressure.config.settings.model import LogFileSettings, LogsSettings
from kvpressure.model.environment import LOG_KINDS, ContainerId, ContainerState
from kvpressure.sources import logs as source
from kvpressure.sources.logs import LogsSource
from kvpressure.sources.logs.safe_open import PermissionDeniedError, Tree
from tests.support.engine_kit import VirtualClock

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"
POD = ContainerId("ns", "vllm-0", "vllm")
BOX = ContainerId("", "", "gpu-box")


def state(
    container: ContainerId = POD, uid: str = "u1", runtime_id: str = "abc", started: float | None = 1.0
) -> ContainerState:
    return ContainerState(container, 0.0, pod_uid=uid, runtime_id=runtime_id, started=started)


def write(root: Path, *texts: str, t: float, uid: str = "u1") -> Path:
    file = root / f"ns_vllm-0_{uid}" / "vllm" / "0.log"
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as stream:
        for text in texts:
            stream.write(f"{datetime.fromtimestamp(t, UTC).isoformat()} stderr F {text}\n")
    return file


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def make(clock: VirtualClock, tmp_path: Path) -> AsyncIterator[Callable[..., LogsSource]]:
    made: list[LogsSource] = []

    def build(**values: Any) -> LogsSource:
        made.append(LogsSource(LogsSettings(**{"directory": tmp_path / "pods", **values}), clock))
        return made[-1]

    (tmp_path / "pods").mkdir()
    yield build
    for logs in made:
        await logs.aclose()


def open_logs(root: Path) -> list[str]:
    links = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [str(target) for target in links if str(target).startswith(str(root))]


async def test_a_pods_log_is_counted_and_its_health_told(make, clock: VirtualClock, tmp_path: Path):
    logs = make()
    logs.follow([state()])
    write(tmp_path / "pods", OOM, t=clock.wall() + 1)
    await logs.sweep()
    assert logs.reports[POD].counts == {**dict.fromkeys(LOG_KINDS, 0), "device_oom": 1}
    assert [(h.source, h.target, h.up) for h in logs.health()] == [("logs", "", True), ("logs", "ns/vllm-0/vllm", True)]


async def test_a_pod_that_is_gone_is_forgotten_and_its_file_closed(make, clock: VirtualClock, tmp_path: Path):
    logs = make()
    write(tmp_path / "pods", OOM, t=clock.wall())
    logs.follow([state()])
    await logs.sweep()
    assert len(open_logs(tmp_path)) == 1
    logs.follow([])
    await logs.sweep()
    assert open_logs(tmp_path) == []
    assert (logs.reports, logs.health()) == ({}, ())


async def test_a_pod_made_anew_under_its_name_is_another_log(make, clock: VirtualClock, tmp_path: Path):
    logs = make()
    write(tmp_path / "pods", OOM, t=clock.wall())
    logs.follow([state()])
    await logs.sweep()
    write(tmp_path / "pods", "starting", t=clock.wall(), uid="u2")
    logs.follow([state(uid="u2")])
    await logs.sweep()
    assert logs.reports[POD].counts["device_oom"] == 0
    assert len(open_logs(tmp_path)) == 1


async def test_after_a_restart_of_the_exporter_nothing_old_is_counted_again(make, clock: VirtualClock, tmp_path: Path):
    write(tmp_path / "pods", OOM, t=clock.wall() - 60)
    for _ in range(2):
        logs = make()
        logs.follow([state()])
        await logs.sweep()
        assert logs.reports[POD].counts["device_oom"] == 0
        assert logs.reports[POD].latest["device_oom"] == clock.wall() - 60


async def test_a_container_that_is_not_there_yet_is_no_failure_and_one_whose_log_is_missing_is(make):
    logs = make()
    logs.follow([state(runtime_id="")])
    await logs.sweep()
    assert [h.up for h in logs.health()] == [True]
    logs.follow([state()])
    await logs.sweep()
    assert [(h.target, h.reason) for h in logs.health() if not h.up] == [("ns/vllm-0/vllm", "missing")]
    assert logs.reports == {}


async def test_a_pod_that_was_evicted_keeps_no_source_down_when_the_kubelet_has_taken_its_log(make):
    logs = make()
    logs.follow([state(started=None)])
    await logs.sweep()
    assert [h.up for h in logs.health()] == [True]


async def test_on_auto_a_directory_that_is_not_mounted_is_no_failure_is_said_and_read_when_it_is(
    make, clock: VirtualClock, tmp_path: Path
):
    logs = make(directory=tmp_path / "later")
    logs.follow([state()])
    with structlog.testing.capture_logs() as told:
        await logs.sweep()
        await logs.sweep()
    assert logs.health() == ()
    assert [line["event"] for line in told] == ["pod logs are not read"]
    (problem,) = logs.problems
    assert problem.startswith(f"{tmp_path / 'later'} is not there")
    write(tmp_path / "later", OOM, t=clock.wall())
    await logs.sweep()
    assert all(h.up for h in logs.health())
    assert (logs.reports[POD].counts["device_oom"], logs.problems) == (1, ())


async def test_whatever_a_sweep_raises_the_next_one_comes(make, monkeypatch, clock: VirtualClock):
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    logs = make()
    logs.follow([state()])
    with monkeypatch.context() as patch:
        patch.setattr(LogsSource, "_choose", broken)
        await logs.sweep()
    assert [h.reason for h in logs.health()] == ["internal"]
    await logs.sweep()
    assert logs.health()[0].up


async def test_a_directory_that_is_missing_is_said_and_read_when_it_is_mounted(
    make, clock: VirtualClock, tmp_path: Path
):
    logs = make(directory=tmp_path / "later", enabled="true")
    logs.follow([state()])
    await logs.sweep()
    (health,) = logs.health()
    assert (health.up, health.reason) == (False, "missing")
    assert "mount it, or set logs.enabled to false" in health.error
    write(tmp_path / "later", OOM, t=clock.wall())
    await logs.sweep()
    assert all(h.up for h in logs.health())
    assert logs.reports[POD].counts["device_oom"] == 1


async def test_one_forbidden_log_is_disabled_alone_and_recovers(make, clock: VirtualClock, tmp_path: Path, monkeypatch):
    other = ContainerId("ns", "vllm-0", "sidecar")
    write(tmp_path / "pods", OOM, t=clock.wall())
    (tmp_path / "pods" / "ns_vllm-0_u1" / "sidecar").mkdir()
    (tmp_path / "pods" / "ns_vllm-0_u1" / "sidecar" / "0.log").write_text("")
    real = Tree.open_file

    def forbidding(tree: Tree, parts: tuple[str, ...]) -> int:
        if "vllm" in parts:
            raise PermissionDeniedError("may not")
        return real(tree, parts)

    logs = make()
    logs.follow([state(), state(other)])
    with monkeypatch.context() as patch:
        patch.setattr(Tree, "open_file", forbidding)
        await logs.sweep()
        assert set(logs.reports) == {other}
        assert [h.reason for h in logs.health() if not h.up] == ["permission"]
    await logs.sweep()
    assert logs.reports[POD].counts["device_oom"] == 1
    assert all(h.up for h in logs.health())


async def test_a_bug_in_one_log_is_that_logs_failure(make, tmp_path: Path, clock: VirtualClock, monkeypatch):
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("kvpressure.sources.logs.pod_log.FileLog.read", broken)
    write(tmp_path / "pods", OOM, t=clock.wall())
    logs = make(files=(LogFileSettings(target="gpu-box", path=tmp_path / "vllm.log"),))
    logs.follow([state()])
    await logs.sweep()
    assert [(h.target, h.reason) for h in logs.health() if not h.up] == [("gpu-box", "internal")]
    assert POD in logs.reports


async def test_without_kubernetes_files_are_read_and_the_directory_is_not_missed(make, tmp_path: Path):
    (tmp_path / "vllm.log").write_text("GPU KV cache size: 65,536 tokens\n")
    logs = make(directory=tmp_path / "nowhere", files=(LogFileSettings(target="gpu-box", path=tmp_path / "vllm.log"),))
    await logs.sweep()
    assert logs.reports[BOX].kv_capacity_tokens == 65_536
    assert all(h.up for h in logs.health())


async def test_switched_off_nothing_is_read_or_told(make, tmp_path: Path, clock: VirtualClock):
    write(tmp_path / "pods", OOM, t=clock.wall())
    logs = make(enabled="false")
    logs.follow([state()])
    await logs.sweep()
    assert (logs.reports, logs.health()) == ({}, ())


async def test_a_file_system_that_hangs_neither_blocks_the_loop_nor_is_read_twice(
    make, tmp_path: Path, clock: VirtualClock, monkeypatch
):
    release, calls = threading.Event(), []

    def hanging(self: Tree, parts: tuple[str, ...]) -> tuple[str, ...]:
        calls.append(parts)
        release.wait()
        return ("0.log",)

    write(tmp_path / "pods", OOM, t=clock.wall())
    logs = make()
    logs.follow([state()])
    with monkeypatch.context() as patch:
        patch.setattr(source, "DEADLINE_SECONDS", 0.05)
        patch.setattr(Tree, "names", hanging)
        beats = 0
        sweeping = asyncio.create_task(logs.sweep())
        while not sweeping.done():
            await asyncio.sleep(0.001)
            beats += 1
        assert beats, "the loop ran while the thread hung"
        assert logs.health()[0].reason == "timeout"
        await logs.sweep()
        assert len(calls) == 1
        assert "hangs in the kernel" in logs.health()[0].error
        release.set()
    while not logs.reports:
        await logs.sweep()
        await asyncio.sleep(0.001)
    assert logs.reports[POD].counts["device_oom"] == 1
    assert logs.health()[0].up


async def test_it_reads_every_second_and_closes_everything_when_it_ends(make, clock: VirtualClock, tmp_path: Path):
    write(tmp_path / "pods", "starting", t=clock.wall())
    logs = make()
    logs.follow([state()])
    running = asyncio.create_task(logs.run())
    for second in range(3):
        write(tmp_path / "pods", OOM, t=clock.wall() + 20 * second)
        while POD not in logs.reports or logs.reports[POD].counts["device_oom"] < second + 1:
            await clock.advance(0.5)
            await asyncio.sleep(0.001)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert open_logs(tmp_path) == []

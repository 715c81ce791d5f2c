"""What the world does to the child process, and what the source makes of it."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from asyncio.subprocess import Process
from collections.abc import Mapping
from pathlib import Path

import pytest

from kvpressure.config.settings import GpuSettings as Section
from kvpressure.model.samples import GpuReport
from kvpressure.net.waiting import cancel
from kvpressure.sources.gpu import process
from kvpressure.sources.gpu.backend import FIRST_CODE, NOT_FOUND, REASONS, GpuSettings
from kvpressure.sources.gpu.process import GpuSource, child_command, child_environment, real_gpus
from kvpressure.sources.gpu.record import record_gpus
from tests.stubs.world import World, nvidia, report_where, until


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path / "scenario", monkeypatch)


def child_pid(source: GpuSource) -> int:
    assert source.pid is not None
    return source.pid


def ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"


async def test_a_driver_that_loads_later_is_picked_up(world: World) -> None:
    world.show({"call.nvmlInitWithFlags": "error 9"})
    async with world.source("nvidia") as source:
        await until(lambda: source.health()[0].reason == "driver_not_loaded", source)
        assert source.latest is None
        assert source.health()[0].error == "NVML cannot be initialized: Driver Not Loaded"
        assert not source.health()[0].absent
        world.show(nvidia(1))
        await report_where(source, lambda report: len(report.gpus) == 1)
        assert source.health()[0].up


async def test_a_driver_without_gpus_is_asked_again(world: World) -> None:
    world.show({"count": 0})
    async with world.source("nvidia") as source:
        await until(lambda: source.health()[0].reason == "no_devices", source)
        world.show(nvidia(1))
        await report_where(source, lambda report: len(report.gpus) == 1)


@pytest.mark.parametrize("call", ["nvmlInitWithFlags", "nvmlDeviceGetMemoryInfo_v2"])
async def test_a_call_that_hangs_is_a_killed_and_restarted_child(world: World, call: str) -> None:
    world.show(nvidia(1))
    async with world.source("nvidia", start_seconds=1.0, deadline_seconds=0.5) as source:
        await report_where(source, lambda report: len(report.gpus) == 1)
        pid = child_pid(source)
        world.show(nvidia(1) | {f"call.{call}": "hang"})
        if call == "nvmlInitWithFlags":
            os.kill(pid, signal.SIGKILL)
        await until(lambda: source.health()[0].reason == "timeout", source)
        assert "no reading within" in source.health()[0].error
        assert ended(pid)
        world.show(nvidia(1))
        await until(lambda: source.health()[0].up, source)
        assert source.health()[0].errors["timeout"] >= 1


async def test_a_call_that_crashes_is_a_restarted_child_and_a_counted_failure(world: World) -> None:
    world.show(nvidia(1))
    async with world.source("nvidia") as source:
        await report_where(source, lambda report: len(report.gpus) == 1)
        world.show(nvidia(1) | {"call.nvmlDeviceGetMemoryInfo_v2": "crash"})
        await until(lambda: source.health()[0].reason == "crashed", source)
        assert "was killed by SIGSEGV" in source.health()[0].error
        world.show(nvidia(1))
        await until(lambda: source.health()[0].up, source)
        assert source.health()[0].errors["crashed"] >= 1


async def test_a_hanging_driver_never_holds_the_event_loop(world: World) -> None:
    world.show(nvidia(1) | {"call.nvmlInitWithFlags": "hang"})
    loop, worst = asyncio.get_running_loop(), 0.0
    async with world.source("nvidia", start_seconds=0.3) as source:
        while source.health()[0].reason != "timeout":
            before = loop.time()
            await asyncio.sleep(0.01)
            worst = max(worst, loop.time() - before)
    assert worst < 2.0, "a blocked loop would have slept as long as the driver: for ever"


async def test_no_library_is_a_calm_state_without_a_child(world: World) -> None:
    async with world.source("nvidia", library_paths=(), probe_seconds=60.0) as source:
        await until(lambda: source.health()[0].reason == "library_not_found", source)
        assert source.health()[0].absent
        assert "libnvidia-ml.so.1 cannot be loaded" in source.health()[0].error
        await until(lambda: source.pid is None, source)
        assert source.starts == 1


async def test_detaching_lets_go_of_the_device_and_attaches_again_by_itself(world: World) -> None:
    world.show(nvidia(1))
    async with world.source("nvidia", detach_seconds=0.5) as source:
        await report_where(source, lambda report: len(report.gpus) == 1)
        pid, detached = child_pid(source), time.monotonic()
        source.detach()
        assert source.health()[0].reason == "detached"
        await until(lambda: ended(pid), source)
        await until(lambda: source.starts == 2, source)
        assert time.monotonic() - detached >= 0.5
        await until(lambda: source.health()[0].up, source)
        assert source.health()[0].errors == {}, "asked for, so not a failure"


async def test_detaching_while_there_is_no_child_postpones_the_next_one(world: World) -> None:
    world.show({"call.nvmlInitWithFlags": "error 9"})
    async with world.source("nvidia", detach_seconds=60.0) as source:
        await until(lambda: source.health()[0].reason == "driver_not_loaded", source)
        source.detach()
        await until(lambda: source.pid is None, source)
        starts = source.starts
        await asyncio.sleep(0.3)
        assert source.starts == starts
        assert source.health()[0].reason == "detached"


async def test_cancelling_ends_the_child(world: World) -> None:
    world.show(nvidia(1))
    async with world.source("nvidia") as source:
        await report_where(source, lambda report: len(report.gpus) == 1)
        pid = child_pid(source)
    assert ended(pid)


async def test_cancelling_ends_a_child_that_hangs(world: World) -> None:
    world.show(nvidia(1) | {"call.nvmlInitWithFlags": "hang"})
    async with world.source("nvidia", start_seconds=60.0) as source:
        await until(lambda: source.pid is not None, source)
        pid = child_pid(source)
    assert ended(pid)


async def test_a_child_that_cannot_be_killed_is_left_behind_and_not_multiplied(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if in uninterruptible sleep: it does not end, whatever it is sent."""
    world.show(nvidia(1) | {"call.nvmlInitWithFlags": "hang"})
    left: list[Process] = []

    real = process._end

    async def stuck(child: Process, grace_seconds: float) -> bool:
        left.append(child)
        return False

    with monkeypatch.context() as patch:
        patch.setattr(process, "_end", stuck)
        source = GpuSource("nvidia", world.settings(start_seconds=0.05))
        task = asyncio.create_task(source.run())
        await until(lambda: "still stuck" in source.health()[0].error, source)
        assert source.starts == process.MAX_LEFT_BEHIND
    for child in left:
        await real(child, 0.0)
    world.show(nvidia(1))
    source._settings = world.settings()
    await until(lambda: source.health()[0].up, source)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert all(ended(child.pid) for child in left)


async def test_a_child_that_cannot_even_start_is_a_failure_and_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.show(nvidia(1))
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/nonexistent/python")
        source = GpuSource("nvidia", world.settings())
        task = asyncio.create_task(source.run())
        await until(lambda: "cannot be started" in source.health()[0].error, source)
    await until(lambda: source.health()[0].up, source)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


WRONG = [
    b'{"t": "now", "gpus": []}',
    b'{"t": 1, "gpus": [{"t": 1, "uuid": 1, "index": 0, "vendor": null}]}',
    b'{"t": 1, "gpus": [{"t": 1, "uuid": "a", "index": "0", "vendor": "v", "utilization": ["x"]}]}',
    b'{"t": 1, "gpus": [], "errors": {"GPU-0": null}}',
    b'{"t": 1, "gpus": [], "rejected": [1]}',
    b"[" * 100_000,
]


@pytest.mark.fault(
    "the GPU child writes a wrong type",
    "the child is ended and restarted; until then the source is down with the reason",
)
@pytest.mark.parametrize("line", WRONG, ids=range(len(WRONG)))
async def test_a_child_that_writes_wrong_types_is_a_restarted_child(
    world: World, monkeypatch: pytest.MonkeyPatch, line: bytes
) -> None:
    world.show(nvidia(1))
    script = f"import sys; sys.stdout.buffer.write({line!r} + b'\\n'); sys.stdout.flush(); sys.stdin.read()"
    with monkeypatch.context() as patch:
        patch.setattr(process, "child_command", lambda *_: [sys.executable, "-c", script])
        source = GpuSource("nvidia", world.settings())
        task = asyncio.create_task(source.run())
        await until(lambda: task.done() or source.health()[0].errors.get("crashed", 0) >= 2, source)
        assert not task.done()
        assert "something else than reports" in source.health()[0].error
    await until(lambda: source.health()[0].up, source)
    await cancel([task])


@pytest.mark.fault("the reader of GPU reports fails on one", "the source reports it and continues with the next report")
async def test_a_report_that_cannot_be_taken_does_not_end_the_task(world: World) -> None:
    world.show(nvidia(1))
    broken = True

    def take(_: GpuReport) -> None:
        if broken:
            raise KeyError("no such GPU")

    source = GpuSource("nvidia", world.settings(), on_report=take)
    task = asyncio.create_task(source.run())
    await until(lambda: task.done() or source.health()[0].errors.get("internal", 0) >= 2, source)
    assert not task.done()
    assert source.health()[0].error == "KeyError: 'no such GPU'; please report this"
    assert source.starts == 1, "it is not the child's fault"
    broken = False
    await until(lambda: source.health()[0].up, source)
    await cancel([task])


async def test_a_child_that_ends_by_a_signal_without_a_name_is_restarted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f"import os; os.kill(os.getpid(), {signal.SIGRTMIN + 3})"
    monkeypatch.setattr(process, "child_command", lambda *_: [sys.executable, "-c", script])
    source = GpuSource("nvidia", world.settings())
    task = asyncio.create_task(source.run())
    await until(lambda: task.done() or source.starts >= 2, source)
    assert not task.done()
    assert f"was killed by signal {signal.SIGRTMIN + 3}" in source.health()[0].error
    await cancel([task])


def run_child(world: World, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    settings = world.settings()
    return subprocess.Popen(
        child_command("nvidia", settings),
        env=environment or child_environment(settings),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_a_child_without_a_library_says_so_by_its_code(world: World) -> None:
    with run_child(world, child_environment(GpuSettings())) as child:
        assert child.stderr is not None
        last_words = child.stderr.read()  # its input stays open: without a parent it has nothing to say
        child.communicate(timeout=120)
    assert child.returncode == FIRST_CODE + REASONS.index(NOT_FOUND)
    assert b"libnvidia-ml.so.1 cannot be loaded" in last_words


def test_a_child_ends_when_its_parent_lets_go_of_its_input(world: World) -> None:
    world.show(nvidia(1))
    with run_child(world) as child:
        assert child.stdout is not None
        assert child.stdout.readline().startswith(b'{"t":')
        child.communicate(timeout=120)
    assert child.returncode == 0


def test_a_child_that_hangs_dies_with_its_parent(world: World) -> None:
    world.show(nvidia(1) | {"call.nvmlInitWithFlags": "hang"})
    settings = world.settings()
    script = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen({child_command('nvidia', settings)!r}, stdin=subprocess.PIPE)\n"
        "print(child.pid, flush=True)\ntime.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], env=child_environment(settings), stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        time.sleep(0.5)  # let it get into the library
        parent.kill()
    end = time.monotonic() + 120
    while not ended(pid):
        assert time.monotonic() < end, "the child outlived its parent"
        time.sleep(0.02)


def test_auto_means_every_vendor_with_hardware() -> None:
    def made(vendors: tuple[str, ...]) -> list[str]:
        return [reader.health()[0].source for reader in real_gpus(Section(vendors=vendors), print)]

    assert (made(("auto",)), made(("amd",))) == (["nvml", "amdsmi"], ["amdsmi"])
    with pytest.raises(KeyError, match="intel"):
        made(("intel",))


def test_a_dump_has_what_the_binding_answered_and_no_names(world: World) -> None:
    world.show(nvidia(1))
    dump = record_gpus("nvidia", world.settings(), seconds=0.3)
    assert dump["error"] == ""
    names = {call["call"] for call in dump["calls"]}
    assert {"nvmlDeviceGetMemoryInfo", "nvmlDeviceGetSamples", "nvmlDeviceGetUUID"} <= names
    assert dump["reports"][0]["gpus"][0]["uuid"] == "GPU-00000000-0000-0000-0000-000000000001"
    assert "1111-2222" not in str(dump)


def test_a_dump_of_a_machine_without_the_library_says_why(world: World) -> None:
    dump = record_gpus("amd", world.settings(library_paths=()), seconds=0.1)
    assert "libamd_smi.so cannot be loaded" in dump["error"]
    assert dump["reports"] == []


def test_a_dump_of_a_driver_that_hangs_ends_in_time(world: World) -> None:
    world.show({"call.nvmlInitWithFlags": "hang"})
    dump = record_gpus("nvidia", world.settings(start_seconds=1.0), seconds=0.1)
    assert "did not answer" in dump["error"]

"""The GPU child of a real exporter killed, stopped and fed with garbage again and again, and children that flood.

`ATTACK_SECONDS=60` attacks for a minute instead of some seconds.
"""

import asyncio
import contextlib
import json
import math
import os
import random
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from kvpressure.model.samples import GpuReport
from kvpressure.net.waiting import cancel
from kvpressure.sources.gpu import process
from kvpressure.sources.gpu.process import GpuSource
from tests.stubs.world import World, nvidia, until
from tests.support.ended import Exporter, _processes, _stat, exporter
from tests.support.engine_kit import GOOD_PAGE
from tests.support.exporter_settings import QUIET, fetched, gpus, listens
from tests.support.processes import free_port, resident_mib
from tests.support.servers import FaultServer, Request, answer

SECONDS = float(os.environ.get("ATTACK_SECONDS", "6"))
REPORT = b'{"t": 1.0, "gpus": [{"t": 1.0, "uuid": "GPU-0", "index": "0", "vendor": "nvidia"}]}\n'
GARBAGE = (
    b"\0" * 100,
    b'{"t":\n',
    b"\n",
    b'{"t": 1e999, "gpus": []}\n',
    b"\x1b]0;x\x07\n",
    random.Random(1).randbytes(3000),
)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)


def write_garbage(pid: int) -> None:
    """Into the pipe that its reports go through, between them; its standard output leads to its standard error."""
    folder = Path(f"/proc/{pid}/fd")
    others = {(folder / name).readlink() for name in "012"}
    (reports,) = (
        entry for entry in folder.iterdir() if str(link := entry.readlink()).startswith("pipe:") and link not in others
    )
    fd = os.open(reports, os.O_WRONLY | os.O_NONBLOCK)
    try:
        os.write(fd, random.choice(GARBAGE))
    finally:
        os.close(fd)


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def zombies(pid: int) -> int:
    return sum(1 for one in _processes() if (fields := _stat(one)) and fields[0] == "Z" and int(fields[1]) == pid)


async def attack(run: Exporter, harm: Callable[[int], None]) -> tuple[int, int]:
    """Harm whatever child there is every fifth of a second; the children that there were, and the most at once."""
    seen: set[int] = set()
    most, loop = 0, asyncio.get_running_loop()
    end = loop.time() + SECONDS
    while loop.time() < end:
        children = run.children()
        seen |= set(children)
        most = max(most, len(children))
        for child in children:
            with contextlib.suppress(OSError, ValueError):  # it has just ended, or not yet begun
                harm(child)
        await asyncio.sleep(0.2)
    return len(seen), most


@contextlib.asynccontextmanager
async def attacked(folder: Path, port: int) -> AsyncIterator[tuple[Exporter, FaultServer]]:
    """An exporter that polls an engine and two stubbed GPUs."""

    async def serve(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(GOOD_PAGE))

    settings, env = gpus(folder, nvidia(2))
    async with FaultServer(serve) as engine:
        web = {"listen_address": f"127.0.0.1:{port}"}
        targets = {"targets": [{"name": "engine", "url": engine.url}]}
        (folder / "kvpressure.yaml").write_text(json.dumps({"web": web, "engines": targets, **QUIET, **settings}))
        with exporter(folder, ["run", "--config.file", str(folder / "kvpressure.yaml")], env) as run:
            await run.until(lambda: listens(run))
            await run.until(lambda: "source=nvml" in run.output() and engine.requests)
            yield run, engine


@pytest.mark.fault(
    "the GPU child is killed, stopped or gets garbage written into its pipe, five times a second",
    "engines are polled on time, children are started with a back-off and leave no descriptor, zombie or memory, and "
    "the source is down with the reason",
)
@pytest.mark.parametrize(("harm", "reason"), [(kill, "crashed"), (stop, "timeout"), (write_garbage, "crashed")])
async def test_whatever_is_done_to_the_child_engines_are_polled_and_nothing_piles_up(
    harm: Callable[[int], None], reason: str, tmp_path: Path
) -> None:
    port = free_port()
    async with attacked(tmp_path, port) as (run, engine):
        before = len(engine.requests), descriptors(run.pid), resident_mib(run.pid), run.cpu_seconds()
        children, at_once = await attack(run, harm)
        polls = len(engine.requests) - before[0]
        cpu, grown = run.cpu_seconds() - before[3], resident_mib(run.pid) - before[2]
        told = f"{children} children, {polls} polls, {cpu:.1f} s of CPU, {grown:.1f} MiB more"
        assert polls >= 0.7 * SECONDS, told
        assert 1 <= children <= 3 + math.log2(SECONDS + 2), told
        assert at_once == 1, told
        assert zombies(run.pid) <= 1
        assert descriptors(run.pid) <= before[1] + 1
        assert grown < 16, told
        assert cpu < 0.3 * SECONDS, told
        page = f"http://127.0.0.1:{port}/metrics"
        await run.until(lambda: 'kvpressure_source_up{source="nvml",target=""} 0.0' in fetched(page))
        failures = re.search(rf'errors_total{{reason="{reason}",source="nvml",target=""}} (\S+)', fetched(page))
        assert failures is not None
        assert float(failures[1]) >= 1
        assert "Traceback" not in run.output()
        assert len(run.output()) < 4000
        sys.stdout.write(f"{harm.__name__}: {told}\n")
        end = await run.end()
    assert (end.code, end.left) == (0, [])


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path / "scenario", monkeypatch)


@contextlib.asynccontextmanager
async def with_child(
    world: World, monkeypatch: pytest.MonkeyPatch, script: str, on_report: Callable[[GpuReport], None] | None = None
) -> AsyncIterator[GpuSource]:
    """A source whose child is a script."""
    head = f"import os, sys, threading, time\nline = {REPORT!r}\nout = sys.stdout.buffer\n"
    monkeypatch.setattr(process, "child_command", lambda *_: [sys.executable, "-c", head + script])
    source = GpuSource("nvidia", world.settings(), on_report)
    task = asyncio.create_task(source.run())
    try:
        yield source
    finally:
        await cancel([task])


@pytest.mark.fault("the GPU child writes valid reports continuously", "they are read slowly, and it waits for that")
async def test_a_flood_of_right_reports_is_read_slowly(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = 0

    def count(_: object) -> None:
        nonlocal taken
        taken += 1

    async with with_child(world, monkeypatch, "while True: out.write(line * 500)", count) as source:
        await until(lambda: taken > 0, source)
        began, before = time.monotonic(), time.process_time()
        await asyncio.sleep(3.0)
        assert taken <= (time.monotonic() - began) / process.REST_SECONDS + 2
        assert time.process_time() - before < 1.0
        assert source.health()[0].up
        assert source.starts == 1


@pytest.mark.fault(
    "the vendor's library in the GPU child writes to standard error continuously",
    "it is read slowly, and reports are read as before",
)
async def test_a_flood_on_standard_error_is_read_slowly(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = f"""
def report():
    while True:
        out.write(line)
        out.flush()
        time.sleep(0.05)
threading.Thread(target=report, daemon=True).start()
written = open({str(tmp_path / "written")!r}, "w")
while True:
    os.write(2, b"e" * 65536)
    written.write("e")
    written.flush()
"""
    loop = asyncio.get_running_loop()
    async with with_child(world, monkeypatch, script) as source:
        await until(lambda: source.latest is not None, source)
        began, taken = loop.time(), source.latest
        await asyncio.sleep(3.0)
        chunks = (tmp_path / "written").stat().st_size
        assert 1 <= chunks <= (loop.time() - began) / process.REST_SECONDS + 64
        assert source.starts == 1
        assert source.latest is not taken


@pytest.mark.fault(
    "the GPU child starts a process of its own, closes its output or dies and leaves the other with its pipes",
    "both are ended before the next child starts",
)
@pytest.mark.parametrize("ending", ["os.close(1); time.sleep(3600)", "os._exit(1)"])
async def test_what_a_child_has_started_goes_with_it(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ending: str
) -> None:
    pids = tmp_path / "pids"
    script = f"""
if os.fork() == 0:
    os.write(os.open({str(pids)!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT), f"{{os.getpid()}}\\n".encode())
    os.close(1)
    time.sleep(3600)
while not os.path.exists({str(pids)!r}):
    time.sleep(0.01)
{ending}
"""
    async with with_child(world, monkeypatch, script) as source:
        await until(lambda: source.starts >= 3 and len(pids.read_text().split()) >= 3, source)
    started = [*map(int, pids.read_text().split())]
    try:
        # The kernel takes a moment to end who was killed.
        await until(lambda: all((_stat(pid) or "Z")[0] in "ZX" for pid in started), source, seconds=10.0)
    finally:
        for pid in started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

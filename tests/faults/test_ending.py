"""SIGTERM in every state the exporter can be in. Bounds are CPU time and counts; real time only ends hangs."""

import asyncio
import base64
import contextlib
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import bcrypt
import pytest

from tests.stubs.world import nvidia
from tests.support.ended import Exporter, exporter
from tests.support.engine_kit import GOOD_PAGE
from tests.support.exporter_settings import QUIET, fetched, gpus, listens
from tests.support.processes import free_port
from tests.support.servers import FaultServer, answer, drips, hangs

CPU_SECONDS = 2.0


@dataclass
class State:
    """What an exporter is run with, and when it is where a test wants it."""

    reached: Callable[[Exporter], object]
    settings: Mapping[str, object] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    before: str = ""
    ask: Callable[[Exporter], object] = lambda _: None
    """What to do once it listens, for the state to be reached."""


Make = Callable[[Path, int], contextlib.AbstractAsyncContextManager[State]]
STATES: dict[str, Make] = {}


def state(make: Callable[[Path, int], AsyncIterator[State]]) -> Make:
    STATES[make.__name__] = contextlib.asynccontextmanager(make)
    return STATES[make.__name__]


def polled(url: str) -> dict[str, object]:
    return {"engines": {"targets": [{"name": "engine", "url": url}]}}


def maps(pid: int, library: str) -> bool:
    try:
        return library in Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return False


@state
async def nothing_special(_: Path, __: int) -> AsyncIterator[State]:
    yield State(listens)


@state
async def gpu_child_reporting(folder: Path, port: int) -> AsyncIterator[State]:
    settings, env = gpus(folder, nvidia(1))
    seen = f"http://127.0.0.1:{port}/metrics"
    yield State(lambda _: "kvpressure_gpu_memory_used_bytes{" in fetched(seen), settings, env)


@state
async def gpu_child_hanging_in_the_driver(folder: Path, _: int) -> AsyncIterator[State]:
    settings, env = gpus(folder, nvidia(1) | {"call.nvmlInitWithFlags": "hang"})
    yield State(lambda run: any(maps(pid, "libnvidia-ml") for pid in run.children()), settings, env)


@state
async def gpu_child_being_started(folder: Path, _: int) -> AsyncIterator[State]:
    settings, env = gpus(folder, nvidia(1))
    yield State(lambda run: run.children(), settings, env)


@state
async def gpu_child_crashing_again_and_again(folder: Path, port: int) -> AsyncIterator[State]:
    settings, env = gpus(folder, nvidia(1) | {"call.nvmlInitWithFlags": "crash"})
    seen = f"http://127.0.0.1:{port}/metrics"
    yield State(lambda _: 'reason="crashed",source="nvml",target=""} 2.0' in fetched(seen), settings, env)


@state
async def connecting_to_an_engine(_: Path, __: int) -> AsyncIterator[State]:
    with contextlib.ExitStack() as sockets:
        listener = sockets.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        for _filler in range(8):  # a full backlog drops further handshakes
            filler = sockets.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        sent = f":{port:04X} 02 "  # SYN_SENT, as /proc/net/tcp has it
        yield State(lambda _: sent in Path("/proc/net/tcp").read_text(), polled(f"http://127.0.0.1:{port}"))


@state
async def an_engine_dripping_its_page(_: Path, __: int) -> AsyncIterator[State]:
    async with FaultServer(drips(GOOD_PAGE)) as engine:
        yield State(lambda _: engine.requests, polled(engine.url))


@state
async def a_name_that_is_never_resolved(folder: Path, _: int) -> AsyncIterator[State]:
    asked = folder / "asked"
    before = f"""
import pathlib, socket, time
found = socket.getaddrinfo
def stuck(host, *more, **options):
    if host != "engine.invalid":
        return found(host, *more, **options)
    pathlib.Path({str(asked)!r}).touch()
    time.sleep(3600)
socket.getaddrinfo = stuck
"""
    yield State(lambda _: asked.exists(), polled("http://engine.invalid:8000"), before=before)


@state
async def an_api_server_that_hangs(folder: Path, _: int) -> AsyncIterator[State]:
    async with FaultServer(hangs) as server:
        settings = {"kubernetes": {"enabled": "true", "node_name": "node-1"}}
        yield State(lambda _: server.requests, settings, before=in_a_pod(folder, server.url))


@state
async def an_api_server_whose_name_is_never_resolved(folder: Path, _: int) -> AsyncIterator[State]:
    asked = folder / "asked"
    before = f"""
import pathlib, socket, time
found = socket.getaddrinfo
def stuck(host, *more, **options):
    if host not in ("api.invalid", b"api.invalid"):
        return found(host, *more, **options)
    pathlib.Path({str(asked)!r}).touch()
    time.sleep(3600)
socket.getaddrinfo = stuck
"""
    settings = {"kubernetes": {"enabled": "true", "node_name": "node-1"}}
    yield State(lambda _: asked.exists(), settings, before=before + in_a_pod(folder, "http://api.invalid:6443"))


@state
async def a_log_that_hangs_in_the_kernel(folder: Path, _: int) -> AsyncIterator[State]:
    asked, log = folder / "asked", folder / "engine.log"
    log.touch()
    before = f"""
import pathlib, time
from kvpressure.sources.logs.pod_log import FileLog
def stuck(*_):
    pathlib.Path({str(asked)!r}).touch()
    time.sleep(3600)
FileLog.read = stuck
"""
    settings = {"logs": {"enabled": "true", "files": [{"target": "engine", "path": str(log)}]}}
    yield State(lambda _: asked.exists(), settings, before=before)


@state
async def a_journal_being_followed(folder: Path, _: int) -> AsyncIterator[State]:
    program = folder / "bin" / "journalctl"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexec sleep 3600\n")
    program.chmod(0o755)
    settings = {"logs": {"enabled": "true", "files": [{"target": "engine", "journal_unit": "vllm.service"}]}}
    env = {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    yield State(lambda run: any(named(pid, "sleep") for pid in run.children()), settings, env)


@state
async def a_journal_being_followed_while_another_log_hangs(folder: Path, port: int) -> AsyncIterator[State]:
    async with a_journal_being_followed(folder, port) as journal, a_log_that_hangs_in_the_kernel(folder, port) as hung:
        files = [log for part in (journal, hung) for log in part.settings["logs"]["files"]]  # type: ignore[index]
        files = [log | {"target": f"engine-{number}"} for number, log in enumerate(files)]
        settings = {"logs": {"enabled": "true", "files": files}}
        yield State(lambda run: journal.reached(run) and hung.reached(run), settings, journal.env, hung.before)


@state
async def reading_settings_that_hang(folder: Path, _: int) -> AsyncIterator[State]:
    """A reload reads a file of a file system that is gone: the kernel answers neither the open nor the read."""
    asked, began, thresholds = folder / "asked", folder / "began", folder / "thresholds.yaml"
    thresholds.write_text("")
    before = f"""
import pathlib, time
from kvpressure.config import files
found = files.open_regular
def stuck(path, **options):
    if pathlib.Path({str(asked)!r}).exists() and path.name == "thresholds.yaml":
        pathlib.Path({str(began)!r}).touch()
        time.sleep(3600)
    return found(path, **options)
files.open_regular = stuck
"""

    def reload(run: Exporter) -> None:
        asked.touch()
        run.process.send_signal(signal.SIGHUP)

    yield State(lambda _: began.exists(), {"thresholds_file": str(thresholds)}, before=before, ask=reload)


@state
async def clients_that_ask_slowly_and_read_nothing(_: Path, port: int) -> AsyncIterator[State]:
    with contextlib.ExitStack() as sockets:

        def ask(_: Exporter) -> None:
            half = b"GET /metrics HTTP/1.1\r\nHost: a\r\nX-Slow: "
            for request in (half, b"GET /runbooks/ HTTP/1.1\r\nHost: a\r\n\r\n" * 50):
                client = sockets.enter_context(socket.create_connection(("127.0.0.1", port)))
                client.setblocking(False)
                client.send(request)

        yield State(lambda _: True, ask=ask)


@state
async def reading_a_long_page(_: Path, __: int) -> AsyncIterator[State]:
    line = b'vllm:request_success_total{engine="0",model_name="m",finished_reason="%s%05d"} 1.0\n'
    body = GOOD_PAGE + b"".join(line % (b"x" * 80, number) for number in range(49_000))
    sent = asyncio.Event()

    async def serve(request: object, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(body))
        await writer.drain()
        sent.set()

    async with FaultServer(serve) as engine:
        yield State(lambda _: sent.is_set(), polled(engine.url))


@state
async def checking_a_password(folder: Path, port: int) -> AsyncIterator[State]:
    hashed = bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()
    (folder / "web.yml").write_text(f"basic_auth_users:\n  someone: {hashed.replace('$04$', '$15$')}\n")
    clients: list[socket.socket] = []
    before: list[float] = []

    def ask(run: Exporter) -> None:
        before.append(run.cpu_seconds())
        header = base64.b64encode(b"someone:wrong").decode()
        for _client in range(4):
            client = socket.create_connection(("127.0.0.1", port))
            client.send(f"GET /metrics HTTP/1.1\r\nHost: a\r\nAuthorization: Basic {header}\r\n\r\n".encode())
            clients.append(client)

    try:
        web = {"listen_address": f"127.0.0.1:{port}", "config_file": str(folder / "web.yml")}
        yield State(lambda run: run.cpu_seconds() > before[0] + 0.3, {"web": web}, ask=ask)
    finally:
        for client in clients:
            client.close()


@state
async def a_task_that_loses_every_cancellation(folder: Path, _: int) -> AsyncIterator[State]:
    began = folder / "began"
    before = f"""
import asyncio, pathlib
from kvpressure.sources.host import HostSource
async def deaf(_):
    pathlib.Path({str(began)!r}).touch()
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass
HostSource.run = deaf
"""
    yield State(lambda _: began.exists(), before=before)


@state
async def an_event_loop_that_is_held_up(folder: Path, _: int) -> AsyncIterator[State]:
    began = folder / "began"
    before = f"""
import pathlib
from kvpressure.sources.host import HostSource
async def busy(_):
    pathlib.Path({str(began)!r}).touch()
    while True:
        pass
HostSource.run = busy
"""
    yield State(lambda _: began.exists(), before=before)


def named(pid: int, name: str) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == name
    except OSError:
        return False


def in_a_pod(folder: Path, server: str) -> str:
    """Code that gives the exporter the service account of a pod."""
    (folder / "token").write_text("t")
    return f"""
import pathlib
from kvpressure.kubernetes.watch import connection
connection.service_account = lambda: connection.ServiceAccount({server!r}, pathlib.Path({str(folder)!r}))
"""


@contextlib.asynccontextmanager
async def running(folder: Path, name: str, before: str = "") -> AsyncIterator[Exporter]:
    """An exporter in the state of that name."""
    port = free_port()
    async with STATES[name](folder, port) as made:
        web = {"listen_address": f"127.0.0.1:{port}"}
        settings = {"web": web, "gpu": {"vendors": []}, "engines": {"targets": []}, **QUIET, **made.settings}
        (folder / "kvpressure.yaml").write_text(json.dumps(settings))
        arguments = ["run", "--config.file", str(folder / "kvpressure.yaml")]
        with exporter(folder, arguments, made.env, before + made.before) as run:
            await run.until(lambda: listens(run))
            made.ask(run)
            await run.until(lambda: made.reached(run))
            yield run


@pytest.mark.fault(
    "a SIGTERM while a GPU child hangs in the driver, starts, or crashes again and again",
    "it ends with exit code 0 and after less than 2 s of CPU time; no child process is left",
)
@pytest.mark.fault(
    "a SIGTERM while an engine accepts the connection, or sends its page slowly",
    "it ends with exit code 0 and after less than 2 s of CPU time; no child process is left",
)
@pytest.mark.fault(
    "a SIGTERM while the name of an engine or of the API server is never resolved, or the API server hangs",
    "it ends with exit code 0 and after less than 2 s of CPU time; no child process is left",
)
@pytest.mark.fault(
    "a SIGTERM while a log hangs in the kernel, a journal is followed, or both",
    "it ends with exit code 0 and after less than 2 s of CPU time; no child process is left",
)
@pytest.mark.fault(
    "a SIGTERM while a reload reads settings that hang",
    "it ends with exit code 0 and after less than 2 s of CPU time; no child process is left",
)
@pytest.mark.fault(
    "a SIGTERM while clients send requests slowly and read nothing, or passwords are checked",
    "it ends with exit code 0 and after less than 2 s of CPU time; no child process is left",
)
@pytest.mark.fault(
    "a SIGTERM while a long page is read",
    "it ends with exit code 0 and after less than 2 s of CPU time; no child process is left",
)
@pytest.mark.fault(
    "a SIGTERM while a task loses every cancellation, or the event loop is blocked",
    "it ends with exit code 0 and after less than 2 s of CPU time; no child process is left",
)
@pytest.mark.parametrize("name", STATES)
async def test_a_sigterm_ends_it_in_every_state_and_no_child_is_left(name: str, tmp_path: Path) -> None:
    async with running(tmp_path, name) as run:
        end = await run.end()
    assert end.code == 0, run.output()
    assert end.cpu_seconds <= CPU_SECONDS
    assert not end.left, run.output()
    assert "Traceback" not in run.output()


@pytest.mark.fault("a second SIGTERM or SIGINT during shutdown", "the second signal ends it at once")
@pytest.mark.parametrize("name", ["a_task_that_loses_every_cancellation", "an_event_loop_that_is_held_up"])
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
async def test_a_second_signal_ends_it_at_once(name: str, second: signal.Signals, tmp_path: Path) -> None:
    patient = "from kvpressure.cli import run\nrun.ORDERLY_SECONDS = run.LAST_RESORT_SECONDS = 3600.0\n"

    def first_was_heard() -> bool:
        # The handler of the first signal gives its place to the default action.
        status = Path(f"/proc/{run.pid}/status").read_text()
        caught = int(status.partition("SigCgt:")[2].split()[0], 16)
        return not caught >> (signal.SIGTERM - 1) & 1

    async with running(tmp_path, name, patient) as run:
        end = await run.end(signal.SIGTERM, second, between=first_was_heard)
    assert end.code == -second
    assert not end.left


@pytest.mark.fault(
    "a SIGTERM while it still starts, as process 1 of a container, for which the kernel has no default signal actions",
    "it ends at once instead of when the container is killed",
)
async def test_process_one_hears_a_sigterm_while_it_starts(tmp_path: Path) -> None:
    importing = tmp_path / "importing"
    before = f"""
import os, pathlib, sys, time
os.getpid = lambda: 1
class Slow:
    def find_spec(self, name, *_):
        if name == "kvpressure.cli.run":
            pathlib.Path({str(importing)!r}).touch()
            time.sleep(3600)
sys.meta_path.insert(0, Slow())
"""
    with exporter(tmp_path, ["run"], {}, before) as run:
        await run.until(importing.exists)
        end = await run.end()
    assert end.code == 128 + signal.SIGTERM

"""The real exporter with few file descriptors, full of connections that say nothing."""

import asyncio
import contextlib
import html
import json
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import bcrypt
import pytest
from click.testing import CliRunner

from kvpressure.cli import main
from kvpressure.exposition import runbooks
from kvpressure.web.scrapes import MAX_QUEUED, MAX_QUEUED_PER_CLIENT
from tests.support.ended import Exporter, exporter
from tests.support.engine_kit import GOOD_PAGE
from tests.support.processes import free_port
from tests.support.servers import FaultServer, Request, answer
from tests.support.web_kit import Client, Served, get, serving, settled

QUIET = {name: {"enabled": "false"} for name in ("kubernetes", "pod_resources", "logs")} | {"host": {"enabled": False}}
HANG_SECONDS = 60.0
"""Only a server that is kept busy takes so long."""


async def scraped(port: int) -> str:
    """The metrics page."""
    async with asyncio.timeout(HANG_SECONDS):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        status, _, body = await Client(reader, writer).ask(get("/metrics"))
        writer.close()
    assert status == 200
    return body.decode()


def value(page: str, series: str) -> float:
    found = re.search(rf"^{re.escape(series)} (\S+)$", page, re.MULTILINE)
    assert found, f"no {series}"
    return float(found[1])


async def listens(run: Exporter, port: int) -> None:
    def true() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    await run.until(true)


@pytest.mark.fault(
    "silent connections, 160 at `ulimit -n 128` or 300 at 256",
    "scrapes are answered, no poll is skipped, the engine stays up, and the log has no traceback",
)
@pytest.mark.parametrize(("descriptors", "silent"), [(128, 160), (256, 300)])
async def test_silent_connections_do_not_take_the_descriptors(descriptors: int, silent: int, tmp_path: Path) -> None:
    async def serve(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(GOOD_PAGE))

    limited = f"import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, ({descriptors}, {descriptors}))\n"
    port = free_port()
    async with FaultServer(serve) as engine:
        settings = {
            "web": {"listen_address": f"127.0.0.1:{port}"},
            "gpu": {"vendors": []},
            "engines": {"targets": [{"name": f"e{n}", "url": engine.url, "path": f"/{n}"} for n in range(8)]},
            **QUIET,
        }
        (tmp_path / "kvpressure.yaml").write_text(json.dumps(settings))
        with exporter(tmp_path, ["run", "--config.file", str(tmp_path / "kvpressure.yaml")], {}, limited) as run:
            await listens(run, port)
            with contextlib.ExitStack() as sockets:
                for _ in range(silent):
                    client = sockets.enter_context(socket.socket())
                    client.setblocking(False)
                    client.connect_ex(("127.0.0.1", port))
                asked = len(engine.requests)
                while len(engine.requests) < asked + 40:  # five polls of each engine
                    page = await scraped(port)
                    assert value(page, "process_open_fds") < descriptors
                    await asyncio.sleep(0.1)
                page = await scraped(port)
                assert value(page, "process_max_fds") == descriptors
                assert value(page, "kvpressure_web_connections") <= descriptors / 2
                assert value(page, 'kvpressure_web_refused_total{reason="full"}') >= silent - descriptors / 2
                assert value(page, 'kvpressure_web_refused_total{reason="no_file_descriptor"}') == 0
                assert all(value(page, f'kvpressure_source_up{{source="engine",target="e{n}"}}') for n in range(8))
            assert "Traceback" not in run.output()
            assert "error" not in run.output()
            await run.end()


# Wrong passwords: each costs a bcrypt, which must be nobody else's time.


HASH = bcrypt.hashpw(b"right", bcrypt.gensalt(4)).decode()
RIGHT = "prometheus:right"
CROWD = "127.0.0.2"


class Slow:
    """bcrypt, whose answers wait until they are let go; remembers what it was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go = threading.Event()
        self.go.set()
        self.asked: list[bytes] = []
        self._compare = bcrypt.checkpw
        monkeypatch.setattr(bcrypt, "checkpw", self)

    def __call__(self, password: bytes, hashed: bytes) -> bool:
        self.asked.append(password)
        self.go.wait()
        return self._compare(password, hashed)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    made = Slow(monkeypatch)
    yield made
    made.go.set()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "web.yml"
    users(path, prometheus=HASH)
    return path


def users(path: Path, **hashes: str) -> None:
    path.write_text("basic_auth_users:\n" + "".join(f"  {name}: {hashed}\n" for name, hashed in hashes.items()))


async def wrong(served: Served, count: int, host: str = CROWD) -> list[asyncio.Task[tuple[int, dict[str, str], bytes]]]:
    """So many different wrong passwords at once; returns when the server has them all."""
    clients = [await served.client(get("/metrics", f"prometheus:wrong-{host}-{n}"), host) for n in range(count)]
    answers = [asyncio.create_task(client.answer()) for client in clients]
    await settled()
    return answers


@pytest.mark.fault(
    "wrong passwords come over 60 connections at once",
    "four are checked one after the other, the rest get 429 at once; the probes and clients with valid credentials "
    "wait for none",
)
async def test_wrong_passwords_delay_neither_probes_nor_whoever_is_known(slow: Slow, config: Path) -> None:
    async with serving(config=config) as served:
        assert (await served.get("/metrics", RIGHT))[0] == 200
        slow.go.clear()
        answers = await wrong(served, 60)
        turned_away = [answer.result() for answer in answers if answer.done()]
        assert [status for status, _, _ in turned_away] == [429] * (60 - MAX_QUEUED_PER_CLIENT)
        assert all(headers["retry-after"] == "1" for _, headers, _ in turned_away)
        assert (await served.get("/-/ready"))[0] == (await served.get("/-/healthy"))[0] == 200
        assert (await served.get("/metrics", RIGHT, CROWD))[0] == 200
        assert served.refused == {"passwords": 60 - MAX_QUEUED_PER_CLIENT}
        assert len(slow.asked) == 2  # the right one, and the first of the wrong ones, under way
        slow.go.set()
        assert (
            sorted([(await answer)[0] for answer in answers])[:MAX_QUEUED_PER_CLIENT] == [401] * MAX_QUEUED_PER_CLIENT
        )


@pytest.mark.fault(
    "wrong passwords arrive continuously while a Prometheus authenticates for the first time",
    "it waits for at most as many as one address may have queued",
)
async def test_a_first_proof_waits_for_few_wrong_passwords(slow: Slow, config: Path) -> None:
    async with serving(config=config) as served:
        slow.go.clear()
        await wrong(served, 30)
        proof = asyncio.create_task(served.get("/metrics", RIGHT))
        await settled()
        await wrong(served, 30)
        slow.go.set()
        assert (await proof)[0] == 200
        assert slow.asked.index(b"right") == MAX_QUEUED_PER_CLIENT


async def test_many_addresses_fill_the_queue_but_no_more(slow: Slow, config: Path) -> None:
    async with serving(config=config) as served:
        slow.go.clear()
        answers = [answer for number in range(2, 12) for answer in await wrong(served, 5, f"127.0.0.{number}")]
        assert sum(not answer.done() for answer in answers) == MAX_QUEUED
        slow.go.set()


@pytest.mark.fault(
    "scrapers with the same password, 300 of them, come to an exporter that has just started",
    "one password check serves all",
)
async def test_the_same_credentials_are_proven_once_however_many_bring_them(slow: Slow, config: Path) -> None:
    async with serving(config=config) as served:
        slow.go.clear()
        clients = [await served.client(get("/metrics", RIGHT)) for _ in range(300)]
        await settled()
        slow.go.set()
        assert {(await client.answer())[0] for client in clients} == {200}
        assert slow.asked == [b"right"]


@pytest.mark.fault(
    "an attacker tries hundreds of wrong passwords, or the file of users changes meanwhile",
    "valid credentials are not checked again; a removed user is refused at once",
)
async def test_the_right_credentials_are_never_forgotten(slow: Slow, config: Path) -> None:
    async with serving(config=config) as served:
        assert (await served.get("/metrics", RIGHT))[0] == 200
        for number in range(200):
            assert (await served.get("/metrics", f"prometheus:{number}", CROWD))[0] == 401
        more = bcrypt.hashpw(b"other", bcrypt.gensalt(4)).decode()
        users(config, prometheus=HASH, other=more)
        served.server._guard._reload(frozenset(served.server._guard._watch.paths))
        slow.asked.clear()
        assert (await served.get("/metrics", RIGHT))[0] == 200
        assert slow.asked == []
        users(config, other=more)
        served.server._guard._reload(frozenset(served.server._guard._watch.paths))
        assert (await served.get("/metrics", RIGHT))[0] == 401


async def test_only_the_probes_are_open(config: Path) -> None:
    async with serving(config=config) as served:
        paths = ("/-/ready", "/-/healthy", "/-/", "/-/other", "/-/%2e%2e/metrics", "/-/../metrics", "/%2d/ready")
        assert [(await served.get(path))[0] for path in paths] == [200, 200, 401, 401, 401, 401, 200]


# What settings and links could make the server do: a metrics page in a wrong place, a command to a foreign host.


BAD = {
    "/-/healthy": "is taken: /- is another page of the exporter; choose a path such as /metrics",
    "/-/metrics": "is taken: /-",
    "/-": "is taken: /-",
    "/": "is taken: / ",
    "/targets": "is taken: /targets",
    "/api/v1/diagnosis": "is taken: /api",
    "/api/metrics": "is taken: /api",
    "/runbooks": "is taken: /runbooks",
    "/runbooks/KVPressureCacheTooSmall": "is taken: /runbooks",
    "/{alert}": "must be a path of letters, digits and . _ ~ - between slashes, such as /metrics",
    "/metrics{tail:.*}": "must be a path",
    "/metrics?x=1": "must be a path",
    "/metrics#x": "must be a path",
    "/%2d/healthy": "must be a path",
    "/a/../-/healthy": "must be a path",
    "/./metrics": "must be a path",
    "//metrics": "must be a path",
    "metrics": "must be a path",
    "": "must be a path",
}


@pytest.mark.fault(
    "a `telemetry_path` is the path of another page, of an open health path, or contains route syntax",
    "check-config and run refuse it with the line and a valid choice",
)
@pytest.mark.parametrize("path", BAD)
def test_a_telemetry_path_that_is_taken_or_no_path_is_refused(path: str, tmp_path: Path) -> None:
    file = tmp_path / "kvpressure.yaml"
    file.write_text(f"web:\n  telemetry_path: '{path}'\n")
    for command in ("check-config", "run"):
        result = CliRunner().invoke(main, [command, "--config.file", str(file)])
        assert result.exit_code == 2
        assert f"kvpressure.yaml:2: web.telemetry_path: {BAD[path]}" in result.output


@pytest.mark.parametrize(
    "path", ["/metrics", "/vllm/metrics", "/metrics/", "/-metrics", "/apis", "/targets.prom", "/m.v1"]
)
def test_any_other_telemetry_path_is_taken(path: str, tmp_path: Path) -> None:
    file = tmp_path / "kvpressure.yaml"
    file.write_text(f"web:\n  telemetry_path: '{path}'\n")
    result = CliRunner().invoke(main, ["check-config", "--config.file", str(file)])
    assert result.exit_code == 0, result.output


ELSEWHERE = (
    "node-1:10405@evil.example",
    "evil.example/x?",
    "http://evil.example",
    "//evil.example",
    "evil.example#",
    "evil.example\\",
    "-oProxyCommand=x",
    "a b",
    "[::1]@evil.example",
    "node-1:10405:evil.example",
)


@pytest.mark.fault(
    "a link to a runbook has an invalid `?instance=`",
    "no command of the page uses another host, and no link leaves the site",
)
@pytest.mark.parametrize("instance", ELSEWHERE)
def test_an_instance_that_is_no_address_is_not_filled_in(instance: str) -> None:
    page = html.unescape(runbooks.page_html("KVPressureExporterDown", {"instance": instance}))
    assert "http://$INSTANCE/-/ready" in page
    assert instance not in page


@pytest.mark.parametrize("instance", ["10.0.0.1:10405", "node-1.example:10405", "[2001:db8::1]:10405", "localhost"])
def test_an_instance_as_prometheus_writes_it_is_filled_in(instance: str) -> None:
    page = html.unescape(runbooks.page_html("KVPressureExporterDown", {"instance": instance}))
    assert "$INSTANCE" not in page.split("<main>")[1]
    assert instance in page

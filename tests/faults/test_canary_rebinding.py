"""`engines.canary` of a real exporter whose name server changes its answer: nobody is asked who must not be.

Every address that the process connects to is written down by an audit hook, below any library.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.canary_engine import CanaryEngine
from tests.support.ended import Exporter, exporter
from tests.support.exporter_settings import QUIET, fetched, listens
from tests.support.processes import free_port
from tests.support.servers import FaultServer, redirect

FORBIDDEN = ("169.254.169.254", "fd00:ec2::254", "169.254.7.7")


def name_server(folder: Path, first: Sequence[str], then: Sequence[str]) -> str:
    """Lines that answer `rebound.example`, once with `first` and from then on with `then`, and note connections."""
    return f"""
import socket, sys, threading
_found, _asked, _out = socket.getaddrinfo, [], open({str(folder / "connected")!r}, "a", buffering=1)
_lookups = open({str(folder / "lookups")!r}, "a", buffering=1)
def _one(ip, port):
    return ((socket.AF_INET6, socket.SOCK_STREAM, 6, "", (ip, port, 0, 0)) if ":" in ip
            else (socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port)))
def _answer(host, port, *more, **options):
    if host != "rebound.example":
        return _found(host, port, *more, **options)
    _asked.append(host)
    _lookups.write("x\\n")
    return [_one(ip, port) for ip in ({list(first)!r} if len(_asked) == 1 else {list(then)!r})]
socket.getaddrinfo = _answer
sys.addaudithook(lambda event, given: _out.write(f"{{given[1]}}\\n") if event in ("socket.connect", "socket.sendto")
                 else None)
"""


def write_settings(folder: Path, port: int, engine: FaultServer) -> None:
    target = {"name": "engine", "url": f"http://rebound.example:{engine.port}"}
    engines = {"targets": [target], "canary": {"enabled": True, "idle_seconds": 10}}
    settings = {"web": {"listen_address": f"127.0.0.1:{port}"}, "gpu": {"vendors": []}, "engines": engines, **QUIET}
    (folder / "kvpressure.yaml").write_text(json.dumps(settings))


def started(folder: Path, before: str):
    return exporter(folder, ["run", "--config.file", str(folder / "kvpressure.yaml")], {}, before)


def connected(folder: Path) -> str:
    return (folder / "connected").read_text()


async def lookups(run: Exporter, folder: Path, count: int) -> None:
    await run.until(lambda: (folder / "lookups").read_text().count("x") >= count)


@pytest.mark.fault(
    "a target's name resolves to its engine at first, and to a metadata service when a one-token request is due",
    "nothing is sent there, with this request or any later poll",
)
@pytest.mark.parametrize("ip", FORBIDDEN)
async def test_a_name_that_is_rebound_is_not_followed(ip: str, tmp_path: Path) -> None:
    port, engine = free_port(), CanaryEngine()
    async with FaultServer(engine) as server:
        write_settings(tmp_path, port, server)
        with started(tmp_path, name_server(tmp_path, ["127.0.0.1"], [ip])) as run:
            await run.until(lambda: listens(run) and server.requests)
            await lookups(run, tmp_path, 2)  # the request of one token has a connection of its own
            await server.stop()  # and so have the next polls, once what was looked up is ten seconds old
            await lookups(run, tmp_path, 3)
            told = f"http://127.0.0.1:{port}/metrics"
            await run.until(lambda: 'errors_total{reason="bad_url",source="engine",target="engine"}' in fetched(told))
            assert engine.asked == []
            assert ip not in connected(tmp_path)
            assert "127.0.0.1" in connected(tmp_path)
            await run.end()


@pytest.mark.fault(
    "a name resolves to an engine and to a metadata service at once, and the engine answers with a redirect to the "
    "latter",
    "only the engine gets a request, and the redirect is not followed",
)
async def test_of_mixed_addresses_the_engines_is_asked_and_no_redirect_followed(tmp_path: Path) -> None:
    port, engine = free_port(), CanaryEngine(api=redirect("http://169.254.169.254/latest/meta-data/"))
    mixed = ["169.254.169.254", "127.0.0.1", "fd00:ec2::254"]
    async with FaultServer(engine) as server:
        write_settings(tmp_path, port, server)
        with started(tmp_path, name_server(tmp_path, mixed, mixed)) as run:
            await run.until(lambda: [request for request in engine.asked if request.method == "POST"])
            await asyncio.sleep(1)
            assert all(ip not in connected(tmp_path) for ip in FORBIDDEN)
            await run.end()


@pytest.mark.parametrize("host", ["169.254.169.254", "[fd00:ec2::254]", "2852039166", "[::ffff:a9fe:a9fe]"])
async def test_check_config_refuses_the_addresses_themselves(host: str, tmp_path: Path) -> None:
    path = tmp_path / "kvpressure.yaml"
    engines = {"targets": [{"name": "engine", "url": f"http://{host}:80"}], "canary": {"enabled": True}}
    path.write_text(json.dumps({"engines": engines}))
    with exporter(tmp_path, ["check-config", "--config.file", str(path)], {}) as run:
        assert await asyncio.to_thread(run.process.wait, 60) != 0
        assert "metadata service" in run.output()

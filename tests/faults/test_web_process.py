"""The real exporter with few file descriptors, full of connections that say nothing."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import socket
from pathlib import Path

import pytest

from tests.support.ended import Exporter, exporter
from tests.support.engine_kit import GOOD_PAGE
from tests.support.processes import free_port
from tests.support.servers import FaultServer, Request, answer
from tests.support.web_kit import Client, get

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

"""The engines of this machine: the ports on which something listens whose `/metrics` is an engine's."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from yarl import URL

from kvpressure.engines.reader import PageReader
from kvpressure.model.errors import SourceError
from kvpressure.net.credentials import Authorization
from kvpressure.net.http import HttpClient
from kvpressure.net.schedule import SystemClock
from kvpressure.sources.pod_devices.ids import PROC
from kvpressure.sources.pod_devices.processes import listening_ports

MAX_PORTS: Final = 256
MAX_AT_ONCE: Final = 16
ANSWERS_WITHIN_SECONDS: Final = 3.0
"""A server in trouble answers late; a port that speaks another protocol may not answer at all."""


def engines_here(proc: Path = PROC) -> tuple[dict[str, str], int]:
    """Return the name of the model by address (`:8000`), and how many ports were asked; without credentials."""
    ports = listening_ports(proc)[:MAX_PORTS]
    return asyncio.run(_engines_on(ports)), len(ports)


async def _engines_on(ports: Sequence[int]) -> dict[str, str]:
    turn = asyncio.Semaphore(MAX_AT_ONCE)

    async def model_on(port: int) -> str | None:
        async with turn:
            client = HttpClient(SystemClock(), tls=None, authorization=Authorization(None, None, setting=""))
            try:
                answer = await client.get(URL(f"http://localhost:{port}/metrics"), ANSWERS_WITHIN_SECONDS)
                page = PageReader().read(answer.body, answer.t)
            except SourceError:
                return None
            finally:
                await client.aclose()
        return next((engine.model_name for engine in page.engines), None)

    models = await asyncio.gather(*map(model_on, ports))
    return {f":{port}": model for port, model in zip(ports, models, strict=True) if model is not None}

"""The engines of this machine: the ports on which something listens whose `/metrics` is an engine's."""

from __future__ import annotations

import asyncio
import os
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


def elsewhere(asked: int, program: str) -> list[str]:
    """Return lines for a machine without an engine: what was asked, and commands for engines elsewhere."""
    workload = f"{program} triage -n NAMESPACE deploy/NAME"
    files = os.environ.get("KUBECONFIG", "") or "~/.kube/config"
    if any(Path(file).expanduser().is_file() for file in files.split(os.pathsep)):
        where = f"a workload, with {files}"
    else:
        where = "a workload, where kubectl reaches its cluster"
    rows = (
        (f"{program} triage HOST:PORT", "a server on another machine, or behind a port-forward"),
        (workload, where),
        (f"{program} triage --prometheus URL", "all replicas that a Prometheus scrapes"),
        (f"{program} incidents --prometheus URL", "the past, if a Prometheus scrapes the servers"),
        (f"{program} demo", "an incident to look at: no GPU needed"),
        (f"{program} --help", "all commands"),
    )
    width = max(len(typed) for typed, _ in rows)
    return [
        f"no engine's metrics on this machine: asked http://localhost:PORT/metrics of {asked} listening ports",
        *(f"  {typed:{width}}  {what}" for typed, what in rows),
    ]


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

"""A simulated engine on loopback, short of KV cache from its first second on, and the settings that poll it."""

import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import yaml
from aiohttp.test_utils import TestServer

from bench.simulator.scenarios import episode
from bench.simulator.server import simulator_app
from bench.simulator.service import Scenario, SimulatedServer

NAME = "simulated"
CAUSE = "kv_cache_pressure"


@contextlib.asynccontextmanager
async def engine() -> AsyncIterator[str]:
    """Its address."""
    whole = episode(CAUSE, seed=1)
    (pressed,) = (phase for phase in whole.phases if phase.label == CAUSE)
    simulated = SimulatedServer(Scenario(CAUSE, whole.engine, (pressed,)), start=time.time())
    async with TestServer(simulator_app(simulated, time.time)) as server:
        yield f"http://127.0.0.1:{server.port}"


def write_settings(folder: Path, url: str) -> None:
    """kvpressure.yaml for this engine; everything else is as it comes."""
    folder.mkdir(mode=0o755)
    settings = {"engines": {"targets": [{"name": NAME, "url": url}]}}
    (folder / "kvpressure.yaml").write_text(yaml.safe_dump(settings))

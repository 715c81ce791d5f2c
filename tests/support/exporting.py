"""The exporter as a process, with a stubbed GPU, and a Prometheus that scrapes it."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import yaml

from tests.stubs.build import libraries
from tests.stubs.world import GIB, nvidia
from tests.support.processes import KVPRESSURE, Process, free_port, running
from tests.support.tools import need


def gpu_environment(directory: Path) -> dict[str, str]:
    """A stubbed driver with one nearly full, nearly idle H100."""
    scenario = nvidia(1) | {"gpu.0.memory": f"{80 * GIB} 0 {75 * GIB}", "gpu.0.samples": "12"}
    path = directory / "gpus.txt"
    path.write_text("".join(f"{key} {value}\n" for key, value in scenario.items()))
    return {"STUB_SCENARIO": str(path), "LD_LIBRARY_PATH": str(libraries())}


def write_config(path: Path, port: int, targets: list[dict[str, object]], **more: object) -> None:
    settings = {
        "web": {"listen_address": f"127.0.0.1:{port}"},
        "engines": {"targets": targets},
        "gpu": {"vendors": ["nvidia"], "interval_seconds": 0.5},
    }
    path.write_text(yaml.safe_dump(settings | more))


@contextlib.asynccontextmanager
async def exporter(directory: Path, env: dict[str, str]) -> AsyncIterator[Process]:
    command = [*KVPRESSURE, "run", "--config.file", str(directory / "kvpressure.yaml")]
    async with running(command, directory / "kvpressure.log", env) as process:
        yield process


@contextlib.asynccontextmanager
async def prometheus(directory: Path, *scraped: str) -> AsyncIterator[tuple[Process, str]]:
    """Debian's Prometheus, scraping every one of `scraped` every second."""
    program = need("prometheus", "prometheus")
    config = directory / "prometheus.yml"
    job = {"job_name": "kvpressure", "static_configs": [{"targets": [*scraped]}]}
    config.write_text(yaml.safe_dump({"global": {"scrape_interval": "1s"}, "scrape_configs": [job]}))
    address = f"127.0.0.1:{free_port()}"
    command = [
        program,
        f"--config.file={config}",
        f"--storage.tsdb.path={directory / 'tsdb'}",
        f"--web.listen-address={address}",
    ]
    async with running(command, directory / "prometheus.log") as process:
        yield process, f"http://{address}"

"""The servers of a run: vLLM, the exporter, Prometheus. All on loopback, on ports that were free, and always ended."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import aiohttp

from tests.e2e_vllm.environment import Environment
from tests.e2e_vllm.scenario import Scenario
from tests.support.processes import KVPRESSURE, Process, running

VLLM_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "PYTHONPATH": "",
}
BOOT_SECONDS = 300.0
SCRAPE_SECONDS = 5
ENGINE_NICENESS = 5
CORE_NAME = "VLLM::EngineCor"
"""As the kernel keeps it, 15 characters."""


@contextlib.asynccontextmanager
async def vllm(environment: Environment, scenario: Scenario, port: int, log: Path) -> AsyncIterator[Process]:
    """A vLLM that answers; raises RuntimeError with its last words when it does not come up."""
    models = environment.models
    command = (
        *(str(environment.python), "-m", "vllm.entrypoints.cli.main", "serve", str(models / scenario.model)),
        *("--load-format", "dummy", "--enforce-eager", "--dtype", "float32", "--gpu-memory-utilization", "0.5"),
        *("--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port), "--disable-uvicorn-access-log"),
        *(flag.format(models=models) for flag in scenario.flags),
    )
    async with running(command, log, VLLM_ENVIRONMENT) as process:
        await _answers(f"http://127.0.0.1:{port}/health", process, BOOT_SECONDS)
        _yield_to_the_api(process.pid)
        yield process


def _yield_to_the_api(group: int) -> None:
    """Let the engine's processes give way to the API process, `group`.

    A GPU would do their work. On few cores they starve the API process, which then shows its page between waves of
    requests only, when nothing runs.
    """
    for pid in _processes(group):
        for task in Path(f"/proc/{pid}/task").glob("*"):
            with contextlib.suppress(OSError):
                if pid != group:
                    os.setpriority(os.PRIO_PROCESS, int(task.name), ENGINE_NICENESS)


def signal_core(group: int, what: signal.Signals) -> None:
    """Send a signal to the engine core of the vLLM that is the process group `group`; raises RuntimeError without."""
    cores = [pid for pid in _processes(group) if _name(pid).startswith(CORE_NAME)]
    if len(cores) != 1:
        names = ", ".join(_name(pid) for pid in _processes(group))
        raise RuntimeError(f"no process of vLLM, or several, are called {CORE_NAME}: {names}")
    os.kill(cores[0], what)


def _processes(group: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if os.getpgid(int(folder.name)) == group:
                found.append(int(folder.name))
    return found


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


@contextlib.asynccontextmanager
async def exporter(engine_url: str, port: int, folder: Path, settings: Mapping[str, Any]) -> AsyncIterator[Process]:
    """The exporter as its users run it at `port`, watching one engine."""
    config = configure(engine_url, port, folder, settings)
    url = f"http://127.0.0.1:{port}"
    async with running([*KVPRESSURE, "run", "--config.file", str(config)], folder / "exporter.log") as process:
        await _answers(f"{url}/-/healthy", process, 30.0)
        yield process


def configure(engine_url: str, port: int, folder: Path, more: Mapping[str, Any]) -> Path:
    """Write the exporter's settings, with `more` by section or of its `target`; a running exporter sees them change."""
    config, fresh = folder / "kvpressure.json", folder / "kvpressure.json.new"
    settings: dict[str, dict[str, Any]] = {
        "web": {"listen_address": f"127.0.0.1:{port}"},
        "engines": {"targets": [{"name": "vllm", "url": engine_url}]},
        "gpu": {"vendors": []},
    }
    more = dict(more)
    settings["engines"]["targets"][0] |= more.pop("target", {})
    for section, keys in more.items():
        settings[section] = settings.get(section, {}) | keys
    fresh.write_text(json.dumps(settings))
    fresh.replace(config)
    return config


@contextlib.asynccontextmanager
async def prometheus(exporter_port: int, port: int, folder: Path) -> AsyncIterator[str]:
    """A Prometheus with the rules as `kvpressure generate` writes them now; gives its address."""
    program = shutil.which("prometheus")
    if program is None:
        raise RuntimeError("prometheus is not installed: `make tools` as root installs Debian's package")
    rules, data = folder / "rules", folder / "prometheus"
    await _finish([sys.executable, "-m", "kvpressure", "generate", "--out", str(rules)])
    config = folder / "prometheus.yml"
    config.write_text(_prometheus_config(rules, exporter_port))
    shutil.rmtree(data, ignore_errors=True)
    command = (
        *(program, f"--config.file={config}", f"--storage.tsdb.path={data}"),
        *(f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"),
    )
    url = f"http://127.0.0.1:{port}"
    async with running(command, folder / "prometheus.log") as process:
        await _answers(f"{url}/-/ready", process, 60.0)
        yield url


def _prometheus_config(rules: Path, port: int) -> str:
    """JSON, which YAML reads too."""
    jobs = [{"job_name": "kvpressure", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}]
    every = {"scrape_interval": f"{SCRAPE_SECONDS}s", "evaluation_interval": f"{SCRAPE_SECONDS}s"}
    files = [f"{rules}/prometheus/{kind}/*.yaml" for kind in ("alerts", "recording")]
    return json.dumps({"global": every, "rule_files": files, "scrape_configs": jobs})


async def _finish(command: list[str]) -> None:
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    _, err = await process.communicate()
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}: {err.decode()}")


async def _answers(url: str, process: Process, seconds: float) -> None:
    """Wait until `url` gives a 200."""
    async with aiohttp.ClientSession() as session:
        await _until(lambda: _ok(session, url), process, seconds)


async def _until(check: Callable[[], Awaitable[bool]], process: Process, seconds: float) -> None:
    end = asyncio.get_running_loop().time() + seconds
    while process.process.returncode is None and asyncio.get_running_loop().time() < end:
        if await check():
            return
        await asyncio.sleep(0.5)
    ended = "did not answer" if process.process.returncode is None else f"ended with {process.process.returncode}"
    raise RuntimeError(f"{process.log.name}: the server {ended} within {seconds:.0f} s:\n{process.output()[-3000:]}")


async def _ok(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=5)) as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False

"""A real Prometheus with the bundle's rules that scrapes a fleet: what it takes, as Prometheus and the kernel say."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import tempfile
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp
from aiohttp import web

from bench.fleet.pages import pages
from kvpressure.exposition.profile import Profile
from tests.support import built
from tests.support.processes import free_port

SCRAPE_SECONDS: Final = 15
SETTLE_SECONDS: Final = 330.0
"""Longer than the longest interval of a group, so that each is evaluated with everything scraped."""


@dataclass(frozen=True, slots=True)
class Group:
    """A rule group: how often it is evaluated, and how long the slowest time took."""

    name: str
    interval_seconds: float
    seconds: float

    @property
    def share(self) -> float:
        """Of its interval; above 1 it cannot keep up."""
        return self.seconds / self.interval_seconds


@dataclass(frozen=True, slots=True)
class Run:
    """A fleet of `engines`; bytes are those of all pages, once each. The CPU is all of Prometheus', on average."""

    profile: str
    engines: int
    exported_series: int
    head_series: int
    page_bytes: int
    gzip_bytes: int
    memory_bytes: int
    cpu_cores: float
    slowest: tuple[Group, ...]


async def measure(engines: int, profile: Profile) -> Run:
    """Serve, scrape, evaluate. Raises RuntimeError where a rule fails."""
    bodies = list(pages(engines, profile))
    with tempfile.TemporaryDirectory(prefix="fleet-") as folder:
        async with _serving(bodies) as port:
            found = await _prometheus(Path(folder), configuration(port, len(bodies), profile))
    return Run(
        profile=profile.value,
        engines=engines,
        exported_series=sum(len(re.findall(rb"(?m)^[^#\n]", body)) for body in bodies),
        page_bytes=sum(map(len, bodies)),
        gzip_bytes=sum(len(gzip.compress(body, 1)) for body in bodies),
        **found,
    )


@asynccontextmanager
async def _serving(bodies: Sequence[bytes]) -> AsyncIterator[int]:
    async def page(request: web.Request) -> web.Response:
        return web.Response(body=bodies[int(request.match_info["number"])])

    app = web.Application()
    app.add_routes([web.get("/{number}/metrics", page)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def configuration(port: int, nodes: int, profile: Profile) -> dict[str, Any]:
    """Prometheus' own, with every rule of the profile's bundle: scrapes the pages of `exporters`."""
    jobs = [
        {
            "targets": [f"127.0.0.1:{port}"],
            "labels": {"__metrics_path__": f"/{number}/metrics", "instance": f"node-{number}:10405"},
        }
        for number in range(nodes)
    ]
    return {
        "global": {"scrape_interval": f"{SCRAPE_SECONDS}s", "evaluation_interval": f"{SCRAPE_SECONDS}s"},
        "rule_files": [str(path) for path in sorted(built.bundle(profile).glob("prometheus/*/*.yaml"))],
        "scrape_configs": [{"job_name": "kvpressure", "static_configs": jobs}],
    }


async def _prometheus(folder: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Run one in `folder`, which is empty."""
    (folder / "prometheus.yml").write_text(json.dumps(config))
    listen = f"127.0.0.1:{free_port()}"
    command = [
        "prometheus",
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={folder}/tsdb",
        f"--web.listen-address={listen}",
        "--log.level=error",
    ]
    process = await asyncio.create_subprocess_exec(*command)
    try:
        return await _watch(f"http://{listen}")
    finally:
        process.terminate()
        await process.wait()


async def _watch(url: str) -> dict[str, Any]:
    """The slowest evaluations of the three slowest groups over `SETTLE_SECONDS`; what it holds and took by then."""
    worst: dict[str, Group] = {}
    end = time.monotonic() + SETTLE_SECONDS
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < end:
            await asyncio.sleep(5.0)
            try:
                groups = await _groups(session, url)
            except aiohttp.ClientError:
                continue
            for one in groups:
                before = worst.get(one.name)
                worst[one.name] = one if before is None or one.seconds > before.seconds else before
        async with session.get(f"{url}/metrics") as response:
            own = dict(line.rsplit(" ", 1) for line in (await response.text()).splitlines() if line[:1] != "#")
    return {
        "slowest": tuple(sorted(worst.values(), key=lambda group: -group.share)[:3]),
        "head_series": int(float(own["prometheus_tsdb_head_series"])),
        "memory_bytes": int(float(own["process_resident_memory_bytes"])),
        "cpu_cores": float(own["process_cpu_seconds_total"]) / SETTLE_SECONDS,
    }


async def _groups(session: aiohttp.ClientSession, url: str) -> Sequence[Group]:
    async with session.get(f"{url}/api/v1/rules") as response:
        groups = (await response.json())["data"]["groups"]
    failed = [rule["name"] for group in groups for rule in group["rules"] if rule["health"] == "err"]
    if failed:
        raise RuntimeError(f"{', '.join(failed)} could not be evaluated: is the machine busy with something else?")
    return [Group(group["name"], group["interval"], group["evaluationTime"]) for group in groups]

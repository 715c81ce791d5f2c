"""What the generated rules cost a real Prometheus with 10 000 engines: `python -m bench.bench_rules`.

Twenty exporters with 500 engines each are one small HTTP server; its pages are the exporter's own page of a recording,
one engine's lines repeated under other names, cut to the series that rules query. One engine in fifty is collapsed.
Each rule group's longest evaluation is compared with its interval, as Prometheus itself reports both.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import socket
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from kvpressure.exposition import text
from kvpressure.model.view import EngineView
from tests.support import built
from tests.support.snapshots import collapsed

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "rules.json"
EXPORTERS = 20
BAR_RATIO = 0.1
SETTLE_SECONDS = 330.0
"""Longer than the longest interval of a group, so that each is evaluated with everything scraped."""


def queried_names() -> set[str]:
    """Every series that some rule names."""
    names: set[str] = set()
    for path in built.bundle().glob("prometheus/*/*.yaml"):
        names |= set(re.findall(r"kvpressure_\w+", path.read_text()))
    return names


def pages(engines: int) -> list[bytes]:
    """One page per exporter."""
    snapshot, names = collapsed(), queried_names()
    healthy, sick = _healthy(snapshot.engines[0]), snapshot.engines[0]
    found = []
    for exporter in range(EXPORTERS):
        numbers = range(exporter * engines // EXPORTERS, (exporter + 1) * engines // EXPORTERS)
        views = tuple(
            dataclasses.replace(
                sick if number % 50 == 0 else healthy,
                shown=dataclasses.replace(healthy.shown, target=f"chat/vllm-{number}:8000"),
                pod=f"vllm-{number}",
            )
            for number in numbers
        )
        page = text.render(dataclasses.replace(snapshot, engines=views), openmetrics=False).decode()
        found.append("".join(_wanted(page.splitlines(keepends=True), names)).encode())
    return found


def _healthy(view: EngineView) -> EngineView:
    """The same engine with every symptom, cause and ratio calm."""
    assert view.diagnosis is not None
    symptoms = {name: dataclasses.replace(one, state=False) for name, one in view.diagnosis.symptoms.items()}
    cause = type(view.diagnosis.cause).HEALTHY
    diagnosis = dataclasses.replace(view.diagnosis, symptoms=symptoms, cause=cause, score=0.0)
    calm = {"memory_high_compute_low_score": 0.0, "requests_waiting": 0.0, "admission_blocked_ratio": 0.0}
    return dataclasses.replace(view, diagnosis=diagnosis, derived=view.derived | calm)


def _wanted(lines: Iterable[str], names: set[str]) -> Iterable[str]:
    for line in lines:
        name = line.split()[2] if line.startswith("#") else re.split(r"[{ ]", line, maxsplit=1)[0]
        if name in names or re.sub(r"_(bucket|sum|count)$", "", name) in names:
            yield line


async def measure(engines: int) -> list[dict[str, Any]]:
    """Serve, scrape, evaluate, ask Prometheus how long each group took."""
    bodies = pages(engines)

    async def page(request: web.Request) -> web.Response:
        return web.Response(body=bodies[int(request.match_info["number"])])

    app = web.Application()
    app.add_routes([web.get("/{number}/metrics", page)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    with tempfile.TemporaryDirectory() as folder:
        try:
            return await _prometheus(Path(folder), port)
        finally:
            await runner.cleanup()


async def _prometheus(folder: Path, port: int) -> list[dict[str, Any]]:
    jobs = [
        {
            "targets": [f"127.0.0.1:{port}"],
            "labels": {"__metrics_path__": f"/{number}/metrics", "instance": f"10.0.0.{number}:10405"},
        }
        for number in range(EXPORTERS)
    ]
    config = {
        "global": {"scrape_interval": "15s", "evaluation_interval": "15s"},
        "rule_files": [str(path) for path in sorted(built.bundle().glob("prometheus/*/*.yaml"))],
        "scrape_configs": [{"job_name": "kvpressure", "static_configs": jobs}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))
    listen = f"127.0.0.1:{_free_port()}"
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


async def _watch(url: str) -> list[dict[str, Any]]:
    """The longest evaluation of each group, over `SETTLE_SECONDS`."""
    worst: dict[str, dict[str, Any]] = {}
    end = time.monotonic() + SETTLE_SECONDS
    async with aiohttp.ClientSession() as session:
        while time.monotonic() < end:
            await asyncio.sleep(5.0)
            try:
                async with session.get(f"{url}/api/v1/rules") as response:
                    groups = (await response.json())["data"]["groups"]
            except aiohttp.ClientError:
                continue
            for group in groups:
                assert all(rule["health"] != "err" for rule in group["rules"]), group
                before = worst.get(group["name"], {"seconds": 0.0})
                worst[group["name"]] = {
                    "group": group["name"],
                    "interval_seconds": group["interval"],
                    "seconds": max(before["seconds"], group["evaluationTime"]),
                }
        async with session.get(f"{url}/api/v1/status/tsdb") as response:
            series = (await response.json())["data"]["headStats"]["numSeries"]
    return [{**row, "series": series} for row in sorted(worst.values(), key=_share)]


def _share(row: dict[str, Any]) -> float:
    return float(row["seconds"] / row["interval_seconds"])


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> int:
    """Measure, print, write; ends with 1 when a group takes more than its share."""
    engines = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    rows = asyncio.run(measure(engines))
    for row in rows:
        took = f"{row['seconds']:8.3f} s of {row['interval_seconds']:>4} s"
        print(f"{row['group']:<45} {took}  {_share(row):6.1%}  {'MISSED' if _share(row) > BAR_RATIO else ''}")
    print(f"{engines} engines, {rows[0]['series']} series")
    RESULTS.write_text(json.dumps({"engines": engines, "groups": rows}, indent=1) + "\n")
    return int(any(_share(row) > BAR_RATIO for row in rows))


if __name__ == "__main__":
    sys.exit(main())

"""`python -m bench.bench_hostile [SECONDS]`: an exporter whose sources all mean harm at once, beside one left in
peace.

64 publishers of KV events (messages of 4 MiB, of 195 kB, small ones, greetings without an end), a gateway's page of
4 MiB and a GPU exporter's with other labels each time, four logs of a megabyte a second, a watch with two hundred
changes a second, and clients of the web server. Bars: polls of a good engine within 1.1 s at p99, 640 MiB, `/metrics`
within 100 ms at p99, and 2 s from SIGTERM to the end. The attackers share the machine; the first row has none.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from tests.support.ended import exporter
from tests.support.engine_kit import GOOD_PAGE
from tests.support.exporter_settings import fetched, listens
from tests.support.processes import free_port, resident_mib
from tests.support.servers import FaultServer, Request, answer

ENGINES, RANKS = 4, 16
BAR_POLL_SECONDS: Final = 1.1
BAR_METRICS_SECONDS: Final = 0.1
BAR_MIB: Final = 640
BAR_END_SECONDS: Final = 2.0
WARM_UP_SECONDS: Final = 5.0
IN_A_POD: Final = """
import pathlib
from kvpressure.kubernetes.watch import connection
connection.service_account = lambda: connection.ServiceAccount({server!r}, pathlib.Path({folder!r}))
"""


@contextlib.contextmanager
def peers(folder: Path, port: int) -> Iterator[dict[str, Any]]:
    """The hostile peers, as a process of little priority; where they are."""
    command = [
        "nice",
        sys.executable,
        "-m",
        "tests.support.hostile_peers",
        str(folder),
        str(ENGINES),
        str(RANKS),
        str(port),
    ]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())
        finally:
            process.kill()


def settings_with(hostile: dict[str, Any] | None, engine: str, port: int) -> dict[str, Any]:
    """Settings that read a good engine and four with the same page, and with `hostile` all of these too."""
    ports = [None] * ENGINES if hostile is None else hostile["feeds"]
    targets: list[dict[str, Any]] = [{"name": "good", "url": engine}]
    for number, port_of_events in enumerate(ports):
        events = {} if port_of_events is None else {"kv_events": {"port": port_of_events, "ranks": RANKS}}
        targets.append({"name": f"feed-{number}", "url": engine, "path": f"/{number}", **events})
    settings: dict[str, Any] = {
        "web": {"listen_address": f"127.0.0.1:{port}"},
        "gpu": {"vendors": []},
        **{name: {"enabled": "false"} for name in ("kubernetes", "pod_resources", "logs")},
    }
    if hostile is not None:
        settings |= {
            "gateways": {"targets": [{"name": "gateway", "url": hostile["gateway"]}]},
            "gpu_exporter": {"url": hostile["gpu"] + "/metrics"},
            "logs": {
                "enabled": "true",
                "files": [{"target": f"feed-{n}", "path": path} for n, path in enumerate(hostile["logs"])],
            },
            "kubernetes": {"enabled": "true", "node_name": "gpu-1"},
        }
    return settings | {"engines": {"targets": targets}}


def p99(values: Sequence[float]) -> float:
    """The 99th percentile."""
    return sorted(values)[min(len(values) - 1, int(0.99 * len(values)))]


async def measured(folder: Path, seconds: float, *, attacked: bool) -> dict[str, float]:
    """What a run with all attackers shows, or one with none."""
    port, times = free_port(), []

    async def serve(request: Request, writer: asyncio.StreamWriter) -> None:
        if request.path.startswith("/metrics"):
            times.append(time.monotonic())
        writer.write(answer(GOOD_PAGE))

    with contextlib.ExitStack() as stack:
        hostile = stack.enter_context(peers(folder, port)) if attacked else None
        async with FaultServer(serve) as engine:
            (folder / "kvpressure.yaml").write_text(json.dumps(settings_with(hostile, engine.url, port)))
            command = ["run", "--config.file", str(folder / "kvpressure.yaml")]
            in_pod = "" if hostile is None else IN_A_POD.format(server=hostile["api"], folder=str(folder))
            with exporter(folder, command, {}, in_pod) as run:
                await run.until(lambda: listens(run))
                await asyncio.sleep(WARM_UP_SECONDS)
                times.clear()
                cpu, scrapes, peak = run.cpu_seconds(), [], 0.0
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    began = time.monotonic()
                    await asyncio.to_thread(_scrape, port)
                    scrapes.append(time.monotonic() - began)
                    peak = max(peak, resident_mib(run.pid))
                    await asyncio.sleep(0.25)
                cpu, polls = run.cpu_seconds() - cpu, list(times)
                skipped = _counted(fetched(f"http://127.0.0.1:{port}/metrics"))
                began = time.monotonic()
                await run.end()
                ended = time.monotonic() - began
    gaps = [after - before for before, after in itertools.pairwise(polls)]
    return {
        "polls": len(polls),
        "gap": p99(gaps),
        "longest": max(gaps),
        "metrics": p99(scrapes),
        "mib": peak,
        "cpu": cpu / seconds,
        "end": ended,
        "skipped": skipped,
    }


def _scrape(port: int) -> None:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={"Accept-Encoding": "gzip"})
    with urllib.request.urlopen(request, timeout=30) as response:
        response.read()


def _counted(page: str) -> float:
    """Batches that were dropped, and reads of sources that the budget did not allow."""
    lines = (line for line in page.splitlines() if 'outcome="skipped"' in line or 'reason="over_budget"' in line)
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def main() -> int:
    """Print a row for each run; 1 when a bar is missed."""
    seconds, missed = float((*sys.argv[1:], "60")[0]), False
    sys.stdout.write(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {seconds:g} s each\n")
    for attacked in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            found = asyncio.run(measured(Path(folder), seconds, attacked=attacked))
        bad = (
            found["gap"] > BAR_POLL_SECONDS
            or found["metrics"] > BAR_METRICS_SECONDS
            or found["mib"] > BAR_MIB
            or found["end"] > BAR_END_SECONDS
        )
        missed |= bad
        sys.stdout.write(
            f"{'all hostile' if attacked else 'in peace':<12} {found['polls']:.0f} polls, p99 {found['gap']:.2f} s,"
            f" longest {found['longest']:.2f} s; /metrics p99 {1000 * found['metrics']:.0f} ms; {found['mib']:.0f} MiB;"
            f" {found['cpu']:.2f} cores; end {found['end']:.1f} s; {found['skipped']:.0f} dropped"
            f"{'  MISSED' if bad else ''}\n"
        )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())

"""`python -m bench.bench_load [RUN...]`: scrapes and polls while thousands of rude clients keep the server busy.

Three runs of the real process with 8 replayed engines: quiet, under the load of `bench.rude`, and under that with 256
file descriptors; and one with 512 engines and slow readers of their page (`bench.slow_readers`). The load comes from
niced processes on the same machine, so on few cores it takes time from what it measures: the quiet run and
`starved_percent`, the share of time in which the exporter's busiest thread was ready but the machine ran somebody else,
tell how much of a figure is the machine's. With names, only those runs, written beside what is stored of the others.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bcrypt

from bench import slow_readers, world
from bench.rude import RIGHT

RESULTS = Path(__file__).parent / "load.json"
ENGINES = 8
WARM_UP_SECONDS = 12.0
SETTLE_SECONDS = 5.0
MEASURE_SECONDS = 60.0
SCRAPE_EVERY_SECONDS = 0.25
LATE_SECONDS = 1.5
"""An engine is polled once a second; half an interval more between two polls is late."""

BAR_SECONDS = 1.0
MIB = 2.0**20


@dataclass
class Prometheus:
    """Scrapes as Prometheus does: over one connection, or a new one where it was closed meanwhile."""

    port: int
    reconnected: int = 0
    _connection: http.client.HTTPConnection | None = None

    def scrape(self) -> str:
        """The page. Raises OSError or HTTPException where there is none within 10 s."""
        for fresh in (self._connection is None, True):
            if self._connection is None:
                self._connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
            try:
                basic = base64.b64encode(RIGHT.encode()).decode()
                self._connection.request("GET", "/metrics", headers={"Authorization": f"Basic {basic}"})
                response = self._connection.getresponse()
                page = response.read().decode()
                if response.status != http.client.OK:
                    raise ConnectionError(f"status {response.status}")
                return page
            except (OSError, http.client.HTTPException):
                self._connection.close()
                self._connection = None
                if fresh:
                    raise
                self.reconnected += 1
        raise AssertionError("unreachable")


def value(page: str, series: str) -> float:
    """The sum over the series of one family."""
    lines = (line for line in page.splitlines() if line.startswith((f"{series} ", f"{series}{{")))
    return sum(float(line.rpartition(" ")[2]) for line in lines)


def gaps(engine_port: int) -> list[float]:
    """Seconds between successive polls of one engine, all since the last call."""
    connection = http.client.HTTPConnection("127.0.0.1", engine_port, timeout=10)
    connection.request("GET", "/gaps")
    found: list[float] = json.loads(connection.getresponse().read())
    connection.close()
    return found


@contextlib.contextmanager
def rude_clients(
    port: int, kinds: tuple[str, ...] = ("waiting", "asking"), seconds: float = SETTLE_SECONDS + MEASURE_SECONDS + 2
) -> Any:
    """The load, for as long as the measurement takes; gives the processes, whose output tells what they met."""
    words = [[sys.executable, "-m", "bench.rude", str(port), kind, str(seconds)] for kind in kinds]
    started = [
        subprocess.Popen(["nice", "-n", "10", *each], cwd=world.ROOT, stdout=subprocess.PIPE, text=True)
        for each in words
    ]
    try:
        yield started
    finally:
        for one in started:
            one.terminate()
            one.wait(10)


def measure(*, load: bool, descriptors: int | None = None) -> dict[str, Any]:
    """One run."""
    hashed = bcrypt.hashpw(RIGHT.partition(":")[2].encode(), bcrypt.gensalt(10)).decode()
    users = f"basic_auth_users:\n  prometheus: {hashed}\n"
    with contextlib.ExitStack() as stack:
        engine_port = stack.enter_context(world.engines(ENGINES))
        exporter = stack.enter_context(
            world.exporter(2, ENGINES, engine_port, web_config=users, descriptors=descriptors)
        )
        prometheus = Prometheus(exporter.port)
        prometheus.scrape()
        time.sleep(WARM_UP_SECONDS)
        clients = stack.enter_context(rude_clients(exporter.port)) if load else []
        time.sleep(SETTLE_SECONDS)
        before = prometheus.scrape()
        gaps(engine_port)
        return {
            **watched(exporter, prometheus, before),
            **polls(gaps(engine_port)),
            "clients": [json.loads(client.communicate(timeout=60)[0] or "{}") for client in clients],
        }


def watched(exporter: world.Exporter, prometheus: Prometheus, before: str) -> dict[str, Any]:
    """Scrape for `MEASURE_SECONDS`; what that took, and what the exporter tells of itself."""
    took: list[float] = []
    failed = 0
    page, most_memory = before, 0
    began, cpu, starved = time.monotonic(), exporter.cpu_seconds(), exporter.starved_seconds()
    while time.monotonic() - began < MEASURE_SECONDS:
        start = time.perf_counter()
        try:
            page = prometheus.scrape()
        except (OSError, http.client.HTTPException):
            failed += 1
        took.append(time.perf_counter() - start)
        most_memory = max(most_memory, exporter.resident_bytes())
        time.sleep(max(0.0, SCRAPE_EVERY_SECONDS - took[-1]))
    elapsed = time.monotonic() - began
    grown = {
        name: value(page, f"kvpressure_{name}") - value(before, f"kvpressure_{name}")
        for name in ("polls_skipped_total", "web_refused_total")
    }
    refused = {
        line.partition('reason="')[2].partition('"')[0]: float(line.rpartition(" ")[2])
        for line in page.splitlines()
        if line.startswith("kvpressure_web_refused_total{")
    }
    waited = max(seconds - starved.get(thread, 0.0) for thread, seconds in exporter.starved_seconds().items())
    percentiles = statistics.quantiles(took, n=100)
    return {
        "scrapes": len(took),
        "scrapes_failed": failed,
        "scrape_p50_seconds": round(percentiles[49], 4),
        "scrape_p99_seconds": round(percentiles[98], 4),
        "scrape_max_seconds": round(max(took), 4),
        "reconnected": prometheus.reconnected,
        "polls_skipped": grown["polls_skipped_total"],
        "refused": grown["web_refused_total"],
        "refused_by_reason_since_the_start": refused,
        "connections": value(page, "kvpressure_web_connections"),
        "resident_mib": round(most_memory / MIB, 1),
        "cpu_percent": round(100 * (exporter.cpu_seconds() - cpu) / elapsed, 1),
        "starved_percent": round(100 * waited / elapsed, 1),
        "load_average": round(os.getloadavg()[0], 1),
    }


def polls(found: list[float]) -> dict[str, Any]:
    """How punctual the polls were, seen from the engines."""
    return {
        "polls": len(found),
        "polls_late": sum(gap > LATE_SECONDS for gap in found),
        "longest_gap_seconds": round(max(found, default=0.0), 3),
    }


def read_slowly() -> dict[str, Any]:
    """One run at 512 engines: idle, then with slow readers of the whole page."""
    with contextlib.ExitStack() as stack:
        engine_port = stack.enter_context(world.engines(slow_readers.ENGINES))
        exporter = stack.enter_context(world.exporter(2, slow_readers.ENGINES, engine_port))
        slow_readers.warm_up(exporter)
        idle = slow_readers.watch(exporter, slow_readers.IDLE_SECONDS)
        seconds = slow_readers.SETTLE_SECONDS + slow_readers.LOADED_SECONDS
        clients = stack.enter_context(rude_clients(exporter.port, ("reading",), seconds + 30))
        readers = slow_readers.watch(exporter, seconds)
        page = slow_readers.get(exporter.port, "/metrics").decode()
        return {
            "engines": slow_readers.ENGINES,
            "page_mib": round(idle.page_bytes / MIB, 1),
            "idle": slow_readers.told(idle, slow_readers.IDLE_SECONDS),
            "readers": slow_readers.told(readers, seconds),
            "memory_ratio": round(readers.most_bytes / idle.most_bytes, 2),
            "connections": value(page, "kvpressure_web_connections"),
            "refused": value(page, "kvpressure_web_refused_total"),
            "polls_skipped": value(page, "kvpressure_polls_skipped_total"),
            "load_average": round(os.getloadavg()[0], 1),
            "clients": [json.loads(client.communicate(timeout=60)[0] or "{}") for client in clients],
        }


def met(run: dict[str, Any]) -> bool:
    """The bar."""
    late = run["polls_late"] + run["polls_skipped"] + run["scrapes_failed"]
    return bool(run["scrape_max_seconds"] < BAR_SECONDS and not late)


RUNS: dict[str, tuple[Callable[[], dict[str, Any]], Callable[[dict[str, Any]], bool]]] = {
    "quiet": (lambda: measure(load=False), met),
    "load": (lambda: measure(load=True), met),
    "load, 256 descriptors": (lambda: measure(load=True, descriptors=256), met),
    "slow readers": (read_slowly, slow_readers.met),
}
"""What is run, and its bar."""


def main(names: list[str]) -> int:
    """Run those named, or all; print, write beside what is stored of the others; 1 when a bar is missed."""
    stored = json.loads(RESULTS.read_text())["runs"] if names and RESULTS.exists() else {}
    for name in names or RUNS:
        run, bar = RUNS[name]
        stored[name] = found = run()
        found |= {"niceness": os.nice(0), "pass": bar(found)}
        print(name, *(f"  {key:<36}{value}" for key, value in found.items()), sep="\n", flush=True)
    cores = len(os.sched_getaffinity(0))
    machine = {"cores": cores, "engines": ENGINES}
    RESULTS.write_text(json.dumps({**machine, "runs": stored}, indent=1) + "\n")
    return int(not all(run["pass"] for run in stored.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

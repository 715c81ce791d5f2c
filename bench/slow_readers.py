"""The largest page there is, 512 engines', and hundreds of clients that ask for it and hardly read.

Part of `make load`. The exporter is first watched with nothing but a scrape every five seconds and a readiness probe
20 times a second (idle), then with `bench.rude`'s readers beside: plain, compressed and OpenMetrics, spread over
seconds, so that they hold pages of different snapshots. The probes come from the readers' own address, which is the
worst case: a kubelet has one to itself.
"""

from __future__ import annotations

import http.client
import statistics
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from bench import world

ENGINES = 512
WARM_UP_SECONDS = 30.0
MAX_WARM_UP_SECONDS = 210.0
STEADY_RATIO = 1.02
IDLE_SECONDS = 20.0
SETTLE_SECONDS = 10.0
LOADED_SECONDS = 26.0
SCRAPE_EVERY_SECONDS = 5.0
PROBE_EVERY_SECONDS = 0.05
TIMEOUT_SECONDS = 30.0
MAX_MEMORY_RATIO = 1.3
MAX_READY_P99_SECONDS = 0.1
MIB = 2.0**20


@dataclass
class Watched:
    """What probes, scrapes and /proc told over some time."""

    ready: list[float] = field(default_factory=list)
    scrapes: list[float] = field(default_factory=list)
    failed: int = 0
    most_bytes: int = 0
    page_bytes: int = 0
    starved_seconds: float = 0.0

    def ready_seconds(self, percent: int) -> float:
        """A percentile of what a probe took."""
        return round(statistics.quantiles(self.ready, n=100)[percent - 1], 4)


def get(port: int, path: str, encoding: str = "identity") -> bytes:
    """An answer over a connection of its own, as a kubelet asks. Raises OSError or HTTPException."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", path, headers={"Accept-Encoding": encoding})
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()
    if response.status not in (http.client.OK, http.client.SERVICE_UNAVAILABLE):  # not ready is an answer
        raise ConnectionError(f"{path}: status {response.status}")
    return body


def warm_up(exporter: world.Exporter) -> None:
    """Until every engine has been read, and what is kept of them has nearly stopped growing: windows of minutes fill.

    Raises TimeoutError when there are engines that cannot be read.
    """
    began, up, before = time.monotonic(), 0, 0
    while time.monotonic() - began < MAX_WARM_UP_SECONDS:
        time.sleep(WARM_UP_SECONDS)
        lines = get(exporter.port, "/metrics").decode().splitlines()
        up = sum(line.startswith('kvpressure_source_up{source="engine"') and line.endswith(" 1.0") for line in lines)
        now = exporter.resident_bytes()
        if up >= ENGINES and now < STEADY_RATIO * before:
            return
        before = now
    if up < ENGINES:
        raise TimeoutError(f"only {up} of {ENGINES} engines are up after {MAX_WARM_UP_SECONDS:.0f} s: a busy machine?")


def watch(exporter: world.Exporter, seconds: float) -> Watched:
    """Probe for so long, scrapes beside it."""
    found, until = Watched(), time.monotonic() + seconds
    starved = exporter.starved_seconds()
    scraping = threading.Thread(target=scrape, args=(exporter.port, until, found))
    scraping.start()
    while time.monotonic() < until:
        start = time.perf_counter()
        try:
            get(exporter.port, "/-/ready")
        except (OSError, http.client.HTTPException):
            found.failed += 1
        found.ready.append(time.perf_counter() - start)
        found.most_bytes = max(found.most_bytes, exporter.resident_bytes())
        time.sleep(max(0.0, PROBE_EVERY_SECONDS - found.ready[-1]))
    scraping.join()
    after = exporter.starved_seconds()
    found.starved_seconds = max(after[thread] - starved.get(thread, 0.0) for thread in after)
    return found


def scrape(port: int, until: float, found: Watched) -> None:
    """Scrape every few seconds."""
    while (start := time.monotonic()) < until:
        try:
            found.page_bytes = max(found.page_bytes, len(get(port, "/metrics")))
        except (OSError, http.client.HTTPException):
            found.failed += 1
        found.scrapes.append(time.monotonic() - start)
        time.sleep(max(0.0, min(until, start + SCRAPE_EVERY_SECONDS) - time.monotonic()))


def told(found: Watched, seconds: float) -> dict[str, Any]:
    """As it is stored."""
    return {
        "probes": len(found.ready),
        "ready_p50_seconds": found.ready_seconds(50),
        "ready_p99_seconds": found.ready_seconds(99),
        "ready_max_seconds": round(max(found.ready), 4),
        "scrapes": len(found.scrapes),
        "scrape_max_seconds": round(max(found.scrapes), 4),
        "failed": found.failed,
        "resident_mib": round(found.most_bytes / MIB, 1),
        "starved_percent": round(100 * found.starved_seconds / seconds, 1),
    }


def met(run: dict[str, Any]) -> bool:
    """The bar of SECURITY.md: memory within 1.3 of idle, every probe answered, 99 of 100 in 100 ms."""
    readers = run["readers"]
    return bool(
        run["memory_ratio"] <= MAX_MEMORY_RATIO
        and readers["ready_p99_seconds"] <= MAX_READY_P99_SECONDS
        and not readers["failed"]
    )

"""Rows 2 to 6 of "Numbers to hold": the whole exporter, running against replayed engines and stubbed GPUs."""

from __future__ import annotations

import http.client
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

from bench import world

WARM_UP_SECONDS = 12.0
MEASURE_SECONDS = 30.0
GETS = 150
TROUBLED = 8
MIB = 2.0**20


@dataclass(frozen=True)
class Load:
    """One size of node, and its bars."""

    gpus: int
    engines: int
    cpu_percent: float | None
    memory_mib: float | None
    get_ms: float | None

    @property
    def name(self) -> str:
        """As the table names it."""
        return f"{self.gpus}+{self.engines}"


LOADS = (Load(8, 8, 3.0, 80.0, 25.0), Load(16, 32, None, None, None), Load(16, 64, 15.0, 110.0, 150.0))


@dataclass(frozen=True)
class Measured:
    """What one run gave."""

    cpu_percent: float
    memory_mib: float
    get_p99_ms: float
    bytes_per_engine_second: float
    hung_get_p99_ms: float | None


def get_ms(port: int) -> float:
    """Time of one compressed scrape, the answer read."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    start = time.perf_counter()
    connection.request("GET", "/metrics", headers={"Accept-Encoding": "gzip"})
    body = connection.getresponse().read()
    took = time.perf_counter() - start
    connection.close()
    assert len(body) > 1000
    return took * 1000


def p99_ms(port: int) -> float:
    """99th percentile of `GETS` scrapes that fall anywhere in a second."""
    times = []
    for _ in range(GETS):
        times.append(get_ms(port))
        time.sleep(0.067)
    return statistics.quantiles(times, n=100)[98]


def bytes_received(port: int) -> float:
    """The exporter's own count of page bytes."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", "/metrics")
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    return float(next(line for line in lines if line.startswith("kvpressure_engine_page_bytes_total")).split()[-1])


def measure(load: Load) -> Measured:
    """Run one size of node and watch it."""
    with world.engines() as port:
        with world.exporter(load.gpus, load.engines, port) as exporter:
            time.sleep(WARM_UP_SECONDS)
            began, cpu, received = time.monotonic(), exporter.cpu_seconds(), bytes_received(exporter.port)
            while time.monotonic() - began < MEASURE_SECONDS:
                get_ms(exporter.port)
                time.sleep(MEASURE_SECONDS / 2)
            elapsed = time.monotonic() - began
            cpu = exporter.cpu_seconds() - cpu
            received = bytes_received(exporter.port) - received
            p99 = p99_ms(exporter.port)
            memory = exporter.resident_bytes() / MIB
        hung = None
        if load.get_ms is not None:
            with world.exporter(load.gpus, load.engines, port, hung=8) as exporter:
                time.sleep(WARM_UP_SECONDS)
                hung = p99_ms(exporter.port)
    return Measured(100 * cpu / elapsed, memory, p99, received / elapsed / load.engines, hung)


def troubled_rows() -> list[dict[str, Any]]:
    """CPU with engines that answer late or never, over as many healthy ones, in the same run."""
    found = {}
    kinds: tuple[dict[str, Any], ...] = ({"count": TROUBLED}, {"slow": TROUBLED}, {"hung": TROUBLED})
    with world.engines() as port:
        for kind in kinds:
            with world.exporter(1, engine_port=port, **{"count": 0, **kind}) as exporter:
                time.sleep(WARM_UP_SECONDS)
                cpu = exporter.cpu_seconds()
                time.sleep(MEASURE_SECONDS)
                found[next(iter(kind))] = exporter.cpu_seconds() - cpu
    ratios = {name: found[name] / found["count"] for name in ("slow", "hung")}
    return [
        row(f"CPU with {TROUBLED} {name} engines over {TROUBLED} healthy ones", ratio, "x", "<= 1", ratio <= 1.0)
        for name, ratio in ratios.items()
    ]


def day_growth() -> tuple[float, float]:
    """Resident MiB after six hours and after a whole simulated day with pods coming and going."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.day"], cwd=world.ROOT, capture_output=True, check=True, text=True, timeout=900
    )
    early, late = done.stdout.split()
    return float(early), float(late)


def row(name: str, value: float, unit: str, bar: str, met: bool | None) -> dict[str, Any]:
    """One row of the table."""
    return {"name": name, "value": round(value, 3), "unit": unit, "bar": bar, "pass": met}


def rows() -> list[dict[str, Any]]:
    """All rows; `pass` is None where a row is only there for comparison."""
    found = {load: measure(load) for load in LOADS}
    received = max(measured.bytes_per_engine_second for measured in found.values())
    made = [row("bytes fetched per engine-second, name[] honoured", received, "bytes", "<= 8192", received <= 8192)]
    for load, got in found.items():
        bar = load.cpu_percent
        met = None if bar is None else got.cpu_percent <= bar
        text = "" if bar is None else f"<= {bar:g}"
        made.append(row(f"CPU at {load.name}", got.cpu_percent, "% of a core", text, met))
    small, middle, large = found.values()
    per_engine = (large.cpu_percent - middle.cpu_percent) / 32 / ((middle.cpu_percent - small.cpu_percent) / 24)
    made.append(row("CPU per further engine, 32 to 64 over 8 to 32", per_engine, "x", "<= 1.25", per_engine <= 1.25))
    for load, got in found.items():
        if load.memory_mib is not None:
            met = got.memory_mib <= load.memory_mib
            made.append(row(f"resident memory at {load.name}", got.memory_mib, "MiB", f"<= {load.memory_mib:g}", met))
    made += troubled_rows()
    early, late = day_growth()
    made.append(
        row("resident memory, end of a day over its sixth hour", late / early, "x", "<= 1.05", late / early <= 1.05)
    )
    for load, got in found.items():
        if load.get_ms is not None and got.hung_get_p99_ms is not None:
            bar_text = f"<= {load.get_ms:g}"
            made.append(
                row(f"GET /metrics p99 at {load.name}", got.get_p99_ms, "ms", bar_text, got.get_p99_ms <= load.get_ms)
            )
            hung = got.hung_get_p99_ms
            made.append(row(f"GET /metrics p99 at {load.name}, 8 hung", hung, "ms", bar_text, hung <= load.get_ms))
    return made

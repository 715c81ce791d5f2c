"""What the measured exporter lives in: replayed and hung engines, stubbed GPUs; its processes as /proc sees them."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from tests.stubs.build import libraries
from tests.stubs.world import nvidia
from tests.support.processes import free_port

ROOT = Path(__file__).parents[1]
TICKS = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Exporter:
    """A running `kvpressure run`."""

    pid: int
    port: int

    def pids(self) -> list[int]:
        """Its process and all below it."""
        found = [self.pid]
        for pid in found:
            with contextlib.suppress(OSError):
                found += [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        return found

    def cpu_seconds(self) -> float:
        """CPU time of all its processes so far."""
        total = 0.0
        for pid in self.pids():
            with contextlib.suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                total += (int(fields[11]) + int(fields[12])) / TICKS
        return total

    def resident_bytes(self) -> int:
        """Resident memory of all its processes, shared pages counted in each."""
        total = 0
        for pid in self.pids():
            with contextlib.suppress(OSError):
                total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_BYTES
        return total


@contextlib.contextmanager
def process(*command: str, env: dict[str, str] | None = None, log: Path | None = None) -> Iterator[int]:
    """A process of its own, ended with the block."""
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(log.open("wb")) if log else subprocess.DEVNULL
        child = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **(env or {})}, stdout=out, stderr=out)
        try:
            yield child.pid
        finally:
            child.terminate()
            child.wait(10)


@contextlib.contextmanager
def engines() -> Iterator[int]:
    """A server that replays a recording as any number of engines under /0, /1, ...; gives its port."""
    port = free_port()
    with process(sys.executable, "-m", "bench.engines", str(port)):
        wait_for(port)
        yield port


@contextlib.contextmanager
def exporter(
    gpus: int,
    count: int,
    engine_port: int,
    hung: int = 0,
    slow: int = 0,
) -> Iterator[Exporter]:
    """`kvpressure run` with `gpus` stubbed GPUs, `count` engines, `hung` that never answer, `slow` that do late."""
    port = free_port()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        targets: list[dict[str, object]] = [
            {
                "name": f"engine-{i}",
                "url": f"http://127.0.0.1:{engine_port}",
                "path": f"/{i}/metrics",
                "gpus": [i % gpus],
            }
            for i in range(count)
        ]
        targets += [
            {"name": f"{kind}-{i}", "url": f"http://127.0.0.1:{engine_port}", "path": f"/{kind}-{i}/metrics"}
            for kind, number in (("hang", hung), ("slow", slow))
            for i in range(number)
        ]
        settings: dict[str, dict[str, object]] = {
            "web": {"listen_address": f"127.0.0.1:{port}"},
            "engines": {"targets": targets},
            "gpu": {"vendors": ["nvidia"]},
            "limits": {"max_targets": max(256, len(targets))},
        }
        config = directory / "kvpressure.yaml"
        config.write_text(yaml.safe_dump(settings))
        scenario = directory / "gpus.txt"
        scenario.write_text("".join(f"{key} {value}\n" for key, value in nvidia(gpus).items()))
        env = {"STUB_SCENARIO": str(scenario), "LD_LIBRARY_PATH": str(libraries())}
        command = (sys.executable, "-m", "kvpressure", "run", "--config.file", str(config))
        with process(*command, env=env, log=directory / "log") as pid:
            try:
                wait_for(port)
            except TimeoutError:
                sys.stderr.write((directory / "log").read_text())
                raise
            yield Exporter(pid, port)


def wait_for(port: int) -> None:
    """Until something listens there; raises TimeoutError."""
    for _ in range(600):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise TimeoutError(f"nothing listens on port {port}")

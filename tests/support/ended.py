"""A real exporter that is sent SIGTERM: how much CPU time it still took, how it ended, and who outlived it."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HANG_SECONDS = 120.0
"""Only a hang takes so long; nothing is asserted on real time."""

TICKS = os.sysconf("SC_CLK_TCK")
START = "import sys\nfrom kvpressure.cli import main\nsys.argv[0] = 'kvpressure'\nmain()\n"


@dataclass(frozen=True)
class End:
    """`code` is as subprocess gives it, `cpu_seconds` what the process used between the signal and its end."""

    code: int
    cpu_seconds: float
    left: Sequence[int]


@dataclass
class Exporter:
    """One run, the first of its session: whatever it starts stays in the session."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def cpu_seconds(self) -> float:
        """CPU time that the process itself has used so far."""
        fields = _stat(self.pid)
        return (int(fields[11]) + int(fields[12])) / TICKS

    def children(self) -> list[int]:
        """Every other process of the session that is not a mere zombie."""
        return [pid for pid in _processes() if pid != self.pid and _session(pid) == self.pid]

    async def until(self, true: Callable[[], object]) -> None:
        """Wait for a state; the process must not end before."""
        assert await _happens(lambda: true() or self._ended()), self.output()
        assert not self._ended(), self.output()

    async def end(self, *signals: signal.Signals, between: Callable[[], object] = lambda: True) -> End:
        """Send the signals, each once the state `between` is reached, and wait for the end of all."""
        before = self.cpu_seconds()
        for position, number in enumerate(signals or (signal.SIGTERM,)):
            if position:
                await self.until(between)
            self.process.send_signal(number)
        assert await _happens(self._ended), f"still alive after the signal\n{self.output()[-4000:]}"
        cpu_seconds = self.cpu_seconds() - before
        await _happens(lambda: not self.children())  # the kernel ends them after their parent
        return End(self.process.wait(), cpu_seconds, self.children())

    def _ended(self) -> bool:
        """Its zombie stays, so that its CPU time can be read."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


async def _happens(true: Callable[[], object]) -> bool:
    end = time.monotonic() + HANG_SECONDS
    while not true():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.005)
    return True


@contextlib.contextmanager
def exporter(folder: Path, arguments: Sequence[str], env: Mapping[str, str], before: str = "") -> Iterator[Exporter]:
    """Run `kvpressure` with `arguments`, after the Python lines `before`; nothing of it outlives the block."""
    log = folder / "kvpressure.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-c", before + START, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env={**os.environ, **env},
            start_new_session=True,
        )
    run = Exporter(process, log)
    try:
        yield run
    finally:
        for pid in (*run.children(), process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat from the state on; empty for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return []


def _session(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[3]) if fields and fields[0] not in "ZX" else -1

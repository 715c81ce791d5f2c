"""The image as a running container, with what the chart asks for: user, no capability or new privilege, read-only root.

buildah's chroot isolation cannot start on a read-only root: it makes mount points first. So the container waits at a
gate, its root is remounted read-only from outside, and only then its entrypoint runs.
"""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e_image.buildah import Buildah
from tests.e2e_image.programs import FailedError, output
from tests.support.processes import Process, running

USER = "65532:65532"
GATE = 'while ! test -e /etc/kvpressure/open; do sleep 0.1; done; exec setpriv --no-new-privs "$@"'
PATIENCE_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Container:
    """The running container: what started it, and the process inside."""

    starter: Process
    pid: int

    def status(self) -> dict[str, str]:
        """The process's /proc status."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return {key: " ".join(value.split()) for key, _, value in (line.partition(":") for line in lines)}

    def command(self) -> list[str]:
        """What runs."""
        return Path(f"/proc/{self.pid}/cmdline").read_text().split("\0")[:-1]

    def root_options(self) -> list[str]:
        """Options of the mount that is the process's root."""
        for line in Path(f"/proc/{self.pid}/mountinfo").read_text().splitlines():
            fields = line.split()
            if fields[4] == "/":
                last = fields[5].split(",")
        return last

    async def end(self) -> tuple[float, int]:
        """Send SIGTERM; seconds until the process is gone, and the exit code that its starter passes on."""
        descriptor, gone = os.pidfd_open(self.pid), asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(descriptor, gone.set)
        try:
            began = time.monotonic()
            os.kill(self.pid, signal.SIGTERM)
            async with asyncio.timeout(PATIENCE_SECONDS):
                await gone.wait()
            seconds = time.monotonic() - began
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        async with asyncio.timeout(PATIENCE_SECONDS):
            return seconds, await self.starter.process.wait()


@contextlib.asynccontextmanager
async def container(buildah: Buildah, name: str, image: Any, config: Path, log: Path) -> AsyncIterator[Container]:
    """Start the image's own entrypoint on settings in `config`; ended with the block."""
    fixed = ("run", "--isolation", "chroot", "--user", USER, "--cap-drop", "ALL", "--network", "host")
    mounted = f"--volume={config}:/etc/kvpressure:ro"
    words = [*image["Entrypoint"], *image["Cmd"], "--config.file=/etc/kvpressure/kvpressure.yaml"]
    command = buildah.words(*fixed, mounted, name, "--", "sh", "-c", GATE, "gate", *words)
    (config / "open").unlink(missing_ok=True)
    async with running(command, log) as starter:
        pid = await _waiting_at_the_gate(starter)
        output(("nsenter", f"--target={pid}", "--mount", "--root", "mount", "-o", "remount,bind,ro", "/"))
        (config / "open").touch()
        yield Container(starter, pid)


async def _waiting_at_the_gate(starter: Process) -> int:
    """The process that will be the entrypoint: a process keeps its number when it becomes another program."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end and starter.process.returncode is None:
        for pid in _at_the_gate():
            return pid
        await asyncio.sleep(0.1)
    raise FailedError(f"the container did not start:\n{starter.output()[-3000:]}")


def _at_the_gate() -> Iterator[int]:
    uid = int(USER.partition(":")[0])
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (path / "cmdline").read_text().split("\0")
            if (words[1:2], words[3:4]) == (["-c"], ["gate"]) and path.stat().st_uid == uid:
                yield int(path.name)

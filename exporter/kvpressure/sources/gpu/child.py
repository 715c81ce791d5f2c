"""The process that touches one vendor's library: `python -m kvpressure.sources.gpu.child VENDOR SETTINGS`.

The settings are JSON. Writes one line of JSON per reading on what was its standard output. Ends with a code for its
reason (`backend.FIRST_CODE`), its last line on standard error being the sentence, and ends when its standard input
does: its parent is gone.
Imports as little as it can: its memory counts towards the exporter's.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import sys
import time
from dataclasses import fields
from typing import Any, BinaryIO, Final

from kvpressure.model.samples import GpuReport, GpuSample
from kvpressure.sources.gpu.backend import (
    FIRST_CODE,
    OTHER,
    REASONS,
    REOPEN,
    BackendError,
    CardPool,
    GpuSettings,
    open_backend,
)

PR_SET_PDEATHSIG: Final = 1
_GPU_FIELDS: Final = tuple(field.name for field in fields(GpuSample))


def as_dict(report: GpuReport) -> dict[str, Any]:
    """Return a report as JSON-able values."""
    gpus = [{name: getattr(gpu, name) for name in _GPU_FIELDS} for gpu in report.gpus]
    return {"t": report.t, "gpus": gpus, "rejected": dict(report.rejected), "errors": dict(report.errors)}


def encode(report: GpuReport) -> bytes:
    """Return one line, newline included. Raises ValueError for NaN or infinity, which the sieve must have dropped."""
    return json.dumps(as_dict(report), allow_nan=False, separators=(",", ":")).encode() + b"\n"


def take_stdout() -> BinaryIO:
    """Return standard output for our lines alone: what a vendor library prints goes to standard error from here on."""
    private = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(private, "wb")


def die_with_parent() -> None:
    """Have the kernel kill this process with its parent: a child stuck in the driver cannot see its input end."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def wait_for_parent_to_leave(seconds: float) -> bool:
    """Sleep; true as soon as standard input ends."""
    return bool(select.select([0], [], [], max(0.0, seconds))[0])


class ReopenRule:
    """When devices in trouble get new handles: at once after a MIG change, else now and then.

    A device that merely does not answer is no reason: initializing the driver could block on it and lose the others.
    """

    def __init__(self, after_seconds: float) -> None:
        self._after_seconds = after_seconds
        self._since: float | None = None

    def due(self, errors: list[str], now: float) -> bool:
        """Whether to open the library again, given the errors of the report at `now`."""
        if any(error.startswith("reopen:") for error in errors):
            return True
        if all(error.startswith("timeout:") for error in errors):
            self._since = None
            return False
        self._since = now if self._since is None else self._since
        return now - self._since >= self._after_seconds


def serve(pool: CardPool, out: BinaryIO, interval_seconds: float, reopen: ReopenRule) -> None:
    """Report until the parent leaves; raises BackendError when the library has to be opened again."""
    while True:
        started = time.monotonic()
        report = pool.read(time.time())
        out.write(encode(report))
        out.flush()
        if reopen.due(list(report.errors.values()), started):
            raise BackendError(REOPEN, f"devices need new handles: {'; '.join(report.errors.values())}")
        if wait_for_parent_to_leave(started + interval_seconds - time.monotonic()):
            return


def main(vendor: str, settings: GpuSettings) -> int:
    """Run to the end; the exit code."""
    die_with_parent()
    if wait_for_parent_to_leave(0.0):  # it died while this started, so the kernel will send nothing
        return 0
    out = take_stdout()
    pool: CardPool | None = None
    try:
        pool = open_backend(vendor, settings)
        serve(pool, out, settings.interval_seconds, ReopenRule(settings.reopen_seconds))
    except BackendError as error:
        print(error.sentence, file=sys.stderr, flush=True)  # noqa: T201 the parent reads it there
        return FIRST_CODE + REASONS.index(error.reason if error.reason in REASONS else OTHER)
    except BrokenPipeError:
        pass
    finally:
        if pool is not None:
            pool.close()
    return 0


if __name__ == "__main__":
    # Not sys.exit: the library's own goodbye at exit may block behind a sick device, the kernel's does not.
    os._exit(main(sys.argv[1], GpuSettings(**json.loads(sys.argv[2]))))

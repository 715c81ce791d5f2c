"""`kvpressure record --gpus`: what a vendor's library answers here, redacted, for bug reports and fixtures."""

from __future__ import annotations

import importlib
import json
import socket
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any, Final

from kvpressure.sources.gpu.backend import Backend, BackendError, Options, make_backend
from kvpressure.sources.gpu.child import die_with_parent, parse, take_stdout
from kvpressure.sources.gpu.process import child_environment
from kvpressure.sources.gpu.redact import Redactor
from kvpressure.sources.gpu.settings import GpuSettings
from kvpressure.sources.gpu.trace import Trace
from kvpressure.sources.gpu.wire import as_dict

BINDINGS: Final = {"nvidia": ("pynvml", "nvml"), "amd": ("amdsmi", "amdsmi_")}
FORMAT: Final = 1


def record_gpus(vendor: str, settings: GpuSettings, seconds: float) -> dict[str, Any]:
    """A dump of `seconds` of readings: `calls` (what the binding answered) and `reports` (GpuReports as dicts).

    Reads in a process of its own, as the exporter does; blocks for `seconds` and the library's start. `error` says
    why there are no readings, "" otherwise. UUIDs, serials, PCI addresses and the host's name are replaced.
    """
    command = [sys.executable, "-P", "-m", "kvpressure.sources.gpu.record", "--vendor", vendor]
    command += ["--seconds", str(seconds), "--interval", str(settings.interval_seconds)]
    patience = seconds + settings.start_seconds
    try:
        done = subprocess.run(  # noqa: S603 our own module, no shell
            command,
            env=child_environment(settings),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=patience,
            check=False,
        )
        dump: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        dump = _empty(vendor, f"the vendor's library did not answer within {patience:g} s")
    except ValueError:
        last_line = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        dump = _empty(vendor, f"the reading process ended with {done.returncode}: {last_line}")
    return dump


def _empty(vendor: str, error: str) -> dict[str, Any]:
    return {"format": FORMAT, "vendor": vendor, "error": error, "calls": [], "reports": []}


def _read(backend: Backend, seconds: float, interval_seconds: float, reports: list[dict[str, Any]]) -> None:
    backend.open()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        reports.append(as_dict(backend.read(time.time())))
        time.sleep(interval_seconds)


def _dump(args: dict[str, str]) -> dict[str, Any]:
    dump, trace = _empty(args["vendor"], ""), Trace()
    backend = make_backend(args["vendor"], Options())
    try:
        with suppress(ImportError, KeyError, AttributeError):  # opening says it better
            module, prefix = BINDINGS[args["vendor"]]
            trace.wrap(importlib.import_module(module), prefix)
        _read(backend, float(args["seconds"]), float(args["interval"]), dump["reports"])
    except BackendError as error:
        dump["error"] = error.sentence
    dump["calls"] = trace.calls()
    redacted: dict[str, Any] = Redactor(socket.gethostname()).tree(dump)
    return redacted


def main(argv: list[str]) -> None:
    """The reading process: one JSON object on standard output."""
    die_with_parent()
    out = take_stdout()
    out.write(json.dumps(_dump(parse(argv))).encode())
    out.flush()


if __name__ == "__main__":
    main(sys.argv[1:])

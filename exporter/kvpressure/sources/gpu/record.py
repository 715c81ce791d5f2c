"""`kvpressure record --gpus`: what a vendor's library answers here, redacted, for bug reports and fixtures."""

from __future__ import annotations

import ctypes
import functools
import importlib
import json
import math
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from types import FunctionType, ModuleType
from typing import Any, Final

from kvpressure.sources.gpu.backend import BackendError, GpuSettings, open_backend
from kvpressure.sources.gpu.child import die_with_parent, take_stdout
from kvpressure.sources.gpu.process import child_environment

LONGEST_LIST: Final = 128
LONGEST_ARRAY: Final = 8
MAX_ANSWERS: Final = 20


class Trace:
    """Wraps a binding module's functions in place; `calls` is the JSON-able result."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, str], list[Any]] = {}
        self._counts: dict[tuple[str, str], int] = {}
        self._handles: dict[int, str] = {}

    def wrap(self, module: ModuleType, prefix: str) -> None:
        """Note the calls of every function of `module` whose name starts with `prefix`."""
        for name, function in list(vars(module).items()):
            if name.startswith(prefix) and isinstance(function, FunctionType):
                setattr(module, name, self._noting(name, function))

    def _noting(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def noting(*args: Any, **kwargs: Any) -> Any:
            arguments = json.dumps([self.plain(argument) for argument in (*args, *kwargs.values())])
            try:
                answer = function(*args, **kwargs)
            except Exception as error:
                self._note(name, arguments, {"error": " ".join(str(error).split())})
                raise
            self._note(name, arguments, self.plain(answer))
            return answer

        return noting

    def _note(self, name: str, arguments: str, answer: Any) -> None:
        key = (name, arguments)
        self._counts[key] = self._counts.get(key, 0) + 1
        answers = self._answers.setdefault(key, [])
        if len(answers) < MAX_ANSWERS and (not answers or answers[-1] != answer):
            answers.append(answer)

    def plain(self, value: Any) -> Any:
        """Return a binding's value as JSON: structs are objects, handles are "handle-N"."""
        if isinstance(value, float) and not math.isfinite(value):
            return str(value)
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, bytes):
            return value.decode(errors="replace")
        if isinstance(value, dict):
            return {str(key): self.plain(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.plain(item) for item in value[:LONGEST_LIST]]
        return self._plain_ctypes(value)

    def _plain_ctypes(self, value: Any) -> Any:
        if isinstance(value, ctypes.Structure | ctypes.Union):
            return {field[0]: self.plain(getattr(value, field[0])) for field in value._fields_}
        if isinstance(value, ctypes.Array):
            return [self.plain(item) for item in value[:LONGEST_ARRAY]]
        if isinstance(value, ctypes.c_void_p) or hasattr(value, "contents"):
            address = ctypes.cast(value, ctypes.c_void_p).value or 0
            return self._handles.setdefault(address, f"handle-{len(self._handles) + 1}")
        return type(value).__name__

    def calls(self) -> list[dict[str, Any]]:
        """Return each call with its arguments, how often it was made, and its answers without repetitions."""
        return [
            {"call": name, "arguments": json.loads(text), "count": self._counts[name, text], "answers": answers}
            for (name, text), answers in list(self._answers.items())
        ]


UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
PCI: Final = re.compile(r"\b(?P<card>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2})\.(?P<function>[0-7])\b", re.IGNORECASE)


class Redactor:
    """Replaces UUIDs, serials, PCI addresses and host names, each by one fake: what belonged together still does."""

    def __init__(self, host_name: str = "") -> None:
        self._host_name = re.compile(rf"\b{re.escape(host_name)}\b") if host_name else None
        self._fakes: dict[tuple[str, str], int] = {}

    def _number(self, kind: str, real: str) -> int:
        """Return 1 for the first of its kind, 2 for the next..."""
        key = (kind, real.lower())
        if key not in self._fakes:
            self._fakes[key] = 1 + sum(known == kind for known, _ in self._fakes)
        return self._fakes[key]

    def text(self, text: str) -> str:
        """Return a string without the machine's names."""
        text = UUID.sub(lambda match: f"00000000-0000-0000-0000-{self._number('uuid', match[0]):012d}", text)
        text = PCI.sub(lambda match: f"0000:{self._number('pci', match['card']):02x}:00.{match['function']}", text)
        return self._host_name.sub("host", text) if self._host_name else text

    def tree(self, value: Any, key: str = "") -> Any:
        """Replace names in any JSON-able value; what is filed under a key that speaks of a serial is replaced whole."""
        if isinstance(value, dict):
            return {self.text(name): self.tree(item, name) for name, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.tree(item, key) for item in value]
        if "serial" in key.lower() and value not in (None, "", "N/A"):
            return f"serial-{self._number('serial', str(value))}"
        return self.text(value) if isinstance(value, str) else value


BINDINGS: Final = {"nvidia": ("pynvml", "nvml"), "amd": ("amdsmi", "amdsmi_")}
FORMAT: Final = 1


def record_gpus(vendor: str, settings: GpuSettings, seconds: float) -> dict[str, Any]:
    """Return a dump of `seconds` of readings: `calls` (what the binding answered) and `reports` (GpuReports as dicts).

    Reads in a process of its own, as the exporter does; blocks for `seconds` and the library's start. `error` says
    why there are no readings, "" otherwise. UUIDs, serials, PCI addresses and the host's name are replaced.
    """
    command = [sys.executable, "-P", "-m", "kvpressure.sources.gpu.record", vendor]
    command += [str(seconds), str(settings.interval_seconds)]
    timeout_seconds = seconds + settings.start_seconds
    try:
        done = subprocess.run(  # noqa: S603 our own module, no shell
            command,
            env=child_environment(settings),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_seconds,
            check=False,
        )
        dump: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        dump = _empty(vendor, f"the vendor's library did not answer within {timeout_seconds:g} s")
    except ValueError:
        last_line = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        dump = _empty(vendor, f"the reading process ended with {done.returncode}: {last_line}")
    return dump


def _empty(vendor: str, error: str) -> dict[str, Any]:
    return {"format": FORMAT, "vendor": vendor, "error": error, "calls": [], "reports": []}


def _dump(vendor: str, seconds: float, interval_seconds: float) -> dict[str, Any]:
    dump, trace = _empty(vendor, ""), Trace()
    try:
        with suppress(ImportError, KeyError, AttributeError):  # opening says it better
            module, prefix = BINDINGS[vendor]
            trace.wrap(importlib.import_module(module), prefix)
        pool = open_backend(vendor, GpuSettings())
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            dump["reports"].append(asdict(pool.read(time.time())))
            time.sleep(interval_seconds)
    except BackendError as error:
        dump["error"] = error.sentence
    dump["calls"] = trace.calls()
    redacted: dict[str, Any] = Redactor(socket.gethostname()).tree(dump)
    return redacted


def main(argv: list[str]) -> None:
    """Run the reading process: one JSON object on standard output."""
    die_with_parent()
    out = take_stdout()
    out.write(json.dumps(_dump(argv[0], float(argv[1]), float(argv[2]))).encode())
    out.flush()


if __name__ == "__main__":
    main(sys.argv[1:])

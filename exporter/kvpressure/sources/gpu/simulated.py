"""GPUs without hardware: a report read from a scenario file, for tests and demonstrations of the child process.

The file is the JSON of one GpuReport (as `wire.as_dict` makes it; a GPU needs only `uuid` and `index`), read again at
every reading. GPUs simulated inside the exporter's own process come from `inprocess.InProcessGpuSource` instead.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from kvpressure.model.samples import GpuReport
from kvpressure.sources.gpu.backend import BackendError, Options
from kvpressure.sources.gpu.wire import as_report

LARGEST_FILE_BYTES: Final = 1 << 20


def make(options: Options) -> Simulated:
    """The backend, not yet opened."""
    return Simulated(Path(options.scenario))


class Simulated:
    """GPUs from a file; see `backend.Backend`."""

    vendor = "simulated"

    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self) -> None:
        """Raises BackendError when the scenario is not there."""
        if not self._path.is_file():
            raise BackendError("no_devices", f"there is no scenario at {str(self._path)!r}")

    def read(self, t: float) -> GpuReport:
        """The scenario's report, as of now."""
        try:
            with self._path.open("rb") as file:
                scenario = json.loads(file.read(LARGEST_FILE_BYTES))
            scenario["gpus"] = [{"t": t, "vendor": self.vendor, **gpu} for gpu in scenario["gpus"]]
            return as_report({**scenario, "t": t})
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise BackendError("driver_error", f"{str(self._path)!r} is not a scenario: {error}") from error

    def close(self) -> None:
        """Nothing to let go of."""

"""What every vendor's library looks like from here, and the table of vendors.

Adding a vendor is one new file with a `make(options)` function, and one row in `BACKENDS`.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Final, Protocol

from kvpressure.model.samples import GpuReport


class Backend(Protocol):
    """One vendor library, used by one process."""

    @property
    def vendor(self) -> str:
        """The value of the `vendor` label."""
        ...

    def open(self) -> None:
        """Load the library, initialize it and find the devices; raises `BackendError`."""
        ...

    def read(self, t: float) -> GpuReport:
        """Read every device once; `t` is now, in unix seconds.

        A device that fails goes to the report's `errors` as "reason: sentence". A device that is slow is missing from
        this report and appears, with its own earlier `t`, in the one after it answered. Raises `BackendError` when the
        library has to be opened again. May block for ever behind a sick driver.
        """
        ...

    def close(self) -> None:
        """Shut the library down and let go of the device files."""
        ...


class BackendError(Exception):
    """Why the whole library cannot be used: a stable `reason` (a key of `EXIT_CODES`) and a sentence for people."""

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason
        self.sentence = sentence


@dataclass(frozen=True, slots=True)
class Options:
    """What a backend may need to know; each uses what concerns it."""

    gpm: bool = True
    device_wait_seconds: float = 0.5
    device_error_seconds: float = 5.0


EXIT_CODES: Final = {
    "library_not_found": 70,
    "binding_not_found": 71,
    "library_mismatch": 72,
    "driver_not_loaded": 73,
    "no_permission": 74,
    "no_devices": 75,
    "driver_error": 76,
    "reopen": 77,
}
"""How the child says why it ended; its last line on stderr is the sentence. Any other code is a crash."""

ABSENT: Final = frozenset({"library_not_found", "binding_not_found"})
"""Reasons that mean "this machine does not have that vendor": probed again, slowly."""


@dataclass(frozen=True, slots=True)
class Row:
    """One vendor: its module, the name of its source in health series, and what people call that."""

    module: str
    source: str
    title: str


BACKENDS: Final = {
    "nvidia": Row("kvpressure.sources.gpu.nvml", "nvml", "NVIDIA GPUs (NVML)"),
    "amd": Row("kvpressure.sources.gpu.amdsmi", "amdsmi", "AMD GPUs (amdsmi)"),
}


def make_backend(vendor: str, options: Options) -> Backend:
    """The backend of `vendor`; its module is imported here, so that only the child ever does. Raises KeyError."""
    backend: Backend = importlib.import_module(BACKENDS[vendor].module).make(options)
    return backend

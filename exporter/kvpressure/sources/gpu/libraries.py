"""Vendors' libraries, each found before its Python binding is paid for, and read through its cards' threads."""

from __future__ import annotations

import ctypes
import importlib
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from kvpressure.model.samples import GpuReport
from kvpressure.sources.gpu.backend import BackendError, Options
from kvpressure.sources.gpu.cards import CardPool

NVML: Final = "libnvidia-ml.so.1"
AMDSMI: Final = "libamd_smi.so"


class Backend:
    """One vendor library, used by one process; `load` finds it and imports the module of its cards.

    That module has `open_cards(options)`, which initializes the library, and `shutdown()`.
    """

    def __init__(self, load: Callable[[], ModuleType], options: Options) -> None:
        self._load, self._options = load, options
        self._module: Any = None
        self._pool: CardPool | None = None

    def open(self) -> None:
        """Load the library, initialize it and find the devices. Raises BackendError."""
        self._module = self._load()
        cards = self._module.open_cards(self._options)
        self._pool = CardPool(cards, self._options.device_wait_seconds, self._options.device_error_seconds)

    def read(self, t: float) -> GpuReport:
        """Read every device once; `t` is now, in unix seconds.

        A device that fails goes to the report's `errors` as "reason: sentence", "reopen" where the library has to be
        opened again. A device that is slow is missing from this report and appears, with its own earlier `t`, in the
        one after it answered. May block for ever behind a sick driver.
        """
        if self._pool is None:
            raise RuntimeError("read before open")
        return self._pool.read(t)

    def close(self) -> None:
        """Shut the library down and let go of the device files."""
        pool, self._pool = self._pool, None
        if pool is not None and pool.close():
            self._module.shutdown()


def make_backend(vendor: str, options: Options) -> Backend:
    """Return the backend of `vendor`, not yet opened. Raises KeyError."""
    return Backend(_LOADS[vendor], options)


def _load_nvml() -> ModuleType:
    try:
        ctypes.CDLL(NVML)
    except OSError as error:
        raise BackendError(
            "library_not_found",
            f"{NVML} cannot be loaded ({error}); if this machine has NVIDIA GPUs, install the driver or make "
            "its libraries visible here",
        ) from error
    return importlib.import_module("kvpressure.sources.gpu.nvml_card")


def _load_amdsmi() -> ModuleType:
    _find_amdsmi()  # first, because without it the binding prints and raises KeyError
    try:
        return importlib.import_module("kvpressure.sources.gpu.amdsmi_card")
    except ImportError as error:
        raise BackendError(
            "binding_not_found",
            f"{AMDSMI} is here but its Python binding is not ({error}); install kv-pressure-exporter[amd]",
        ) from error
    except (KeyError, AttributeError) as error:
        raise BackendError(
            "library_mismatch", f"the amdsmi binding and {AMDSMI} are of different versions: {error}"
        ) from error


def _find_amdsmi() -> None:
    """Load it from where the binding looks, in its order."""
    rocm = os.environ.get("ROCM_HOME", os.environ.get("ROCM_PATH"))
    places = [*([str(Path(rocm) / "lib" / AMDSMI)] if rocm else []), AMDSMI, f"/opt/rocm/lib/{AMDSMI}"]
    complaints = []
    for place in places:
        try:
            ctypes.CDLL(place)
        except OSError as error:
            complaints.append(str(error))
        else:
            return
    raise BackendError(
        "library_not_found",
        f"{AMDSMI} cannot be loaded ({complaints[0]}); if this machine has AMD GPUs, install amd-smi-lib or set "
        "ROCM_HOME",
    )


_LOADS: Final[dict[str, Callable[[], ModuleType]]] = {"nvidia": _load_nvml, "amd": _load_amdsmi}

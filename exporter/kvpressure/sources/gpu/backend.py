"""Every vendor's library: its name, its options, how its child process ends, and how its cards are opened.

A library is found before its Python binding is paid for. Adding a vendor is a module of its cards (`open_cards`, which
initializes the library, and `shutdown`), a function that loads it, and one row in `BACKENDS`.
"""

from __future__ import annotations

import ctypes
import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final

from kvpressure.sources.gpu.cards import CardPool

NVML: Final = "libnvidia-ml.so.1"
AMDSMI: Final = "libamd_smi.so"


class BackendError(Exception):
    """Why the whole library cannot be used: a stable `reason` (a key of `EXIT_CODES`) and a sentence for people."""

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason
        self.sentence = sentence


@dataclass(frozen=True, slots=True)
class Options:
    """What a child process is given: whose library to read, how often, how long to wait for a device."""

    vendor: str
    interval_seconds: float = 1.0
    gpm: bool = True
    device_wait_seconds: float = 0.5
    device_error_seconds: float = 5.0
    reopen_seconds: float = 30.0


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
    """One vendor: the name of its source in health series, what people call that, and what imports its cards."""

    source: str
    title: str
    load: Callable[[], ModuleType]


def open_backend(options: Options) -> CardPool:
    """Load a vendor's library, initialize it and find its cards. Raises BackendError, KeyError for another vendor."""
    module = BACKENDS[options.vendor].load()
    cards = module.open_cards(options)
    return CardPool(cards, options.device_wait_seconds, options.device_error_seconds, module.shutdown)


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
    rocm = os.environ.get("ROCM_HOME", os.environ.get("ROCM_PATH"))
    # From where the binding looks, in its order, and first: without the library the binding prints and raises KeyError.
    places = [*([str(Path(rocm) / "lib" / AMDSMI)] if rocm else []), AMDSMI, f"/opt/rocm/lib/{AMDSMI}"]
    complaints = []
    for place in places:
        try:
            ctypes.CDLL(place)
            break
        except OSError as error:
            complaints.append(str(error))
    else:
        raise BackendError(
            "library_not_found",
            f"{AMDSMI} cannot be loaded ({complaints[0]}); if this machine has AMD GPUs, install amd-smi-lib or set "
            "ROCM_HOME",
        )
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


BACKENDS: Final = {
    "nvidia": Row("nvml", "NVIDIA GPUs (NVML)", _load_nvml),
    "amd": Row("amdsmi", "AMD GPUs (amdsmi)", _load_amdsmi),
}

"""AMD through amdsmi: finds the library before importing its binding, which prints and raises KeyError without it."""

from __future__ import annotations

import ctypes
import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from kvpressure.model.samples import GpuReport
from kvpressure.sources.gpu.backend import BackendError, Options
from kvpressure.sources.gpu.cards import Card, CardPool

LIBRARY: Final = "libamd_smi.so"


def make(options: Options) -> AmdSmi:
    """The backend, not yet opened."""
    return AmdSmi(options)


def _places() -> list[str]:
    """Where the binding looks, in its order."""
    rocm = os.environ.get("ROCM_HOME", os.environ.get("ROCM_PATH"))
    first = [str(Path(rocm) / "lib" / LIBRARY)] if rocm else []
    return [*first, LIBRARY, f"/opt/rocm/lib/{LIBRARY}"]


def _find_library() -> None:
    complaints = []
    for place in _places():
        try:
            ctypes.CDLL(place)
        except OSError as error:
            complaints.append(str(error))
        else:
            return
    raise BackendError(
        "library_not_found",
        f"{LIBRARY} cannot be loaded ({complaints[0]}); if this machine has AMD GPUs, install amd-smi-lib or set "
        "ROCM_HOME",
    )


class AmdSmi:
    """All AMD cards of this machine; see `backend.Backend`."""

    vendor = "amd"

    def __init__(self, options: Options) -> None:
        self._options = options
        self._pool: CardPool | None = None

    def open(self) -> None:
        """Raises BackendError when there is no library, no binding, no driver or no device."""
        _find_library()
        try:
            amdsmi_card = importlib.import_module("kvpressure.sources.gpu.amdsmi_card")
        except ImportError as error:
            raise BackendError(
                "binding_not_found",
                f"{LIBRARY} is here but its Python binding is not ({error}); install kv-pressure-exporter[amd]",
            ) from error
        except (KeyError, AttributeError) as error:
            raise BackendError(
                "library_mismatch", f"the amdsmi binding and {LIBRARY} are of different versions: {error}"
            ) from error
        cards: Sequence[Card] = amdsmi_card.open_cards()
        self._pool = CardPool(cards, self._options.device_wait_seconds, self._options.device_error_seconds)

    def read(self, t: float) -> GpuReport:
        """See `backend.Backend.read`."""
        if self._pool is None:
            raise RuntimeError("read before open")
        return self._pool.read(t)

    def close(self) -> None:
        """Shut amdsmi down."""
        pool, self._pool = self._pool, None
        if pool is not None and pool.close():
            importlib.import_module("kvpressure.sources.gpu.amdsmi_card").shutdown()

"""NVIDIA through NVML: finds the library before paying for its Python binding, then reads cards in threads."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Sequence
from typing import Final

from kvpressure.model.samples import GpuReport
from kvpressure.sources.gpu.backend import BackendError, Options
from kvpressure.sources.gpu.cards import Card, CardPool

LIBRARY: Final = "libnvidia-ml.so.1"


def make(options: Options) -> Nvml:
    """The backend, not yet opened."""
    return Nvml(options)


class Nvml:
    """All NVIDIA cards of this machine; see `backend.Backend`."""

    vendor = "nvidia"

    def __init__(self, options: Options) -> None:
        self._options = options
        self._pool: CardPool | None = None

    def open(self) -> None:
        """Raises BackendError when there is no library, no driver or no device."""
        try:
            ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise BackendError(
                "library_not_found",
                f"{LIBRARY} cannot be loaded ({error}); if this machine has NVIDIA GPUs, install the driver or make "
                "its libraries visible here",
            ) from error
        nvml_card = importlib.import_module("kvpressure.sources.gpu.nvml_card")
        cards: Sequence[Card] = nvml_card.open_cards(self._options.gpm)
        self._pool = CardPool(cards, self._options.device_wait_seconds, self._options.device_error_seconds)

    def read(self, t: float) -> GpuReport:
        """See `backend.Backend.read`."""
        if self._pool is None:
            raise RuntimeError("read before open")
        return self._pool.read(t)

    def close(self) -> None:
        """Shut NVML down."""
        pool, self._pool = self._pool, None
        if pool is not None and pool.close():
            importlib.import_module("kvpressure.sources.gpu.nvml_card").shutdown()

"""Every vendor's library: its name, its settings, how its child process ends, how its cards are opened and read.

A library is found before its Python binding is paid for. Adding a vendor is a module of its cards (`open_cards`, which
initializes the library, and `shutdown`), a function that loads it, and one row in `BACKENDS`.

Every card is read in its own thread, so that a slow or stuck card delays no other. Threads, not more processes: vendor
calls release the interpreter lock while they block, a thread costs some tens of KiB, and a process per card would
initialize the driver once per card.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Final, Protocol

from kvpressure.model.errors import SourceError
from kvpressure.model.samples import ABSENT_REASON, GpuReport, GpuSample

STACK_BYTES: Final = 512 * 1024


class Card(Protocol):
    """One physical GPU; `read` returns the report of this card alone and turns its failures into `errors`."""

    @property
    def key(self) -> str:
        """What names the card in `errors`: its uuid, or its index when the driver does not give one."""
        ...

    def read(self, t: float) -> GpuReport:
        """Read the card and its instances; may block."""
        ...


def merge(t: float, reports: Iterable[GpuReport], errors: Mapping[str, str]) -> GpuReport:
    """Return one report out of the reports of several cards, ordered by device index."""
    gpus: list[GpuSample] = []
    rejected: dict[str, int] = {}
    merged_errors = dict(errors)
    for report in reports:
        gpus.extend(report.gpus)
        merged_errors.update(report.errors)
        for reason, count in report.rejected.items():
            rejected[reason] = rejected.get(reason, 0) + count
    gpus.sort(key=lambda gpu: tuple(int(part) for part in gpu.index.split(":")))
    return GpuReport(t, tuple(gpus), rejected, merged_errors)


class CardPool:
    """The threads of one library's cards; `shutdown` ends the use of its driver."""

    def __init__(
        self, cards: Sequence[Card], wait_seconds: float, error_seconds: float, shutdown: Callable[[], None]
    ) -> None:
        self._wait_seconds = wait_seconds
        self._error_seconds = error_seconds
        self._shutdown = shutdown
        self._inboxes: dict[str, queue.SimpleQueue[float | None]] = {}
        self._done: queue.SimpleQueue[tuple[str, GpuReport]] = queue.SimpleQueue()
        self._busy_since: dict[str, float] = {}
        previous = threading.stack_size(STACK_BYTES)
        for card in cards:
            inbox = self._inboxes[card.key] = queue.SimpleQueue()
            threading.Thread(target=self._serve, args=(card, inbox), name=card.key, daemon=True).start()
        threading.stack_size(previous)

    def _serve(self, card: Card, inbox: queue.SimpleQueue[float | None]) -> None:
        while (t := inbox.get()) is not None:
            try:
                report = card.read(t)
            except Exception as error:  # noqa: BLE001 a fault of one card must reach the report, not end its thread
                report = GpuReport(t, (), errors={card.key: f"driver_error: {type(error).__name__}: {error}"})
            self._done.put((card.key, report))

    def read(self, t: float) -> GpuReport:
        """Return the readings that finished since the last call, waiting a bounded time for the slow ones.

        `t` is now, in unix seconds. A device that fails goes to the report's `errors` as "reason: sentence", "reopen"
        where the library has to be opened again. One that is slow is missing from this report and appears, with its own
        earlier `t`, in the one after it answered. Blocks until the first card answers: when no card answers at all, the
        silence is what the parent notices.
        """
        now = time.monotonic()
        for key, inbox in self._inboxes.items():
            if key not in self._busy_since:
                self._busy_since[key] = now
                inbox.put(t)
        reports, now = self._collect(now + self._wait_seconds), time.monotonic()
        waited = {key: now - since for key, since in self._busy_since.items()}
        stuck = {
            key: f"timeout: no answer from the driver for {seconds:.1f} s"
            for key, seconds in waited.items()
            if seconds >= self._error_seconds
        }
        return merge(t, reports, stuck)

    def _collect(self, until: float) -> list[GpuReport]:
        reports: list[GpuReport] = []
        while self._busy_since:
            timeout = max(0.0, until - time.monotonic()) if reports else None
            try:
                key, report = self._done.get(timeout=timeout)
            except queue.Empty:
                break
            del self._busy_since[key]
            reports.append(report)
        return reports

    def close(self) -> None:
        """End the threads, and the use of the driver unless a card is still in it: that would not be safe."""
        for inbox in self._inboxes.values():
            inbox.put(None)
        if not self._busy_since:
            self._shutdown()


NVML: Final = "libnvidia-ml.so.1"
AMDSMI: Final = "libamd_smi.so"


class BackendError(SourceError):
    """The whole library cannot be used, or has to be opened again."""

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason


class CrashedError(SourceError, reason="crashed"):
    """The child process ended by itself, or wrote something else than reports."""


@dataclass(frozen=True, slots=True)
class GpuSettings:
    """Settings of the GPU sources; the defaults serve a real machine, tests shorten the times.

    `library_paths` are searched for vendor libraries before the loader's own path. A child that has reported once is
    killed when it is silent for `deadline_seconds`, and for five intervals; one report waits for its slowest device for
    `device_wait_ratio` of an interval.
    """

    interval_seconds: float = 1.0
    gpm: bool = True
    library_paths: tuple[str, ...] = ()
    detach_seconds: float = 120.0
    start_seconds: float = 30.0
    deadline_seconds: float = 5.0
    device_wait_ratio: float = 0.5
    device_error_seconds: float = 5.0
    reopen_seconds: float = 30.0
    probe_seconds: float = 60.0
    backoff_min_seconds: float = 1.0
    backoff_max_seconds: float = 30.0


NOT_FOUND: Final = ABSENT_REASON
NO_BINDING: Final = "binding_not_found"
ABSENT_REASONS: Final = (NOT_FOUND, NO_BINDING)
"""Of a vendor that is not on this machine: it is probed again, slowly."""
REOPEN: Final = "reopen"
"""The library has to be opened again: its handles are of devices that were."""
OTHER: Final = "driver_error"
REASONS: Final = (
    *ABSENT_REASONS,
    "library_mismatch",
    "driver_not_loaded",
    "no_permission",
    "no_devices",
    OTHER,
    REOPEN,
)
"""Why a whole library cannot be used; any other reason is of a device."""
FIRST_CODE: Final = 70
"""The child's exit code for the first of the reasons; its last line on stderr is the sentence. Others are a crash."""


@dataclass(frozen=True, slots=True)
class Row:
    """One vendor: the name of its source in health series, its title for people, and what imports its cards."""

    source: str
    title: str
    load: Callable[[], ModuleType]


def open_backend(vendor: str, settings: GpuSettings) -> CardPool:
    """Load a vendor's library, initialize it and find its cards. Raises BackendError, KeyError for another vendor."""
    module = BACKENDS[vendor].load()
    cards = module.open_cards(settings)
    wait_seconds = settings.device_wait_ratio * settings.interval_seconds
    return CardPool(cards, wait_seconds, settings.device_error_seconds, module.shutdown)


def _load_nvml() -> ModuleType:
    try:
        ctypes.CDLL(NVML)
    except OSError as error:
        raise BackendError(
            NOT_FOUND,
            f"{NVML} cannot be loaded ({error}); if this machine has NVIDIA GPUs, install the driver or make "
            "its libraries visible here",
        ) from error
    return importlib.import_module("kvpressure.sources.gpu.nvml_card")


def _load_amdsmi() -> ModuleType:
    rocm = os.environ.get("ROCM_HOME", os.environ.get("ROCM_PATH"))
    # The binding's own places, in its order, and first: without the library the binding prints and raises KeyError.
    places = [*([f"{rocm}/lib/{AMDSMI}"] if rocm else []), AMDSMI, f"/opt/rocm/lib/{AMDSMI}"]
    complaints = []
    for place in places:
        try:
            ctypes.CDLL(place)
            break
        except OSError as error:
            complaints.append(str(error))
    else:
        raise BackendError(
            NOT_FOUND,
            f"{AMDSMI} cannot be loaded ({complaints[0]}); if this machine has AMD GPUs, install amd-smi-lib or set "
            "ROCM_HOME",
        )
    try:
        return importlib.import_module("kvpressure.sources.gpu.amdsmi_card")
    except ImportError as error:
        raise BackendError(
            NO_BINDING,
            f"{AMDSMI} is here but its Python binding is not ({error}); install kvpressure[amd]",
        ) from error
    except (KeyError, AttributeError) as error:
        raise BackendError(
            "library_mismatch", f"the amdsmi binding and {AMDSMI} are of different versions: {error}"
        ) from error


BACKENDS: Final = {
    "nvidia": Row("nvml", "NVIDIA GPUs (NVML)", _load_nvml),
    "amd": Row("amdsmi", "AMD GPUs (amdsmi)", _load_amdsmi),
}

"""Reads every card in its own thread, so that a slow or stuck card delays no other.

Threads, not more processes: vendor calls release the interpreter lock while they block, a thread costs some tens of
KiB, and a process per card would initialize the driver once per card.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from kvpressure.model.samples import GpuReport, GpuSample

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
    """One report out of the reports of several cards, ordered by device index."""
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
    """The threads of one library's cards; `shutdown` lets go of the driver."""

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
        """Let the threads end, and go of the driver unless a card is still in it: that would not be safe."""
        for inbox in self._inboxes.values():
            inbox.put(None)
        if not self._busy_since:
            self._shutdown()

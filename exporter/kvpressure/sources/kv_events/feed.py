"""One rank's events, followed in a thread of its own: what it costs is bounded, and nothing waits for it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from kvpressure.model.errors import SourceError, UnreadableError
from kvpressure.model.kv_events import KvEvents
from kvpressure.net.budget import SLICE_SECONDS, OverBudgetError, Share
from kvpressure.net.threads import bug
from kvpressure.printable import brief
from kvpressure.promtext.lines import Steps
from kvpressure.sources.kv_events import decode, zmtp
from kvpressure.sources.kv_events.connection import Connection
from kvpressure.sources.kv_events.ghosts import GhostList
from kvpressure.sources.kv_events.memory import Memory

SEQUENCE_BYTES: Final = 8
END_OF_REPLAY: Final = b"\xff" * SEQUENCE_BYTES
REPLAY_SECONDS: Final = 2.0
REPLAY_AGAIN_SECONDS: Final = 10.0
"""Between two requests for what is missing: each costs the engine the reading of its whole buffer."""
MAX_REPLAYED: Final = 10_000
"""Batches that an engine keeps, unless its `buffer_steps` says otherwise."""
REPORT_SECONDS: Final = 1.0
GATHER_SECONDS: Final = 0.05
"""Pause between two readings: events gather meanwhile, and one waking serves many."""
OVER_BUDGET_SECONDS: Final = 0.25
"""Pause while nothing may be read: 64 threads that look each 50 ms take a part of the budget themselves."""
FIRST_WAIT_SECONDS: Final = 2.0
LONGEST_WAIT_SECONDS: Final = 30.0
"""Before another try to connect: twice as long each time."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where one rank publishes; `replay_port` is None where it answers no requests for what is missing."""

    host: str
    port: int
    replay_port: int | None = None
    topic: str = ""
    rank: int = 0


class Feed:
    """Follows the events at `address` from `start` to `stop`. `report` and `error` are set by its thread."""

    def __init__(self, address: Address, share: Share, memory: Memory, wall: Callable[[], float] = time.time) -> None:
        self._address = address
        self._share = share
        self._memory = memory
        self._wall = wall
        self._ended = threading.Event()
        self._connection: Connection | None = None
        self._ghosts = GhostList(wall(), entries=memory.blocks)
        self._counts: Counter[str] = Counter()
        self._next: int | None = None
        self._rank = address.rank
        self._replayed_at = float("-inf")
        self.report: KvEvents | None = None
        """None until the publisher has greeted for the first time."""
        self.error: SourceError | None = None
        """Why nothing is read now."""
        self.thread = threading.Thread(target=self._run, name=f"kv-events-{address.port}", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._memory.joined()
        self.thread.start()

    def stop(self) -> None:
        """End, at once: does not wait for the thread."""
        self._ended.set()
        if (connection := self._connection) is not None:
            connection.close()

    def _run(self) -> None:
        wait = FIRST_WAIT_SECONDS
        while not self._ended.is_set():
            began = time.monotonic()
            try:
                self._follow()
            except SourceError as error:
                self.error = error
            except OSError as error:
                self.error = UnreadableError(f"{self._address.host}:{self._address.port}: {brief(error)}")
            except Exception as error:  # noqa: BLE001 whatever it is, it ends no more than this connection
                self.error = bug(error)
            self._counts["disconnected"] += 1
            if time.monotonic() - began > LONGEST_WAIT_SECONDS:
                wait = FIRST_WAIT_SECONDS
            self._ended.wait(wait)
            wait = min(LONGEST_WAIT_SECONDS, 2 * wait)
        self._memory.left()

    def _follow(self) -> None:
        """Read until the connection ends. Raises SourceError, OSError."""
        with self._connect(self._address.port, "SUB") as self._connection:
            self._connection.send(zmtp.subscription(self._address.topic.encode()))
            self.report = self._ghosts.report(self._wall(), self._rank, self._counts)
            self.error = None
            reported = time.monotonic()
            while not self._ended.is_set():
                self._round(self._connection)
                if time.monotonic() - reported >= REPORT_SECONDS:
                    reported = time.monotonic()
                    self._count_oversized()
                    self._ghosts.limit(self._memory.blocks)
                    self.report = self._ghosts.report(self._wall(), self._rank, self._counts)
                self._ended.wait(GATHER_SECONDS if self._share.allows() else OVER_BUDGET_SECONDS)

    def _connect(self, port: int, kind: str) -> Connection:
        with self._share.measured():
            return Connection(self._address.host, port, kind, self._memory)

    def _round(self, connection: Connection) -> None:
        """Read what has come, after waiting for some; while nothing may be read, the publisher waits."""
        seconds, due = REPORT_SECONDS, time.thread_time() + SLICE_SECONDS
        while not self._ended.is_set() and self._share.allows():
            if not connection.wait(seconds):
                break
            began, worked = time.thread_time(), self._worked
            with self._share.alone:
                for frames in connection.messages() if connection.receive(0.0) else ():
                    self._message(frames)
            self._share.charge(time.thread_time() - began - (self._worked - worked))
            if time.thread_time() > due:
                break
            seconds = 0.0

    _oversized = 0

    def _count_oversized(self) -> None:
        """Count messages that were skipped; each was one of the sequence, and shows there as a gap."""
        now = self._connection.oversized if self._connection is not None else 0
        self._counts["oversized"] += max(0, now - self._oversized)
        self._oversized = now

    def _message(self, frames: tuple[memoryview, ...]) -> None:
        if len(frames) != 3 or len(frames[1]) != SEQUENCE_BYTES:
            self._counts["bad"] += 1
            return
        number = int.from_bytes(frames[1], "big")
        expected, self._next = self._next, number + 1
        if expected is not None and number < expected:
            # A publisher counts from 0 again once it is started anew.
            self._counts["restarts"] += 1
            self._ghosts.forget(self._wall(), emptied=True)
        elif expected is not None and number > expected:
            self._missing(expected, number)
        self._batch(frames[2])

    def _missing(self, begin: int, end: int) -> None:
        """Fetch the batches from `begin` on, up to `end`; what cannot be had makes the list forget."""
        self._counts["gaps"] += 1
        self._counts["missing"] += end - begin
        first_held = 0
        now = time.monotonic()
        allowed = now - self._replayed_at >= REPLAY_AGAIN_SECONDS and end - begin <= MAX_REPLAYED
        if self._address.replay_port is not None and allowed:
            self._replayed_at = now
            with suppress(SourceError, OSError), self._share.waiting():
                first_held = self._replay(self._address.replay_port, begin, end)
        self._counts["replayed"] += first_held
        if first_held < end - begin:
            self._counts["forgotten"] += 1
            self._ghosts.forget(self._wall())

    def _replay(self, port: int, begin: int, end: int) -> int:
        """Take in the batches from `begin` up to `end`; how many of them there were, in their order."""
        due, expected = time.monotonic() + REPLAY_SECONDS, begin
        with self._connect(port, "DEALER") as connection:
            connection.send(zmtp.message(b"", begin.to_bytes(SEQUENCE_BYTES, "big")))
            while (left := due - time.monotonic()) > 0 and not self._ended.is_set():
                for frames in connection.messages() if connection.receive(left) else ():
                    # Behind an empty frame, and from 0.33 on the topic, are number and batch.
                    if len(frames) < 3 or len(frames[-2]) != SEQUENCE_BYTES or frames[-2] == END_OF_REPLAY:
                        return expected - begin
                    if int.from_bytes(frames[-2], "big") != expected or not self._batch(frames[-1]):
                        return expected - begin
                    expected += 1
                    if expected == end:
                        return end - begin
        return expected - begin

    _worked = 0.0

    def _batch(self, payload: memoryview) -> bool:
        """Take a batch in; False where it was dropped, since decoding has taken what it may."""
        began = time.thread_time()
        try:
            self._share.work(self._steps(payload))
        except OverBudgetError:
            self._counts["skipped"] += 1
            self._ghosts.forget(self._wall())
            return False
        except decode.BadBatchError:
            self._counts["bad"] += 1
            self._ghosts.forget(self._wall())
        finally:
            self._worked += time.thread_time() - began
        return True

    def _steps(self, payload: memoryview) -> Steps[None]:
        batch = decode.batch(payload)
        self._rank = self._rank if batch.rank is None else batch.rank
        yield
        yield from self._ghosts.steps(batch, self._wall(), self._counts)
        self._counts["batches"] += 1

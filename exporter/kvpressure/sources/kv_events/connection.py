"""A connection to an engine's publisher, or to its replay socket: found, greeted, read under deadlines."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType
from typing import Final

from kvpressure.model.errors import (
    DnsError,
    RefusedConnectionError,
    SourceError,
    TimedOutError,
)
from kvpressure.net.addresses import refusal
from kvpressure.printable import brief
from kvpressure.sources.kv_events import zmtp

HANDSHAKE_SECONDS: Final = 5.0
MAX_MESSAGE_BYTES: Final = 4 << 20
"""A step of 131,072 tokens has 0.9 MiB of events."""
MAX_COMMANDS: Final = 16
"""Before a publisher has greeted: there is nothing to say, and each costs."""
_KEEPALIVE: Final = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3))


class HungUpError(SourceError, reason="hung_up"):
    """The publisher has closed the connection."""


class NotZeroMqError(SourceError, reason="not_zeromq"):
    """What answers speaks no ZeroMQ, or too much of it."""


class BlockedAddressError(SourceError, reason="refused_address"):
    """The address is one that is never connected to."""


class Connection:
    """Made by a blocking call of `HANDSHAKE_SECONDS` at most, for a thread of its own. Raises SourceError, OSError."""

    def __init__(self, host: str, port: int, kind: str, room: zmtp.Room) -> None:
        self._where = f"{host}:{port}"
        self._due = time.monotonic() + HANDSHAKE_SECONDS
        self._inbox = zmtp.Inbox(MAX_MESSAGE_BYTES, self._command, room)
        self._greeted = self._unread = False
        self._fresh = 0
        self._error = ""
        self._socket = _connected(host, port)
        try:
            self._greet(kind)
        except BaseException:
            self.close()
            self._inbox.wipe()
            raise

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
        self._inbox.wipe()

    @property
    def oversized(self) -> int:
        """Messages skipped for their size."""
        return self._inbox.oversized

    def close(self) -> None:
        """End it, from any thread: a thread that waits for messages gets none any more."""
        with suppress(OSError):  # the other side was first
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Send what is short enough not to wait for the other side. Raises OSError."""
        self._socket.settimeout(HANDSHAKE_SECONDS)
        self._socket.sendall(data)

    def wait(self, seconds: float) -> bool:
        """Wait for bytes to receive; False where none come for `seconds`. Raises OSError."""
        if self._unread:
            return True
        self._inbox.space()  # what was read is overwritten before, not after
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return bool(poll.poll(1000 * seconds))

    def receive(self, seconds: float) -> bool:
        """Receive some bytes; False where none have come for `seconds`. Raises SourceError, OSError."""
        if self._unread:  # came with the greeting
            self._unread, self._fresh = False, 0
            return True
        self._socket.settimeout(seconds)
        try:
            self._fresh = self._socket.recv_into(self._inbox.space())
        except (TimeoutError, BlockingIOError):
            return False
        if not self._fresh:
            raise HungUpError(f"{self._where} has hung up{self._error}")
        return True

    def messages(self) -> Iterator[tuple[memoryview, ...]]:
        """Yield the messages that are complete with what was received; their frames are good until more is.

        Raises SourceError where the other side speaks no ZeroMQ.
        """
        try:
            for frames in self._inbox.received(self._fresh):
                if frames:
                    yield frames
        except zmtp.ProtocolError as error:
            raise NotZeroMqError(f"{self._where}: {error}") from None

    def _greet(self, kind: str) -> None:
        self._socket.settimeout(HANDSHAKE_SECONDS)
        self._socket.sendall(zmtp.greeting())
        data = b""
        while len(data) < zmtp.GREETING_BYTES:
            self._socket.settimeout(self._left())
            data += (more := self._socket.recv(zmtp.GREETING_BYTES - len(data)))
            if not more:
                raise HungUpError(f"{self._where} has hung up at once")
            if data[:1] != b"\xff":
                break
        try:
            zmtp.check_greeting(data.ljust(zmtp.GREETING_BYTES, b"\0"))
        except zmtp.ProtocolError as error:
            raise NotZeroMqError(f"{self._where}: {error}") from None
        self._socket.sendall(zmtp.ready(kind))
        commands = 0
        while not self._greeted:
            if self.receive(self._left()):
                commands += self._commands_until_greeted()
            if commands > MAX_COMMANDS:
                raise NotZeroMqError(f"{self._where} sends commands without an end instead of greeting")

    def _commands_until_greeted(self) -> int:
        """Return how many commands came; what comes behind the one that ends the greeting is left unread."""
        commands = 0
        try:
            for frames in self._inbox.received(self._fresh):
                if frames:
                    raise NotZeroMqError(f"{self._where} sends messages before it has greeted")
                commands += 1
                self._unread = self._greeted
                if self._greeted or commands > MAX_COMMANDS:
                    break
        except zmtp.ProtocolError as error:
            raise NotZeroMqError(f"{self._where}: {error}") from None
        return commands

    def _left(self) -> float:
        left = self._due - time.monotonic()
        if left <= 0:
            raise TimedOutError(f"{self._where} has not greeted within {HANDSHAKE_SECONDS:g} s")
        return left

    def _command(self, body: bytes) -> None:
        if body.startswith(b"\x05READY"):
            self._greeted = True
        elif body.startswith(b"\x05ERROR"):
            self._error = f": {brief(body[7:].decode('utf-8', 'replace'))}"
        elif body.startswith(b"\x04PING"):
            pong = b"\x04PONG" + body[7:][:16]
            self._socket.settimeout(0)  # nobody waits for a publisher that reads no answers
            self._socket.sendall(bytes([4, len(pong)]) + pong)


def _connected(host: str, port: int) -> socket.socket:
    """Return a connection to the first address that answers and is allowed. Raises SourceError."""
    if reason := refusal(host, link_local=True):
        raise BlockedAddressError(f"{host} is {reason}")
    try:
        addresses = socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    except OSError as error:
        raise DnsError(f"{host} cannot be found: {brief(error.strerror or error)}") from None
    last: OSError | None = None
    for family, kind, proto, _, address in addresses:
        # A name may resolve to anything; a literal address was chosen by an operator (decision 0010).
        if reason := refusal(str(address[0]), link_local=str(address[0]) == host):
            raise BlockedAddressError(f"{host} leads to {address[0]}, {reason}")
        connection = socket.socket(family, kind, proto)
        try:
            connection.settimeout(HANDSHAKE_SECONDS)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEPALIVE:
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            connection.connect(address)
        except OSError as failed:
            connection.close()
            last = failed
        else:
            return connection
    why = "no answer" if isinstance(last, TimeoutError) else brief(last.strerror if last else "it has no address")
    raise RefusedConnectionError(
        f"no connection to {host}:{port}: {why}; was the engine started with --kv-events-config?",
    )

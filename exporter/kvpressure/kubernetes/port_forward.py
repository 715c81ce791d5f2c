"""Forwards a port of a pod to a port of this machine's loopback address, through the API server.

One websocket is one TCP connection in the pod.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kvpressure.kubernetes import Action, KubeError
from kvpressure.kubernetes.client import KubeClient
from kvpressure.printable import brief

if TYPE_CHECKING:
    from kvpressure.kubernetes.websocket import WebSocket

PROTOCOL: Final = "v4.channel.k8s.io"
DATA, ERROR = 0, 1
LONGEST_ERROR_BYTES: Final = 4096
CHUNK_BYTES: Final = 64 * 1024
SETTLE_SECONDS: Final = 0.3
"""A kubelet that cannot connect sends an error on channel 1 soon after the upgrade."""


class Frames:
    """Reads the messages of a websocket with subprotocol `v4.channel.k8s.io`.

    A message is one channel byte and data: channel 0 carries the connection, channel 1 errors. The server
    begins each channel with the port, two bytes little-endian. A connection cannot be half-closed
    (k8s.io/kubelet/pkg/cri/streaming/portforward/websocket.go).

    `error` is what channel 1 has sent so far. Raises KubeError for messages that no kubelet sends.
    """

    def __init__(self, port: int) -> None:
        self._port = port.to_bytes(2, "little")
        self._ports = {DATA: b"", ERROR: b""}
        self._error = b""

    @property
    def error(self) -> str:
        """The error in the pod, "" without one."""
        return self._error.decode(errors="replace")

    def feed(self, message: bytes) -> bytes:
        """Return the connection's bytes in one message."""
        channel, data = (message[0], message[1:]) if message else (DATA, b"")
        if channel not in self._ports:
            raise KubeError(f"the port-forward sent a message for channel {channel}, which was not opened")
        data = self._without_port(channel, data)
        if channel == DATA:
            return data
        self._error = (self._error + data)[:LONGEST_ERROR_BYTES]
        return b""

    def _without_port(self, channel: int, data: bytes) -> bytes:
        received = self._ports[channel]
        missing = 2 - len(received)
        if missing > 0:
            received = self._ports[channel] = received + data[:missing]
            if not self._port.startswith(received):
                raise KubeError("the port-forward is not to the requested port; is a proxy between?")
        return data[max(missing, 0) :]


def explain_forward(error: str, where: str, port: int) -> str:
    """Return the error for a connection that the node could not make."""
    if "refused" in error:
        return (
            f"nothing listens on port {port} in pod {where} (connection refused); "
            "is the server still loading its model, or is it another port? --port chooses one"
        )
    if re.search(r"not (found|running)|no such container|does not exist", error, re.IGNORECASE):
        return f"the node does not run pod {where} any more: {brief(error, 200)}"
    if not error:
        return f"the port-forward to port {port} of pod {where} was closed at once; does its node answer?"
    return f"the port-forward to port {port} of pod {where} failed: {brief(error, 300)}"


class PortForward:
    """One port of one pod; as an async context manager it listens at `url`.

    `problem` is the last error in words for people, "" again as soon as the pod answers.
    """

    def __init__(self, client: KubeClient, namespace: str, pod: str, port: int, scheme: str = "http") -> None:
        self._client = client
        self._namespace, self._pod, self._port, self._scheme = namespace, pod, port, scheme
        self._server: asyncio.Server | None = None
        self._spare: asyncio.Future[Tunnel] | None = None
        self._relays: set[asyncio.Task[None]] = set()
        self.problem = ""
        self.url = ""

    async def __aenter__(self) -> PortForward:
        """Open the first tunnel, so that a refusal is known before sampling. Raises KubeError."""
        tunnel = await self._open()
        try:
            await tunnel.settle(SETTLE_SECONDS)
        except KubeError:
            await tunnel.socket.close()
            raise
        self._spare = asyncio.get_running_loop().create_future()
        self._spare.set_result(tunnel)
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.url = f"{self._scheme}://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        relays = [*self._relays]
        for task in relays:
            task.cancel()
        await asyncio.gather(*relays, return_exceptions=True)
        if self._spare is not None:
            self._spare.cancel()
            # Not awaited itself, so that its cancellation cannot be taken for ours.
            await asyncio.wait({self._spare})
            if not self._spare.cancelled() and self._spare.exception() is None:
                await self._spare.result().socket.close()
        if self._server is not None:
            await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - asyncio runs callbacks in tasks
        self._relays.add(task)
        try:
            tunnel = await self._take()
            await tunnel.relay(reader, writer, self._answered)
        except KubeError as error:
            self.problem = f"{error}"
        except OSError as error:
            self.problem = f"the port-forward to {self._namespace}/{self._pod} broke: {brief(error)}"
        except asyncio.CancelledError:
            pass  # the end of the block; asyncio would print a traceback for a cancelled callback
        finally:
            self._relays.discard(task)
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()

    def _answered(self) -> None:
        self.problem = ""

    async def _take(self) -> Tunnel:
        """Return the tunnel that is ready, or a new one.

        Opening takes several round trips and a poll's deadline may be shorter: then it continues, and the tunnel serves
        the next poll.
        """
        while True:
            if self._spare is None:
                self._spare = asyncio.create_task(self._open())
            opening = self._spare
            try:
                tunnel = await asyncio.shield(opening)
            except KubeError:
                self._spare = None if self._spare is opening else self._spare
                raise
            if self._spare is opening:
                self._spare = None
                if not tunnel.socket.closed:
                    return tunnel

    async def _open(self) -> Tunnel:
        action = Action("get", "pods/portforward", self._namespace, self._pod)
        path = f"/api/v1/namespaces/{self._namespace}/pods/{self._pod}/portforward"
        socket = await self._client.websocket(path, action, {"ports": str(self._port)}, PROTOCOL)
        return Tunnel(socket, self._port, f"{self._namespace}/{self._pod}")


class Tunnel:
    """One websocket: one connection into the pod."""

    def __init__(self, socket: WebSocket, port: int, where: str) -> None:
        self.socket, self._port, self._where = socket, port, where
        self._frames = Frames(port)
        self._early = b""

    async def settle(self, seconds: float) -> None:
        """Wait a moment for an error. Raises KubeError where there is one."""
        end = asyncio.get_running_loop().time() + seconds
        while (left := end - asyncio.get_running_loop().time()) > 0:
            try:
                async with asyncio.timeout(left):
                    message = await self.socket.receive()
            except TimeoutError:
                return
            if not self._take(message):
                raise self._broken()

    async def relay(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answered: Callable[[], None]
    ) -> None:
        """Relay bytes both ways until either side closes. Raises KubeError with the error of the pod's node."""
        up = asyncio.create_task(self._up(reader))
        down = asyncio.create_task(self._down(writer, answered))
        try:
            await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
            if up.done() and up.exception():
                await asyncio.wait({down}, timeout=SETTLE_SECONDS)  # what came before the end says why
            for task in (down, up):
                if task.done():
                    task.result()
        finally:
            for task in (up, down):
                task.cancel()
            await asyncio.gather(up, down, return_exceptions=True)
            await self.socket.close()

    async def _up(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(CHUNK_BYTES):
            await self.socket.send(bytes((DATA,)) + data)

    async def _down(self, writer: asyncio.StreamWriter, answered: Callable[[], None]) -> None:
        while True:
            data, self._early = self._early, b""
            if data:
                writer.write(data)
                await writer.drain()
                answered()
            if not self._take(await self.socket.receive()):
                if self._frames.error:
                    raise self._broken()
                return

    def _take(self, message: bytes | None) -> bool:
        """Return whether the tunnel is still open after this message."""
        if message is not None:
            self._early += self._frames.feed(message)
        return message is not None and not self._frames.error

    def _broken(self) -> KubeError:
        return KubeError(explain_forward(self._frames.error, self._where, self._port))

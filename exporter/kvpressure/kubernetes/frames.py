"""PURE: the messages of a forwarded port.

A websocket with subprotocol `v4.channel.k8s.io` (k8s.io/kubelet/pkg/cri/streaming/portforward/websocket.go).
A message is one channel byte and data: channel 0 carries the connection, channel 1 what went wrong. The server
begins each channel with the port, two bytes little-endian. One websocket is one TCP connection in the pod; it cannot be
half-closed.
"""

from __future__ import annotations

import re
from typing import Final

from kvpressure.kubernetes.errors import KubeError
from kvpressure.printable import brief

PROTOCOL: Final = "v4.channel.k8s.io"
DATA, ERROR = 0, 1
LONGEST_ERROR_BYTES: Final = 4096


class Frames:
    """Takes the server's messages apart.

    `error` is what channel 1 has said so far. Raises KubeError for messages that no kubelet sends.
    """

    def __init__(self, port: int) -> None:
        self._port = port.to_bytes(2, "little")
        self._seen = {DATA: b"", ERROR: b""}
        self._error = b""

    @property
    def error(self) -> str:
        """What went wrong in the pod, "" while nothing did."""
        return self._error.decode(errors="replace")

    def feed(self, message: bytes) -> bytes:
        """Return the connection's bytes in one message."""
        channel, data = (message[0], message[1:]) if message else (DATA, b"")
        if channel not in self._seen:
            raise KubeError(f"the port-forward sent a message for channel {channel}, which was not opened")
        data = self._without_port(channel, data)
        if channel == DATA:
            return data
        self._error = (self._error + data)[:LONGEST_ERROR_BYTES]
        return b""

    def _without_port(self, channel: int, data: bytes) -> bytes:
        seen = self._seen[channel]
        missing = 2 - len(seen)
        if missing > 0:
            seen = self._seen[channel] = seen + data[:missing]
            if not self._port.startswith(seen):
                raise KubeError("the port-forward is not to the port that was asked for; is a proxy cut in?")
        return data[max(missing, 0) :]


def explain_forward(error: str, where: str, port: int) -> str:
    """Return the sentence for a connection that the node could not make."""
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

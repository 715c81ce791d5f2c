"""A gRPC server that plays the kubelet's pod-resources API (v1) on a unix socket.

    python -m tests.stubs.kubelet SOCKET ANSWERS.json

ANSWERS.json is read again whenever it changes: `{"pod_resources": [...]}` with the fields of ListPodResourcesResponse
under the names they have in the .proto file. Beside it, `"status": "UNAVAILABLE"` refuses every call with that gRPC
status and `"hang": true` never answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from google.protobuf import json_format
from grpclib.const import Cardinality, Handler, Status
from grpclib.exceptions import GRPCError
from grpclib.server import Server, Stream

from kvpressure.sources.pod_devices import kubelet as messages

Answers = Mapping[str, Any]


def container(name: str = "vllm", devices: Mapping[str, list[str]] | None = None, *claims: Answers) -> Answers:
    """A container that holds devices, by resource name, and claims."""
    held = [{"resource_name": resource, "device_ids": ids} for resource, ids in (devices or {}).items()]
    return {"name": name, "devices": held, "dynamic_resources": list(claims)}


def pod(name: str, *containers: Answers, namespace: str = "serving") -> Answers:
    """A pod with its containers."""
    return {"name": name, "namespace": namespace, "containers": list(containers)}


def claim(*devices: Answers, name: str = "gpu") -> Answers:
    """A resource claim and the devices it was given."""
    return {"claim_name": name, "claim_namespace": "serving", "claim_resources": list(devices)}


class Kubelet:
    """Answers whatever `answers` holds at the moment of the call; counts the calls of List."""

    def __init__(self, socket: Path, answers: Answers | Callable[[], Answers]) -> None:
        self.socket = socket
        self.answers = answers
        self.lists = 0
        self._server: Server | None = None

    async def start(self) -> None:
        """Listen on a socket made anew, as a restarted kubelet does."""
        self._server = Server([self])
        await self._server.start(path=str(self.socket))

    async def stop(self) -> None:
        """Close and remove the socket, in-flight calls included."""
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None
        self.socket.unlink(missing_ok=True)

    async def __aenter__(self) -> Kubelet:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def __mapping__(self) -> dict[str, Handler]:
        return {
            messages.LIST: Handler(
                self._list,
                Cardinality.UNARY_UNARY,
                messages.ListPodResourcesRequest,
                messages.ListPodResourcesResponse,
            ),
        }

    async def _list(self, stream: Stream[Any, Any]) -> None:
        self.lists += 1
        await stream.recv_message()
        answers = self.answers() if callable(self.answers) else self.answers
        if answers.get("hang"):
            await asyncio.Event().wait()
        if "status" in answers:
            raise GRPCError(Status[answers["status"]], answers.get("message", "refused by the stub"))
        listed = {"pod_resources": answers.get("pod_resources", [])}
        await stream.send_message(json_format.ParseDict(listed, messages.ListPodResourcesResponse()))


class AnswersFile:
    """Answers from a JSON file, read again when it changed; a file half written keeps those of before."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = (0, 0)
        self._answers: Answers = {}

    def __call__(self) -> Answers:
        """Give the newest answers."""
        with contextlib.suppress(OSError, json.JSONDecodeError):
            stat = self._path.stat()
            if (stat.st_mtime_ns, stat.st_size) != self._seen:
                self._answers = json.loads(self._path.read_text())
                self._seen = (stat.st_mtime_ns, stat.st_size)
        return self._answers


async def main(socket: Path, answers: Path) -> None:
    """Serve until told to end."""
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with Kubelet(socket, AnswersFile(answers)):
        sys.stdout.write(f"listening on {socket}\n")
        sys.stdout.flush()
        await ended.wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2])))

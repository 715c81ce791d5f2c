"""`kubectl port-forward` of one pod's port to a free one of this machine's loopback address."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from typing import Final

from kvpressure.kubernetes import KubectlError, KubeError
from kvpressure.kubernetes.kubectl.program import Kubectl, complaint_of
from kvpressure.printable import brief

START_SECONDS: Final = 30.0
"""Until kubectl listens: it reads the pod first, and may run a plugin that logs in."""
SETTLE_SECONDS: Final = 0.5
"""A node that cannot connect is reported soon after the first connection."""
AGAIN_SECONDS: Final = 1.0
"""Between an end of kubectl and its next start: from 1.23 on it ends where the pod refuses a connection."""

_LISTENS: Final = re.compile(rb"Forwarding from 127\.0\.0\.1:(\d+) -> ")
_HANDLES: Final = b"Handling connection"
_LOST: Final = "lost connection to pod"


def explain_forward(complaint: str, where: str, port: int) -> str:
    """Return the sentence for a connection that the node could not make, from what kubectl complains of."""
    if "refused" in complaint:
        return (
            f"nothing listens on port {port} in pod {where} (connection refused); "
            "is the server still loading its model, or is it another port? --port chooses one"
        )
    if re.search(r"not (found|running)|no such container|does not exist", complaint, re.IGNORECASE):
        return f"the node does not run pod {where} any more: {brief(complaint, 200)}"
    if not complaint:
        return f"the port-forward to port {port} of pod {where} was closed at once; does its node answer?"
    return f"the port-forward to port {port} of pod {where} failed: {brief(complaint, 300)}"


class PortForward:
    """One port of one pod; as an async context manager it listens at `url`, and is started again where it ends.

    `problem` is the last error in words for people, "" again as soon as the pod is asked once more.
    """

    def __init__(self, kubectl: Kubectl, namespace: str, pod: str, port: int, scheme: str = "http") -> None:
        self._kubectl = kubectl
        self._namespace = namespace
        self._pod = pod
        self._port = port
        self._scheme = scheme
        self._local = 0
        self._kept: asyncio.Task[None] | None = None
        self._complained = asyncio.Event()
        self.problem = ""

    @property
    def url(self) -> str:
        """The address of the local end."""
        return f"{self._scheme}://127.0.0.1:{self._local}"

    async def __aenter__(self) -> PortForward:
        """Return it once it listens, and the pod has not refused a first connection. Raises KubeError."""
        listening: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._kept = asyncio.create_task(self._keep(listening))
        try:
            async with asyncio.timeout(START_SECONDS):
                await asyncio.wait((listening, self._kept), return_when=asyncio.FIRST_COMPLETED)
            if self._kept.done():
                self._kept.result()
            await self._knock()
        except TimeoutError as error:
            await self.__aexit__()
            raise KubectlError(f"{self._words} did not listen within {START_SECONDS:.0f} s") from error
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._kept is not None:
            self._kept.cancel()
            await asyncio.wait({self._kept})

    @property
    def _words(self) -> str:
        return f"kubectl port-forward pod/{self._pod} of {self._namespace}"

    async def _keep(self, listening: asyncio.Future[None]) -> None:
        while True:
            try:
                await self._once(listening)
            except KubeError as error:
                if not listening.done():
                    raise
                self.problem = f"{error}"
            await asyncio.sleep(AGAIN_SECONDS)

    async def _once(self, listening: asyncio.Future[None]) -> None:
        """Run kubectl until it ends. Raises KubeError where it has not listened."""
        ports = f"{self._local or ''}:{self._port}"
        words = ("port-forward", f"pod/{self._pod}", ports, "--address=127.0.0.1")
        async with self._kubectl.started(*words, namespace=self._namespace) as process:
            complaining = asyncio.create_task(self._complaints(process.stderr))
            listened = False
            try:
                async for line in _lines(process.stdout):
                    if _HANDLES in line:
                        self.problem = ""
                        self._complained.clear()
                    elif match := _LISTENS.match(line):
                        self._local, listened = int(match[1]), True
                        if not listening.done():
                            listening.set_result(None)
                said = await complaining
            finally:
                complaining.cancel()
        if not listened:
            raise KubeError(f"{self._words}: {said or 'it ended before it listened'}")

    async def _complaints(self, stream: asyncio.StreamReader | None) -> str:
        """Keep the newest complaint as the problem, and return it at the end."""
        said = ""
        async for line in _lines(stream):
            text = complaint_of(line)
            if text and not (_LOST in text and said):
                said = text
                self.problem = explain_forward(text, f"{self._namespace}/{self._pod}", self._port)
                self._complained.set()
        return said

    async def _knock(self) -> None:
        """Connect once, so that a refusal is known before sampling. Raises KubeError."""
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", self._local)
            try:
                async with asyncio.timeout(SETTLE_SECONDS):
                    await reader.read(1)
                    await self._complained.wait()
            except TimeoutError:
                pass
            finally:
                writer.close()
        if self.problem:
            raise KubeError(self.problem)


async def _lines(stream: asyncio.StreamReader | None) -> AsyncIterator[bytes]:
    """Yield the lines of a stream; one that is longer than a reader's limit is left out."""
    while stream is not None:
        try:
            line = await stream.readline()
        except ValueError:
            continue
        if not line:
            return
        yield line

"""Runs `kubectl`, as it is on PATH, with its own context, namespace and login; bounded in time and in what is read.

Only flags that kubectl 1.20 has. Each runs in a process group of its own, which ends with this process.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from typing import Any, Final, TypeVar

from kvpressure.kubernetes import ForbiddenError, KubectlError, KubeError, UnauthorizedError
from kvpressure.kubernetes.objects import Object, objects
from kvpressure.printable import brief

PROGRAM: Final = "kubectl"
REQUEST_SECONDS: Final = 15
"""For one request of kubectl's."""
DEADLINE_SECONDS: Final = 60.0
"""For the whole of it: it discovers, tries again, and may run a plugin that logs in."""
END_SECONDS: Final = 1.0
AT_ONCE: Final = 4
MAX_JSON_BYTES: Final = 64 << 20
MAX_COMPLAINT_BYTES: Final = 16 << 10
CHUNK_BYTES: Final = 64 << 10
MISSING: Final = (
    "there is no kubectl on PATH, with which pods are reached: install it (https://kubernetes.io/docs/tasks/tools), or "
    "forward the engine's port where there is one and give its address, such as :8000"
)

_FORBIDDEN = 403
_NOT_FOUND = 404
_UNAUTHORIZED = 401
_STATUS: Final = (
    ("(Forbidden)", _FORBIDDEN),
    ("(NotFound)", _NOT_FOUND),
    ("the server doesn't have a resource type", _NOT_FOUND),
    ("(Unauthorized)", _UNAUTHORIZED),
)
_ANSWERED: Final = "Error from server"
_OF_ITS_LOG: Final = re.compile(r"[EWIF]\d{4} [\d:.]+ ")
"""A line of kubectl's own log, which repeats what the last line says."""

_running: set[int] = set()


@atexit.register
def _end_all() -> None:
    """End what is left where a second Ctrl-C has cut off an orderly end."""
    for group in _running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


class Kubectl:
    """One cluster and namespace: those of kubectl's own context, unless `context` or `namespace` names another."""

    def __init__(self, context: str = "", namespace: str = "") -> None:
        self._flags = (f"--context={context}",) if context else ()
        self._namespace = namespace
        self._free = asyncio.Semaphore(AT_ONCE)

    async def namespace(self) -> str:
        """Return the namespace that is read, "" where kubectl does not say it."""
        if not self._namespace:
            with contextlib.suppress(KubeError):
                words = ("config", "view", "--minify", "--output=jsonpath={..namespace}", *self._flags)
                self._namespace = (await self._output(words, 1024)).decode(errors="replace").strip() or "default"
        return self._namespace

    async def get(self, resource: str, *words: str, namespace: str | None = None) -> Object:
        """Return an object, or a list of them, of `kubectl get RESOURCE`; {} for none. Raises KubeError.

        `words` are names and flags, `namespace` is another than this one's, "*" for all.
        """
        where = self._where(self._namespace if namespace is None else namespace)
        return await self._json(("get", resource, *words, "--output=json", *where))

    async def raw(self, path: str) -> Object:
        """Return the object at a path of the API server, with fields that `get` leaves out. Raises KubeError."""
        return await self._json(("get", f"--raw={path}"))

    async def names(self, resource: str) -> list[str]:
        """Return the names of a resource's objects. Raises KubeError."""
        words = ("get", resource, "--output=name", *self._where(self._namespace))
        listed = (await self._request(words, MAX_JSON_BYTES)).decode(errors="replace").split()
        return [name.rpartition("/")[2] for name in listed]

    async def logs(self, namespace: str, pod: str, *words: str, cap_bytes: int) -> bytes:
        """Return at most `cap_bytes` of a log. Raises KubeError."""
        return await self._request(("logs", pod, *words, *self._where(namespace)), cap_bytes, cut=True)

    @contextlib.asynccontextmanager
    async def started(self, *words: str, namespace: str = "") -> AsyncIterator[asyncio.subprocess.Process]:
        """Yield a kubectl that goes on until the block ends. Raises KubeError where there is none."""
        async with _started((*words, *self._where(namespace), *self._flags)) as process:
            yield process

    def _where(self, namespace: str) -> tuple[str, ...]:
        if namespace == "*":
            return ("--all-namespaces",)
        return (f"--namespace={namespace}",) if namespace else ()

    async def _json(self, words: tuple[str, ...]) -> Object:
        text = await self._request(words, MAX_JSON_BYTES)
        try:
            document = json.loads(text) if text.strip() else {}
        except (ValueError, RecursionError) as error:
            sentence = (
                f"{_named(words)} printed something that is no JSON: {brief(text[:200].decode(errors='replace'))}"
            )
            raise KubectlError(sentence) from error
        return document if isinstance(document, dict) else {}

    async def _request(self, words: tuple[str, ...], cap_bytes: int, *, cut: bool = False) -> bytes:
        return await self._output((*words, f"--request-timeout={REQUEST_SECONDS}s", *self._flags), cap_bytes, cut=cut)

    async def _output(self, words: tuple[str, ...], cap_bytes: int, *, cut: bool = False) -> bytes:
        """Return what one kubectl prints. Raises KubeError, with what it complains of where it fails."""
        complaint = bytearray()
        async with self._free, _started(words) as process:
            try:
                async with asyncio.timeout(DEADLINE_SECONDS):
                    complaining = asyncio.create_task(_keep_head(process.stderr, complaint))
                    try:
                        text = await _read(process.stdout, cap_bytes)
                        if len(text) <= cap_bytes:
                            await process.wait()
                            await complaining
                    finally:
                        complaining.cancel()
            except TimeoutError as error:
                said = f" (it says: {complaint_of(complaint)})" if complaint else ""
                raise KubectlError(
                    f"{_named(words)} did not end within {DEADLINE_SECONDS:.0f} s{said}; run it yourself: does it wait "
                    "for a login?"
                ) from error
        if len(text) > cap_bytes and not cut:
            sentence = f"{_named(words)} printed more than {cap_bytes >> 20} MiB; narrow it with -n, -l or a name"
            raise KubectlError(sentence)
        if process.returncode and len(text) <= cap_bytes:
            raise _failure(words, complaint_of(complaint), process.returncode)
        return text[:cap_bytes]


def items_of(answer: Object) -> list[Object]:
    """Return the objects of what `get` returned: a list, a single object, or nothing."""
    if "items" in answer:
        return objects(answer, "items", limit=100_000)
    return [answer] if answer else []


def complaint_of(text: bytes | bytearray) -> str:
    """Return what kubectl complains of, on one line, without the lines of its log that say it before."""
    lines = [line for line in text.decode(errors="replace").splitlines() if line.strip()]
    return brief(" ".join([line for line in lines if not _OF_ITS_LOG.match(line)] or lines), 400)


def _failure(words: Sequence[str], said: str, code: int) -> KubeError:
    status = next((status for phrase, status in _STATUS if phrase in said), 500 if _ANSWERED in said else 0)
    if status == _FORBIDDEN:
        sentence = f"you may not {' '.join(_plain(words))}: {said}; ask the cluster's administrator for a Role"
        return ForbiddenError(sentence, status, said)
    kind = UnauthorizedError if status == _UNAUTHORIZED else KubectlError
    return kind(f"{_named(words)}: {said or f'it ended with exit code {code}'}", status, said)


def _named(words: Sequence[str]) -> str:
    return " ".join((PROGRAM, *_plain(words)))


def _plain(words: Sequence[str]) -> list[str]:
    """Return the words without the flags that every call has."""
    return [brief(word, 200) for word in words if not word.startswith(("--output", "--request-timeout", "--ignore"))]


@contextlib.asynccontextmanager
async def _started(words: Sequence[str]) -> AsyncIterator[asyncio.subprocess.Process]:
    """Yield a running kubectl, which is ended with the block, with all that it has started. Raises KubeError."""
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            PROGRAM, *words, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe, process_group=0
        )
    except FileNotFoundError as error:
        raise KubectlError(MISSING) from error
    except (OSError, ValueError) as error:  # a null byte in a word is a ValueError
        raise KubectlError(f"kubectl cannot be run: {brief(getattr(error, 'strerror', None) or error)}") from error
    _running.add(process.pid)
    try:
        yield process
    finally:
        # In a task of its own, so that a second cancellation does not leave it half done.
        await asyncio.shield(asyncio.create_task(_end(process)))


async def _end(process: asyncio.subprocess.Process) -> None:
    for ending in (signal.SIGTERM, signal.SIGKILL):
        if process.returncode is not None:
            break
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, ending)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                await process.wait()
    _running.discard(process.pid)
    for stream in (process.stdout, process.stderr):  # else the pipe stays open where not all was read
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(END_SECONDS):
                while stream is not None and await stream.read(CHUNK_BYTES):
                    pass


async def _read(stream: asyncio.StreamReader | None, cap_bytes: int) -> bytes:
    """Return what a stream has, up to one chunk more than `cap_bytes`."""
    chunks, size = list[bytes](), 0
    while stream is not None and size <= cap_bytes and (chunk := await stream.read(CHUNK_BYTES)):
        chunks.append(chunk)
        size += len(chunk)
    return b"".join(chunks)


async def _keep_head(stream: asyncio.StreamReader | None, head: bytearray) -> None:
    """Read a stream to its end, and keep its beginning."""
    while stream is not None and (chunk := await stream.read(CHUNK_BYTES)):
        head += chunk[: max(0, MAX_COMPLAINT_BYTES - len(head))]


ENDING: Final = (signal.SIGTERM, signal.SIGHUP)

T = TypeVar("T")


def run_to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` does; SIGTERM and a lost terminal end it as Ctrl-C does. Raises KeyboardInterrupt for each."""
    try:
        return asyncio.run(work)
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Cancel this task at SIGTERM and SIGHUP, so that every kubectl that runs for it is ended."""
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None  # noqa: S101 - within a coroutine
    handled = []
    with contextlib.suppress(ValueError, RuntimeError):  # another thread than the main one gets no signals
        for number in ENDING:
            loop.add_signal_handler(number, task.cancel)
            handled.append(number)
    try:
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)

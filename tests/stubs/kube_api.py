"""A stub of the Kubernetes API server over real HTTP: list in chunks, watch, bookmarks, and everything that goes wrong.

It keeps to https://kubernetes.io/docs/reference/using-api/api-concepts/ as far as a list-and-watch client can tell.
Objects are plain dictionaries; their resource versions and uids are its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiohttp import web

from kvpressure.kubernetes.watch.connection import ServiceAccount

Object = dict[str, Any]
Fault = Callable[[web.Request], Awaitable[web.StreamResponse]]

KINDS = {"pods": "Pod", "events": "Event", "nodes": "Node"}


@dataclass(frozen=True)
class ReceivedRequest:
    plural: str
    verb: str
    namespace: str
    params: dict[str, str]
    authorization: str


@dataclass
class KubeApi:
    """`async with KubeApi() as api`: `put` and `delete` objects; `faults` take the next requests of a plural and verb.

    `forbidden` holds (plural, verb) pairs that get a 403. `compact()` makes every older version a 410.
    """

    token: str = "secret"
    tls: ssl.SSLContext | None = None
    page_limit: int | None = None
    bookmark_seconds: float = 3600.0
    forbidden: set[tuple[str, str]] = field(default_factory=set)
    faults: dict[tuple[str, str], list[Fault]] = field(default_factory=dict)
    always: dict[tuple[str, str], Fault] = field(default_factory=dict)
    asked: list[ReceivedRequest] = field(default_factory=list)
    open_watches: int = 0
    port: int = 0
    _objects: dict[tuple[str, str, str], Object] = field(default_factory=dict)
    _history: list[tuple[int, str, str, Object]] = field(default_factory=list)
    _version: int = 100
    _compacted: int = 0
    _runner: web.AppRunner | None = None

    async def __aenter__(self) -> KubeApi:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Listen, on the same port as before if there was one."""
        app = web.Application()
        app.router.add_get("/api/v1/{plural}", self._serve)
        app.router.add_get("/api/v1/namespaces/{namespace}/{plural}", self._serve)
        app.router.add_get("/api/v1/namespaces/{namespace}/{plural}/{name}", self._serve)
        self._runner = web.AppRunner(app, shutdown_timeout=0.01, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=self.tls)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Refuse from now on and break every open connection."""
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    def account(self, folder: Path) -> ServiceAccount:
        """A service account that leads here."""
        (folder / "token").write_text(self.token)
        return ServiceAccount(f"http://127.0.0.1:{self.port}", folder)

    def put(self, plural: str, found: Object) -> Object:
        """Create or change an object; watchers are told. Kept is a copy."""
        found = json.loads(json.dumps(found))
        meta = found.setdefault("metadata", {})
        key = (plural, str(meta.get("namespace", "")), str(meta.get("name")))
        kind = "MODIFIED" if key in self._objects else "ADDED"
        self._objects[key] = found
        self._tell(kind, plural, found)
        return found

    def delete(self, plural: str, name: str, namespace: str = "") -> None:
        """Delete an object; watchers are told."""
        self._tell("DELETED", plural, self._objects.pop((plural, namespace, name)))

    def compact(self) -> None:
        """Forget history: watches from any version until now get 410 Gone."""
        self._version += 1
        self._compacted = self._version
        self._history.clear()

    def count(self, plural: str, verb: str) -> int:
        """How often that was asked."""
        return sum(1 for asked in self.asked if (asked.plural, asked.verb) == (plural, verb))

    def _tell(self, kind: str, plural: str, found: Object) -> None:
        self._version += 1
        meta = found.get("metadata")
        if isinstance(meta, dict):
            meta["resourceVersion"] = str(self._version)
        self._history.append((self._version, kind, plural, json.loads(json.dumps(found))))

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        plural, namespace = request.match_info["plural"], request.match_info.get("namespace", "")
        name = request.match_info.get("name", "")
        verb = "get" if name else "watch" if request.query.get("watch") else "list"
        authorization = request.headers.get("Authorization", "")
        self.asked.append(ReceivedRequest(plural, verb, namespace, dict(request.query), authorization))
        if queue := self.faults.get((plural, verb)):
            return await queue.pop(0)(request)
        if fault := self.always.get((plural, verb)):
            return await fault(request)
        if authorization != f"Bearer {self.token}":
            return status(401, "Unauthorized")
        if (plural, verb) in self.forbidden:
            user = 'User "system:serviceaccount:monitoring:kvpressure"'
            where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
            return status(
                403, f'{plural} is forbidden: {user} cannot {verb} resource "{plural}" in API group "" {where}'
            )
        if verb == "watch":
            return await self._watch(request, plural, namespace)
        return self._get(plural, namespace, name) if name else self._list(request, plural, namespace)

    def _get(self, plural: str, namespace: str, name: str) -> web.Response:
        found = self._objects.get((plural, namespace, name))
        return status(404, f'{plural} "{name}" not found') if found is None else web.json_response(found)

    def _matching(self, request: web.Request, namespace: str, found: Object) -> bool:
        terms = [term.split("=", 1) for term in request.query.get("fieldSelector", "").split(",") if term]
        if namespace and _at(found, "metadata.namespace") != namespace:
            return False
        return all(_at(found, path) == value for path, value in terms)

    def _list(self, request: web.Request, plural: str, namespace: str) -> web.Response:
        items = [
            found
            for (known, _, _), found in sorted(self._objects.items())
            if known == plural and self._matching(request, namespace, found)
        ]
        start = int(request.query.get("continue", "0"))
        limit = self.page_limit or len(items) + 1
        meta = {"resourceVersion": str(self._version)}
        if start + limit < len(items):
            meta["continue"] = str(start + limit)
        kind = f"{KINDS[plural]}List"
        page = {"kind": kind, "apiVersion": "v1", "metadata": meta, "items": items[start : start + limit]}
        return web.json_response(page)

    async def _watch(self, request: web.Request, plural: str, namespace: str) -> web.StreamResponse:
        since = int(request.query["resourceVersion"])
        if since < self._compacted:
            return status(410, "too old resource version")
        response = await opened(request)
        self.open_watches += 1
        try:
            async for line in self._lines(request, plural, namespace, since):
                await response.write(line)
        finally:
            self.open_watches -= 1
        await response.write_eof()
        return response

    async def _lines(self, request: web.Request, plural: str, namespace: str, since: int) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        ends = loop.time() + float(request.query["timeoutSeconds"])
        bookmark = loop.time() + self.bookmark_seconds
        while loop.time() < ends:
            if since < self._compacted:
                yield watch_line("ERROR", status_object(410, "too old resource version"))
                return
            for version, kind, known, found in [entry for entry in self._history if entry[0] > since]:
                since = version
                if known == plural and self._matching(request, namespace, found):
                    yield watch_line(kind, found)
            if loop.time() >= bookmark:
                bookmark = loop.time() + self.bookmark_seconds
                yield watch_line("BOOKMARK", {"metadata": {"resourceVersion": str(self._version)}})
                since = self._version
            await asyncio.sleep(0.01)


def _at(found: Any, path: str) -> Any:
    for part in path.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def status_object(code: int, message: str) -> Object:
    """A Status as the API server words it."""
    reason = {401: "Unauthorized", 403: "Forbidden", 410: "Expired"}.get(code, "InternalError")
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }


def status(code: int, message: str) -> web.Response:
    """An answer that is a Status."""
    return web.json_response(status_object(code, message), status=code)


def watch_line(kind: str, found: Any) -> bytes:
    """One event of a watch."""
    return json.dumps({"type": kind, "object": found}).encode() + b"\n"


async def opened(request: web.Request) -> web.StreamResponse:
    """A stream whose head has been sent."""
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    return response


def answers(code: int, message: str = "made to fail") -> Fault:
    """Answer with a Status."""

    async def fault(_: web.Request) -> web.StreamResponse:
        return status(code, message)

    return fault


def says(body: bytes) -> Fault:
    """Answer 200 with these bytes; as a watch, they are its only lines."""

    async def fault(_: web.Request) -> web.StreamResponse:
        return web.Response(body=body, content_type="application/json")

    return fault


async def hangs(request: web.Request) -> web.StreamResponse:
    """Send the head of an answer and then nothing more."""
    response = await opened(request)
    await asyncio.sleep(3600)
    return response


async def never_answers(_: web.Request) -> web.StreamResponse:
    """Do not even send the head."""
    await asyncio.sleep(3600)
    raise AssertionError("unreachable")


def breaks_after(body: bytes) -> Fault:
    """Send these bytes and then break the connection in the middle of the answer."""

    async def fault(request: web.Request) -> web.StreamResponse:
        response = await opened(request)
        await response.write(body)
        with contextlib.suppress(AttributeError):
            request.transport.abort()  # type: ignore[union-attr]
        return response

    return fault


def engine_pod(
    name: str, ip: str = "10.244.3.17", *, node: str = "gpu-1", namespace: str = "llm", **status: Any
) -> Object:
    """A running vLLM pod; keywords replace fields of its container's status."""
    container = {
        "name": "vllm",
        "containerID": f"containerd://{name}",
        "ready": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": "2025-11-03T08:00:00Z"}},
    }
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": f"uid-{name}"},
        "spec": {"nodeName": node, "containers": [{"name": "vllm", "image": "vllm/vllm-openai:v0.11.0", "args": []}]},
        "status": {"phase": "Running", "hostIP": "10.0.0.7", "podIP": ip, "containerStatuses": [container | status]},
    }


def pod_event(uid: str, pod: str, reason: str, count: int = 1, **fields: Any) -> Object:
    """An event on a pod that `engine_pod` made."""
    now = datetime.now(UTC).isoformat()
    return {
        "metadata": {"name": uid, "namespace": "llm", "uid": uid, "creationTimestamp": now},
        "involvedObject": {"kind": "Pod", "namespace": "llm", "name": pod, "uid": f"uid-{pod}"},
        "reason": reason,
        "type": "Warning",
        "count": count,
        "firstTimestamp": now,
        "lastTimestamp": now,
    } | fields


def node(name: str = "gpu-1", memory_pressure: str = "False") -> Object:
    """A node with its condition and its addresses."""
    return {
        "metadata": {"name": name},
        "status": {
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "MemoryPressure", "status": memory_pressure}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.7"}, {"type": "Hostname", "address": name}],
        },
    }

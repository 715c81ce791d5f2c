"""An API server of a few pods: objects, logs, and port-forwards that speak the kubelet's websocket protocol.

As in k8s.io/kubelet/pkg/cri/streaming/portforward/websocket.go: a message is a channel byte and data; each channel
begins with the port in two bytes, little-endian; what cannot be connected is said on channel 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import WSMsgType, web

PROTOCOL = "v4.channel.k8s.io"
ADDRESS = tuple[str, int]


@dataclass
class Cluster:
    """What the API server knows. `engines` says where each pod's ports really are; `forbidden` is "verb resource"."""

    objects: dict[str, dict[str, dict[str, Any]]] = field(default_factory=dict)
    logs: dict[tuple[str, bool], str] = field(default_factory=dict)
    engines: dict[tuple[str, int], ADDRESS] = field(default_factory=dict)
    token: str = ""
    forbidden: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    forwards: int = 0
    open_forwards: int = 0

    def add(self, resource: str, item: dict[str, Any]) -> dict[str, Any]:
        """Store an object; gives it back."""
        self.objects.setdefault(resource, {})[item["metadata"]["name"]] = item
        return item


def status(code: int, message: str) -> web.Response:
    body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code}
    return web.json_response(body, status=code)


def matches(labels: dict[str, str], selector: str) -> bool:
    """Equality terms only."""
    return all(labels.get(term.partition("=")[0]) == term.partition("=")[2] for term in selector.split(",") if term)


class ApiServer:
    """Serves a `Cluster` on loopback."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.app = web.Application(middlewares=[self._authenticate])
        self.app.add_routes(
            [
                web.get("/{api:(?:api|apis/[^/]+)}/v1/namespaces/{namespace}/{resource}", self._list),
                web.get("/{api:(?:api|apis/[^/]+)}/v1/namespaces/{namespace}/{resource}/{name}", self._get),
                web.get("/api/v1/namespaces/{namespace}/pods/{name}/log", self._log),
                web.get("/api/v1/namespaces/{namespace}/pods/{name}/portforward", self._forward),
            ]
        )

    @web.middleware
    async def _authenticate(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        self.cluster.headers.append(dict(request.headers))
        if self.cluster.token and request.headers.get("Authorization") != f"Bearer {self.cluster.token}":
            return status(401, "Unauthorized")
        return await handler(request)

    def _refused(self, request: web.Request, verb: str, resource: str) -> web.Response | None:
        self.cluster.asked.append(f"{verb} {resource}")
        if f"{verb} {resource}" in self.cluster.forbidden:
            where = f'in API group "" in the namespace "{request.match_info["namespace"]}"'
            return status(403, f'User "ada" cannot {verb} resource "{resource}" {where}')
        return None

    def _items(self, request: web.Request) -> dict[str, dict[str, Any]]:
        items = self.cluster.objects.get(request.match_info.get("resource", "pods"), {})
        here = request.match_info["namespace"]
        return {name: item for name, item in items.items() if item["metadata"].get("namespace", "prod") == here}

    async def _list(self, request: web.Request) -> web.Response:
        if refused := self._refused(request, "list", request.match_info["resource"]):
            return refused
        selector = request.query.get("labelSelector", "")
        items = [i for i in self._items(request).values() if matches(i["metadata"].get("labels", {}), selector)]
        return web.json_response({"kind": "List", "items": items})

    async def _get(self, request: web.Request) -> web.Response:
        resource, name = request.match_info["resource"], request.match_info["name"]
        if refused := self._refused(request, "get", resource):
            return refused
        item = self._items(request).get(name)
        return status(404, f'{resource} "{name}" not found') if item is None else web.json_response(item)

    async def _log(self, request: web.Request) -> web.Response:
        if refused := self._refused(request, "get", "pods/log"):
            return refused
        previous = request.query.get("previous") == "true"
        text = self.cluster.logs.get((request.match_info["name"], previous), None if previous else "")
        if text is None:
            return status(400, "previous terminated container not found")
        return web.Response(text="".join(text.splitlines(keepends=True)[-int(request.query["tailLines"]) :]))

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        if refused := self._refused(request, "get", "pods/portforward"):
            return refused
        if request.headers.get("Upgrade", "").lower() != "websocket":
            return status(400, "Upgrade request required")
        socket = web.WebSocketResponse(protocols=(PROTOCOL,))
        await socket.prepare(request)
        self.cluster.forwards += 1
        self.cluster.open_forwards += 1
        try:
            pod, port = request.match_info["name"], int(request.query["ports"])
            await pump(socket, pod, port, self.cluster.engines.get((pod, port), ("127.0.0.1", 1)))
        finally:
            self.cluster.open_forwards -= 1
            await socket.close()
        return socket


async def pump(socket: web.WebSocketResponse, pod: str, port: int, address: ADDRESS) -> None:
    """Carry one forwarded connection to where the pod's port really is."""
    for channel in (0, 1):
        await socket.send_bytes(bytes((channel,)) + port.to_bytes(2, "little"))
    try:
        reader, writer = await asyncio.open_connection(*address)
    except OSError:
        error = f"error forwarding port {port} to pod {pod}, uid : dial tcp4 127.0.0.1:{port}: connection refused"
        await socket.send_bytes(b"\x01" + error.encode())
        return
    up, down = asyncio.create_task(pump_up(socket, writer)), asyncio.create_task(pump_down(socket, reader))
    await asyncio.wait((up, down), return_when=asyncio.FIRST_COMPLETED)
    for task in (up, down):
        task.cancel()
    await asyncio.gather(up, down, return_exceptions=True)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def pump_up(socket: web.WebSocketResponse, writer: asyncio.StreamWriter) -> None:
    async for message in socket:
        assert message.type is WSMsgType.BINARY
        assert message.data[0] == 0, "a client writes to channel 0 only"
        writer.write(message.data[1:])
        await writer.drain()


async def pump_down(socket: web.WebSocketResponse, reader: asyncio.StreamReader) -> None:
    while data := await reader.read(32 * 1024):
        await socket.send_bytes(b"\x00" + data)


@contextlib.asynccontextmanager
async def serving(app: web.Application, context: ssl.SSLContext | None = None) -> AsyncIterator[ADDRESS]:
    """The application on an ephemeral port of loopback."""
    runner = web.AppRunner(app, shutdown_timeout=0.5)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    try:
        yield runner.addresses[0][:2]
    finally:
        await runner.cleanup()


def engine_pod(name: str = "llama-0", **fields: Any) -> dict[str, Any]:
    """A running pod with one vLLM container; `fields` replace those of its only container's status."""
    running = {"state": {"running": {"startedAt": "2026-01-02T03:00:00Z"}}, "ready": True, "restartCount": 0}
    args = ["--model=llama", "--max-num-seqs=64", "--gpu-memory-utilization", "0.9"]
    return {
        "metadata": {"name": name, "namespace": "prod", "uid": f"uid-{name}", "labels": {"app": "llama"}},
        "spec": {
            "nodeName": "gpu-7",
            "containers": [{"name": "vllm", "image": "vllm/vllm-openai:v0.11.0", "args": args}],
        },
        "status": {
            "phase": "Running",
            "podIP": "10.1.2.3",
            "containerStatuses": [{"name": "vllm", **running, **fields}],
        },
    }


def kubeconfig(address: ADDRESS, *, scheme: str = "http", user: dict[str, Any] | None = None, **cluster: Any) -> str:
    """A kubeconfig with one context, `test`, in JSON, which YAML reads too."""
    server = {"server": f"{scheme}://{address[0]}:{address[1]}", **cluster}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "c", "cluster": server}],
            "users": [{"name": "ada", "user": user or {}}],
            "contexts": [{"name": "test", "context": {"cluster": "c", "user": "ada", "namespace": "prod"}}],
        }
    )

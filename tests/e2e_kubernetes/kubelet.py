"""The kubelet's HTTPS port, as far as the API server proxies to it: container logs and port-forwards."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator

from aiohttp import web

from tests.e2e_kubernetes.cluster import KUBELET_PORT, LOGS, Cluster
from tests.e2e_kubernetes.control_plane import NODE_IP
from tests.stubs.portforward import PROTOCOL, pump


def kubelet_app(cluster: Cluster) -> web.Application:
    """Its two paths, as k8s.io/kubernetes/pkg/kubelet/server names them."""

    async def logs(request: web.Request) -> web.Response:
        pod, previous = request.match_info["pod"], request.query.get("previous") == "true"
        folder = LOGS / f"{request.match_info['namespace']}_{pod}_{cluster.uids[pod]}" / "vllm"
        files = sorted(folder.glob("*.log"), key=lambda file: int(file.stem))
        wanted = files[-2:-1] if previous else files[-1:]
        if not wanted:
            return web.Response(status=400, text=f'previous terminated container "vllm" in pod "{pod}" not found')
        lines = wanted[0].read_text().splitlines()[-int(request.query.get("tailLines", 100000)) :]
        parts = [line.split(" ", 3) for line in lines]
        return web.Response(text="".join(f"{stamp} {text}\n" for stamp, _, _, text in parts))

    async def forward(request: web.Request) -> web.StreamResponse:
        pod, port = request.match_info["pod"], int(request.query["port"])
        socket = web.WebSocketResponse(protocols=(PROTOCOL,))
        await socket.prepare(request)
        await pump(socket, pod, port, (cluster.ips[pod], port))
        return socket

    app = web.Application()
    app.add_routes(
        [
            web.get("/containerLogs/{namespace}/{pod}/{container}", logs),
            web.get("/portForward/{namespace}/{pod}", forward),
        ]
    )
    return app


@contextlib.asynccontextmanager
async def kubelet(cluster: Cluster, context: ssl.SSLContext) -> AsyncIterator[None]:
    """Serving on the node's address."""
    runner = web.AppRunner(kubelet_app(cluster), access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    await web.TCPSite(runner, NODE_IP, KUBELET_PORT, ssl_context=context).start()
    try:
        yield
    finally:
        await runner.cleanup()

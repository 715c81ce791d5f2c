"""The kubelet's HTTPS port, as far as the API server proxies to it: container logs, and port-forwards.

Port-forwards are the kubelet's own code (`apiserver/kubelet`), which asks here for the addresses of pods.
"""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from aiohttp import web

from tests.e2e_kubernetes.cluster import KUBELET_PORT, LOGS, Cluster
from tests.e2e_kubernetes.control_plane import NODE_IP, ControlPlane
from tests.support.processes import running

BEHIND_PORT = 10249


def kubelet_app(cluster: Cluster) -> web.Application:
    """The path of logs, as k8s.io/kubernetes/pkg/kubelet/server names it, and the addresses of pods."""

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

    async def pod_ip(request: web.Request) -> web.Response:
        ip = cluster.ips.get(request.match_info["pod"])
        return web.Response(status=404) if ip is None else web.Response(text=ip)

    app = web.Application()
    app.add_routes(
        [
            web.get("/containerLogs/{namespace}/{pod}/{container}", logs),
            web.get("/podIP/{pod}", pod_ip),
        ]
    )
    return app


@contextlib.asynccontextmanager
async def kubelet(cluster: Cluster, plane: ControlPlane, folder: Path) -> AsyncIterator[None]:
    """Serving on the node's address."""
    runner = web.AppRunner(kubelet_app(cluster), access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", BEHIND_PORT).start()
    pki = plane.authority.directory
    flags = {
        "listen": f"{NODE_IP}:{KUBELET_PORT}",
        "behind": f"http://127.0.0.1:{BEHIND_PORT}",
        "certificate": pki / "apiserver.pem",
        "key": pki / "apiserver.key",
    }
    command = (plane.programs.kubelet, *(f"-{name}={value}" for name, value in flags.items()))
    try:
        async with running(command, folder / "kubelet.log"):
            yield
    finally:
        await runner.cleanup()

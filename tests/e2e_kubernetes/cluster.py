"""The objects of a run, and the node's part in them: statuses, pod addresses with simulated engines behind them, logs.

There is no scheduler, no controller and no kubelet: pods are bound when they are made, and what the kubelet would do is
done here, through the API.
"""

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aiohttp import web

from bench.simulator.scenarios import episode
from bench.simulator.server import scaled_clock, simulator_app
from bench.simulator.service import SimulatedServer
from tests.e2e_kubernetes.api import Api, Object
from tests.e2e_kubernetes.control_plane import NODE_IP, run

NODE, OTHER_NODE = "gpu-7", "gpu-8"
NAMESPACE = "llm"
PORT = 8000
KUBELET_PORT = 10250
LOGS = Path("/var/log/pods")
RUNNING = {"phase": "Running"}


def namespace(name: str, **labels: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def engine_spec(name: str, node: str, **metadata: Any) -> Object:
    """A pod that anybody would recognise as vLLM."""
    args = ["--model=meta-llama/Llama-3.1-8B", "--max-num-seqs=64", "--gpu-memory-utilization=0.9", f"--port={PORT}"]
    container = {
        "name": "vllm",
        "image": "vllm/vllm-openai:v0.11.0",
        "args": args,
        "ports": [{"name": "http", "containerPort": PORT}],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }
    spec = {"nodeName": node, "automountServiceAccountToken": False, "containers": [container]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": {"app": "llama"}, **metadata},
        "spec": spec,
    }


def now_text(t: float | None = None) -> str:
    return datetime.fromtimestamp(time.time() if t is None else t, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def container_status(restarts: int = 0, ended: Mapping[str, Any] | None = None, **state: Any) -> Object:
    """The container as a kubelet tells it: running, unless a `state` says otherwise."""
    current = state or {"running": {"startedAt": now_text()}}
    return {
        "name": "vllm",
        "image": "vllm/vllm-openai:v0.11.0",
        "imageID": "",
        "containerID": f"containerd://{restarts:064x}",
        "ready": "running" in current,
        "restartCount": restarts,
        "state": current,
        **({"lastState": {"terminated": ended}} if ended else {}),
    }


def terminated(reason: str, exit_code: int) -> Object:
    return {"reason": reason, "exitCode": exit_code, "startedAt": now_text(time.time() - 600), "finishedAt": now_text()}


@dataclass
class Engines:
    """Simulated vLLM servers on addresses of their own; they can be switched off and on."""

    running: dict[str, web.AppRunner] = field(default_factory=dict)
    addresses: set[str] = field(default_factory=set)

    async def start(self, ip: str, *, seed: int = 0) -> None:
        if ip not in self.addresses:
            await run("ip", "address", "add", f"{ip}/32", "dev", "lo")
            self.addresses.add(ip)
        start = time.time()
        scenario = episode("kv_cache_pressure", seed)
        one_rank = replace(scenario, engine=replace(scenario.engine, ranks=1))  # a pod here holds one GPU
        server = SimulatedServer(one_rank, seed, start - 200.0)
        runner = web.AppRunner(simulator_app(server, scaled_clock(start, 1.0)), access_log=None, shutdown_timeout=0.5)
        await runner.setup()
        await web.TCPSite(runner, ip, PORT).start()
        self.running[ip] = runner

    async def stop(self, ip: str) -> None:
        if runner := self.running.pop(ip, None):
            await runner.cleanup()

    async def stop_all(self) -> None:
        for ip in [*self.running]:
            await self.stop(ip)


@dataclass
class Cluster:
    """What the administrator, the scheduler and the kubelet do, in one."""

    api: Api
    engines: Engines = field(default_factory=Engines)
    ips: dict[str, str] = field(default_factory=dict)
    uids: dict[str, str] = field(default_factory=dict)

    async def set_up(self) -> None:
        """Nodes and the namespace of the engines, with the service account that no controller makes here."""
        for name, ip in ((NODE, NODE_IP), (OTHER_NODE, "10.0.0.8")):
            labels = {"nvidia.com/gpu.present": "true", "kubernetes.io/hostname": name}
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "labels": labels}}
            await self.api.create("/api/v1/nodes", node)
            await self.node_status(name, ip)
        await self.api.create("/api/v1/namespaces", namespace(NAMESPACE))
        await self.service_account(NAMESPACE, "default")
        template = {"metadata": {"labels": {"app": "llama"}}, "spec": engine_spec("x", "")["spec"]}
        template["spec"].pop("nodeName")
        deployment = {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "llama", "namespace": NAMESPACE},
            "spec": {"replicas": 0, "selector": {"matchLabels": {"app": "llama"}}, "template": template},
        }
        await self.api.create(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments", deployment)

    async def node_status(self, name: str, ip: str) -> None:
        conditions = {"Ready": True, "MemoryPressure": False, "DiskPressure": False}
        status = {
            "addresses": [{"type": "InternalIP", "address": ip}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": KUBELET_PORT}},
            "conditions": [
                {"type": kind, "status": str(value), "lastTransitionTime": now_text(), "lastHeartbeatTime": now_text()}
                for kind, value in conditions.items()
            ],
        }
        await self.api.merge(f"/api/v1/nodes/{name}/status", {"status": status})

    async def service_account(self, where: str, name: str) -> None:
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": where}}
        await self.api.create(f"/api/v1/namespaces/{where}/serviceaccounts", account)

    async def start_pod(self, name: str, ip: str, node: str = NODE, **metadata: Any) -> None:
        """A pod with an engine that answers on its IP."""
        await self.engines.start(ip, seed=len(self.uids))
        made = await self.api.create(f"/api/v1/namespaces/{NAMESPACE}/pods", engine_spec(name, node, **metadata))
        self.ips[name], self.uids[name] = ip, made["metadata"]["uid"]
        await self.pod_status(name, container_status())

    async def pod_status(self, name: str, container: Object, **status: Any) -> None:
        """What the kubelet says."""
        ready = {"type": "Ready", "status": str(container["ready"]), "lastTransitionTime": now_text()}
        told = {
            "phase": "Running",
            "hostIP": NODE_IP,
            "podIP": self.ips[name],
            "podIPs": [{"ip": self.ips[name]}],
            "startTime": now_text(),
            "conditions": [ready],
            "containerStatuses": [container],
            **status,
        }
        await self.api.merge(f"{self.path(name)}/status", {"status": told})

    async def restart(self, name: str, restarts: int, reason: str, exit_code: int) -> None:
        """The container ended and runs again: the engine's counters begin anew."""
        await self.engines.stop(self.ips[name])
        waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container"}}
        ended = terminated(reason, exit_code)
        await self.pod_status(name, container_status(restarts, ended, **waiting))
        await self.engines.start(self.ips[name], seed=restarts)
        await self.pod_status(name, container_status(restarts, ended))

    async def delete(self, name: str) -> None:
        """As `kubectl delete` and then the kubelet: gracefully, then for good."""
        await self.api.delete(self.path(name))
        await self.engines.stop(self.ips[name])
        await self.api.delete(self.path(name), grace_seconds=0)

    async def evict(self, name: str) -> None:
        """Through the Eviction API, as a drain does; the pod stays until its grace is over."""
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": NAMESPACE}}
        await self.api.create(f"{self.path(name)}/eviction", eviction)

    async def event(self, name: str, reason: str, message: str, kind: str = "Warning") -> None:
        """What a kubelet or scheduler reports of a pod."""
        involved = {"kind": "Pod", "namespace": NAMESPACE, "name": name, "uid": self.uids[name], "apiVersion": "v1"}
        t = now_text()
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{name}.", "namespace": NAMESPACE},
            "involvedObject": involved,
            "reason": reason,
            "message": message,
            "type": kind,
            "count": 1,
            "firstTimestamp": t,
            "lastTimestamp": t,
            "source": {"component": "kubelet", "host": NODE},
        }
        await self.api.create(f"/api/v1/namespaces/{NAMESPACE}/events", event)

    def log(self, name: str, *lines: str, restarts: int = 0) -> None:
        """Lines as containerd writes them, for those who may read the node's logs."""
        folder = LOGS / f"{NAMESPACE}_{name}_{self.uids[name]}" / "vllm"
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / f"{restarts}.log"
        stamp = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")
        with file.open("a") as out:
            out.writelines(f"{stamp} stderr F {line}\n" for line in lines)
        file.chmod(0o640)

    def path(self, name: str) -> str:
        return f"/api/v1/namespaces/{NAMESPACE}/pods/{name}"

    async def ended(self) -> None:
        """Every engine down."""
        with contextlib.suppress(OSError):
            await self.engines.stop_all()

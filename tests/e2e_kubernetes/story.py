"""What happens in a run, chapter by chapter, and what must be seen of it."""

import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e_kubernetes.api import Api
from tests.e2e_kubernetes.chart import NAMESPACE as MONITORING
from tests.e2e_kubernetes.chart import RELEASE, Chart
from tests.e2e_kubernetes.cluster import (
    NAMESPACE,
    NODE,
    OTHER_NODE,
    Cluster,
    container_status,
    engine_spec,
)
from tests.e2e_kubernetes.control_plane import ControlPlane
from tests.e2e_kubernetes.exporter import Exporter
from tests.e2e_kubernetes.eyes import RETRY_SECONDS, Eyes
from tests.e2e_kubernetes.gpus import write_answers
from tests.e2e_kubernetes.report import Timeline
from tests.e2e_kubernetes.wire import Wire
from tests.support.processes import eventually, running

SOCKETS = Path("/var/lib/kubelet/pod-resources")
VALUES: Mapping[str, Any] = {
    "podResources": {"enabled": True},
    "logs": {"enabled": True},
    "config": {
        "gpu": {"vendors": ["nvidia"]},
        "pod_resources": {"interval_seconds": 1.0},
    },
}


@dataclass
class Story:
    """A run under way."""

    line: Timeline
    plane: ControlPlane
    api: Api
    cluster: Cluster
    chart: Chart
    wire: Wire
    exporter: Exporter
    folder: Path

    @property
    def answers(self) -> Path:
        """What the kubelet's pod-resources say."""
        return self.folder / "pod-resources.json"

    @property
    def eyes(self) -> Eyes:
        """What the exporter shows."""
        return Eyes(self.line, self.exporter)

    async def engines_found(self) -> None:
        """Pods of this node and no other, with the limits in their arguments."""
        self.line.chapter("Engines come")
        await self.cluster.start_pod("llama-0", "10.244.7.10")
        await self.cluster.start_pod("llama-1", "10.244.7.11")
        await self.cluster.start_pod("elsewhere", "10.244.8.10", OTHER_NODE)
        await self.eyes.polled("two pods of this node are polled, the other node's is not", "llama-0", "llama-1")

        async def judged() -> object:
            return await self.exporter.values("score_ratio", namespace=NAMESPACE, pod="llama-0")

        await self.line.see("their pages are read and judged", judged, within=60)
        await self.eyes.see_value(
            "limit_value", 64, "max_num_seqs of the pod's arguments is a limit", pod="llama-0", limit="max_num_seqs"
        )
        await self.eyes.see_value(
            "limit_declared", 0, "a limit that nobody declared is told", pod="llama-0", limit="max_output_tokens"
        )

    async def hostile_pods(self) -> None:
        """No pod sends the exporter anywhere but to the pod's own address."""
        self.line.chapter("Pods that lie")
        wishes = {"kvpressure.io/port": "10250@10.0.0.7:80", "kvpressure.io/path": "//10.0.0.7/x"}
        spec = {**engine_spec("liar", NODE, annotations=wishes)}
        made = await self.api.create(f"/api/v1/namespaces/{NAMESPACE}/pods", spec)
        self.cluster.ips["liar"], self.cluster.uids["liar"] = "10.244.7.66", made["metadata"]["uid"]
        await self.cluster.pod_status("liar", container_status())
        made = await self.api.create(f"/api/v1/namespaces/{NAMESPACE}/pods", engine_spec("looper", NODE))
        self.cluster.ips["looper"], self.cluster.uids["looper"] = "127.0.0.1", made["metadata"]["uid"]
        await self.cluster.pod_status("looper", container_status())
        await self.cluster.start_pod("later", "10.244.7.12")
        await self.eyes.polled(
            "neither an annotated host nor a loopback address is polled", "llama-0", "llama-1", "later"
        )
        for name in ("liar", "looper"):
            await self.api.delete(self.cluster.path(name), grace_seconds=0)
        await self.cluster.delete("later")
        await self.eyes.polled("a deleted pod is not polled any more", "llama-0", "llama-1")

    async def gpus_mapped(self) -> None:
        """Which GPU an engine holds, from the kubelet: its socket cannot be read, then can, then is made anew."""
        self.line.chapter("GPUs of engines")

        async def refused() -> object:
            (told,) = await self.exporter.sources("pod_resources")
            if told["up"] or "not allowed to connect" not in told["error"]:
                raise LookupError(f"it says: {told['error']}")
            return True

        write_answers(self.answers, "llama-0", "llama-1")
        _may_read(SOCKETS, 0o750)
        async with self._kubelet() as first:
            await self.line.see("a socket directory of root's alone is one source down, with the reason", refused)
            await self.eyes.polled("everything else goes on", "llama-0", "llama-1")
            _may_read(SOCKETS, 0o755)
            _may_read(SOCKETS / "kubelet.sock", 0o666)
            await self.eyes.mapped("the engines' GPUs are known as soon as it may be read", "llama-0", "llama-1")
            await first.end()
        async with self._kubelet() as second:
            write_answers(self.answers, "llama-1")

            async def listening() -> bool:
                return (SOCKETS / "kubelet.sock").is_socket()

            await eventually(listening, second)
            _may_read(SOCKETS / "kubelet.sock", 0o666)

            async def followed() -> object:
                return not await self.exporter.values("engine_gpu_info", pod="llama-0")

            await self.line.see("a restarted kubelet is found again: llama-0 has lost its GPU", followed)
            write_answers(self.answers, "llama-0", "llama-1")
            await self.eyes.mapped("and has it again", "llama-0", "llama-1")

    async def logs_read(self) -> None:
        """Lines of the node's log files, read as a member of their group."""
        self.line.chapter("Logs")
        self.cluster.log("llama-0", "INFO 01-01 00:00:00 [kv_cache_utils.py:1] GPU KV cache size: 20,000 tokens")

        async def followed() -> object:
            return [one for one in await self.exporter.sources("logs") if one["up"] and "/llama-0/" in one["target"]]

        await self.line.see("the log of a container is followed", followed)
        self.cluster.log(
            "llama-0", "ERROR 01-01 00:00:01 [core.py:1] torch.OutOfMemoryError: CUDA out of memory. Tried to"
        )
        await self.eyes.see_value(
            "log_events_total", 1, "a device OOM in the log is counted", pod="llama-0", kind="device_oom"
        )

    async def restarts_told(self) -> None:
        """How a container ended."""
        self.line.chapter("Containers end")
        await self.cluster.restart("llama-0", 1, "OOMKilled", 137)
        await self.eyes.see_value("container_restarts_total", 1, "a restart is counted", pod="llama-0")
        await self.eyes.see_value(
            "container_last_termination_info", 1, "as OOMKilled, 137: host memory", pod="llama-0", reason="OOMKilled"
        )
        await self.cluster.restart("llama-1", 2, "Error", 1)
        await self.eyes.see_value(
            "container_last_termination_info", 1, "and an Error as one: not host memory", pod="llama-1", reason="Error"
        )
        await self.eyes.see_value(
            "symptom", 1, "which is evidence: host_oom holds for llama-0", pod="llama-0", symptom="host_oom"
        )
        await self.eyes.see_value("symptom", 0, "and does not for llama-1", pod="llama-1", symptom="host_oom")

    async def moved_and_evicted(self) -> None:
        """Pods leave in every way there is."""
        self.line.chapter("Engines leave")
        await self.cluster.delete("llama-1")
        await self.cluster.start_pod("llama-1", "10.244.8.11", OTHER_NODE)
        await self.eyes.polled("a pod that moved to another node is that node's", "llama-0")
        await self.cluster.start_pod("llama-2", "10.244.7.12")
        await self.eyes.polled("its replacement is polled", "llama-0", "llama-2")
        await self.cluster.evict("llama-2")
        await self.eyes.polled("a pod evicted through the API is dropped while it terminates", "llama-0")
        await self.api.delete(self.cluster.path("llama-2"), grace_seconds=0)
        await self.cluster.start_pod("llama-3", "10.244.7.13")
        await self.eyes.polled("a third comes", "llama-0", "llama-3")
        await self.cluster.event("llama-3", "Evicted", "The node was low on resource: memory.")
        ended = container_status(0, terminated={"reason": "Error", "exitCode": 137})
        await self.cluster.pod_status("llama-3", ended, phase="Failed", reason="Evicted", message="low on memory")
        await self.eyes.polled("a pod that the kubelet evicted is not polled", "llama-0")
        await self.eyes.see_value(
            "kubernetes_events_total", 1, "and its event is counted", pod="llama-3", reason="Evicted"
        )
        await self.api.delete(self.cluster.path("llama-3"), grace_seconds=0)

    async def api_server_away(self) -> None:
        """The API server is stopped for a while."""
        self.line.chapter("The API server is stopped")
        await self.plane.stop()

        async def told() -> object:
            return any(not one["up"] for one in await self.exporter.sources("kubernetes"))

        await self.line.see("the source says so", told)
        await self.eyes.read_on("the engines known last are polled on", "llama-0")
        await self.plane.start()
        self.line.note("it is back")
        await self.cluster.start_pod("llama-4", "10.244.7.14")
        await self.eyes.polled("it is found again: a new pod is polled", "llama-0", "llama-4", within=RETRY_SECONDS)
        await self.eyes.kubernetes_up()

    async def history_gone(self) -> None:
        """Cut off, while pods change and etcd forgets: the watch cannot go on where it was (410 Gone)."""
        self.line.chapter("Cut off, while history is compacted")
        pods = "/api/v1/pods"
        version = (await self.api.get(pods, limit="1"))["metadata"]["resourceVersion"]
        await self.wire.cut()
        await self.cluster.delete("llama-4")
        await self.cluster.start_pod("llama-5", "10.244.7.15")
        for at in range(5):
            await self.cluster.pod_status("llama-5", container_status(at))
        revision = await self.plane.compact()
        await self.plane.stop()
        await self.plane.start()
        self.line.note(f"etcd was compacted at revision {revision}, the API server has an empty cache")
        event = await self.api.first_event(pods, version)
        code = event["object"].get("code")
        self.line.hold("a watch from where the exporter was is answered with 410 Gone", code == 410, event)
        await self.eyes.read_on("meanwhile the engines known last are polled on", "llama-0")
        await self.wire.join()
        await self.eyes.polled(
            "what happened in between is known by a new list", "llama-0", "llama-5", within=RETRY_SECONDS
        )

    async def permission_taken(self) -> None:
        """The ClusterRoleBinding is deleted, and made again."""
        self.line.chapter("The permission is taken away")
        name = f"{MONITORING}-{RELEASE}"
        path = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
        binding = await self.api.get(f"{path}/{name}")
        await self.api.delete(f"{path}/{name}")
        await self.wire.drop()

        async def told() -> object:
            errors = [str(one["error"]) for one in await self.exporter.sources("kubernetes") if not one["up"]]
            return [text for text in errors if "pods" in text and "verbs: [list, watch]" in text]

        await self.line.see("/targets says which permission is missing and the rule that gives it", told)
        await self.eyes.read_on("the engines known last are polled on", "llama-0", "llama-5")
        await self.cluster.start_pod("llama-6", "10.244.7.16")
        fresh = {key: binding[key] for key in ("apiVersion", "kind", "roleRef", "subjects")}
        await self.api.create(path, {**fresh, "metadata": {"name": name}})
        self.line.note("it is given back")
        await self.eyes.polled("and all is known again", "llama-0", "llama-5", "llama-6", within=RETRY_SECONDS)
        await self.eyes.kubernetes_up()

    async def ended(self) -> None:
        """SIGTERM, as a kubelet sends it."""
        self.line.chapter("The end")
        code = await self.exporter.process.end(signal.SIGTERM)
        self.line.hold(
            "the exporter ends by itself with exit code 0", code == 0, self.exporter.process.output()[-2000:]
        )
        said = self.exporter.process.output()
        self.line.hold("without a traceback in its log", "Traceback" not in said, said[-3000:])

    def _kubelet(self) -> Any:
        command = (sys.executable, "-m", "tests.stubs.kubelet", str(SOCKETS / "kubelet.sock"))
        return running((*command, str(self.answers)), self.folder / "pod-resources.log")


def _may_read(path: Path, mode: int) -> None:
    path.chmod(mode)

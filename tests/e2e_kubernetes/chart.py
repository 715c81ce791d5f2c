"""The chart, installed by helm into the running API server, and the pod that its DaemonSet would make."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.e2e_kubernetes.api import Api, Object, RefusedError
from tests.e2e_kubernetes.cluster import namespace
from tests.e2e_kubernetes.control_plane import ControlPlane, run
from tests.support import built
from tests.support.tools import FIXTURES

RELEASE = "kvpressure"
NAMESPACE = "monitoring"
DEFINITIONS = ("podmonitors", "prometheusrules")
IMAGE = {"image": {"repository": "registry.example/kvpressure"}}


@dataclass(frozen=True, slots=True)
class Chart:
    """The release; `kubeconfig` is the administrator's."""

    control_plane: ControlPlane
    api: Api
    kubeconfig: Path

    async def define(self) -> None:
        """The Prometheus operator's kinds, so that the chart finds them; and the namespace."""
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        for name in DEFINITIONS:
            text = (FIXTURES / "schemas" / f"monitoring.coreos.com_{name}.yaml").read_text()
            await self.api.create(path, yaml.safe_load(text))
        for name in DEFINITIONS:
            await self._established(f"{path}/{name}.monitoring.coreos.com")
        await self.api.create("/api/v1/namespaces", namespace(NAMESPACE))

    async def install(self, values: Mapping[str, Any]) -> list[Object]:
        """Install or upgrade; gives what helm says it made."""
        file = self.kubeconfig.with_name("values.json")
        file.write_text(json.dumps({**IMAGE, **values}))
        common = ("--kubeconfig", str(self.kubeconfig), "--namespace", NAMESPACE)
        await self._helm("upgrade", "--install", RELEASE, str(built.chart()), "--values", str(file), *common)
        manifest = await self._helm("get", "manifest", RELEASE, *common)
        return [item for item in yaml.safe_load_all(manifest) if item]

    async def uninstall(self) -> None:
        common = ("--kubeconfig", str(self.kubeconfig), "--namespace", NAMESPACE)
        await self._helm("uninstall", RELEASE, *common)

    async def pod(self, node: str) -> Object:
        """The pod of the DaemonSet for a node, as its controller would make it."""
        daemon_set = await self.api.get(f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/{RELEASE}")
        template = daemon_set["spec"]["template"]
        metadata = {**template["metadata"], "name": f"{RELEASE}-{node}", "namespace": NAMESPACE}
        spec = {**template["spec"], "nodeName": node}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    async def admitted(self, pod: Object, level: str) -> str:
        """What Pod Security says to the pod in a namespace that enforces `level`: "" when it may run."""
        where = f"level-{level}"
        labels = {"pod-security.kubernetes.io/enforce": level}
        manifest = namespace(where, **labels)
        await self.api.apply(f"/api/v1/namespaces/{where}", manifest)
        account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": RELEASE, "namespace": where}}
        await self.api.apply(f"/api/v1/namespaces/{where}/serviceaccounts/{RELEASE}", account)
        moved = {**pod, "metadata": {**pod["metadata"], "namespace": where}}
        try:
            await self.api.create(f"/api/v1/namespaces/{where}/pods", moved, dryRun="All")
        except RefusedError as refused:
            return str(refused)
        return ""

    async def token(self) -> str:
        """A token of the exporter's service account, as the kubelet would get it for the pod."""
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{RELEASE}/token"
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 3600},
        }
        return str((await self.api.create(path, request))["status"]["token"])

    async def config(self, name: str) -> dict[str, str]:
        """The data of a ConfigMap."""
        return dict((await self.api.get(f"/api/v1/namespaces/{NAMESPACE}/configmaps/{name}"))["data"])

    async def _helm(self, *arguments: str) -> str:
        folder = self.kubeconfig.parent
        homes = {f"HELM_{kind}_HOME": str(folder / "helm") for kind in ("CACHE", "CONFIG", "DATA")}
        return await run(
            self.control_plane.programs.helm, *arguments, env={"HOME": str(folder), "PATH": "/bin", **homes}
        )

    async def _established(self, path: str) -> None:
        while True:
            conditions = (await self.api.get(path)).get("status", {}).get("conditions") or ()
            if any(one["type"] == "Established" and one["status"] == "True" for one in conditions):
                return
            await asyncio.sleep(0.1)


def write_kubeconfig(path: Path, server: str, ca: Path, user: Mapping[str, Any], where: str = NAMESPACE) -> Path:
    """A kubeconfig with one context, in JSON, which YAML reads too."""
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "e2e",
        "clusters": [{"name": "e2e", "cluster": {"server": server, "certificate-authority": str(ca)}}],
        "users": [{"name": "e2e", "user": dict(user)}],
        "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": "e2e", "namespace": where}}],
    }
    path.write_text(json.dumps(config))
    path.chmod(0o600)
    return path

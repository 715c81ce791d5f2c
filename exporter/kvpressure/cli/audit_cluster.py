"""Lists the objects of a live cluster for the audit, with the user's kubeconfig. Secrets are never read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kvpressure.kubernetes import Action, KubeError
from kvpressure.kubernetes.client import KubeClient
from kvpressure.kubernetes.kubeconfig import Config, load_config
from kvpressure.tools.audit import Manifests, Problem, from_objects
from kvpressure.tools.audit.model import Place

NAME: Final = "cluster"


@dataclass(frozen=True, slots=True)
class Listed:
    """A kind to list: path of its API, plural and kind; an API that is not installed is left out."""

    api: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def resource(self) -> str:
        """Its name in RBAC and kubectl, as `podmonitors.monitoring.coreos.com`."""
        _, _, group_version = self.api.partition("/apis/")
        return ".".join(filter(None, (self.plural, group_version.partition("/")[0])))


LISTED: Final = (
    Listed("/api/v1", "pods", "Pod"),
    Listed("/api/v1", "configmaps", "ConfigMap"),
    Listed("/api/v1", "services", "Service"),
    Listed("/apis/apps/v1", "deployments", "Deployment"),
    Listed("/apis/apps/v1", "statefulsets", "StatefulSet"),
    Listed("/apis/apps/v1", "daemonsets", "DaemonSet"),
    Listed("/apis/apps/v1", "replicasets", "ReplicaSet"),
    Listed("/apis/batch/v1", "jobs", "Job"),
    Listed("/apis/batch/v1", "cronjobs", "CronJob"),
    Listed("/apis/autoscaling/v2", "horizontalpodautoscalers", "HorizontalPodAutoscaler"),
    Listed("/apis/keda.sh/v1alpha1", "scaledobjects", "ScaledObject"),
    Listed("/apis/leaderworkerset.x-k8s.io/v1", "leaderworkersets", "LeaderWorkerSet"),
    Listed("/apis/ray.io/v1", "rayservices", "RayService"),
    Listed("/apis/serving.kserve.io/v1beta1", "inferenceservices", "InferenceService"),
    Listed("/apis/serving.kserve.io/v1alpha1", "llminferenceservices", "LLMInferenceService"),
    Listed("/apis/serving.kserve.io/v1alpha1", "servingruntimes", "ServingRuntime"),
    Listed("/apis/monitoring.coreos.com/v1", "podmonitors", "PodMonitor"),
    Listed("/apis/monitoring.coreos.com/v1", "servicemonitors", "ServiceMonitor"),
    Listed("/apis/monitoring.coreos.com/v1", "prometheusrules", "PrometheusRule"),
    Listed("/apis/serving.kserve.io/v1alpha1", "clusterservingruntimes", "ClusterServingRuntime", namespaced=False),
)

EVERYWHERE: Final = "*"
_CHUNK: Final = 500
_NOT_INSTALLED: Final = 404
_FORBIDDEN: Final = 403


def read_cluster(kubeconfig: str | None, context: str | None, namespaces: Sequence[str]) -> Manifests:
    """Return the manifests in the namespaces ("*" for all), or in the context's own. Raises KubeError.

    A kind that may not be listed is a problem of the result.
    """
    try:
        config = load_config(Path(kubeconfig).expanduser() if kubeconfig else None, context or "")
    except KubeError as error:
        raise KubeError(f"kubeconfig: {error}") from error
    try:
        given = asyncio.run(_read(config, tuple(namespaces) or (config.namespace,)))
    except KubeError as error:
        raise KubeError(f"{config.server}: {error}") from error
    # In a few namespaces only, monitors may lie in another.
    return given if EVERYWHERE in namespaces else Manifests(given.items, given.problems)


async def _read(config: Config, namespaces: Sequence[str]) -> Manifests:
    found: list[dict[str, Any]] = []
    problems: list[Problem] = []
    async with KubeClient(config) as client:
        for kind in LISTED:
            for namespace in namespaces if kind.namespaced else (EVERYWHERE,):
                try:
                    found += await _list(client, kind, namespace)
                except KubeError as error:
                    if not error.status:
                        raise
                    if error.status != _NOT_INSTALLED:
                        problems.append(_refused(error, kind.resource, namespace))
    return from_objects(found, NAME, problems)


async def _list(client: KubeClient, kind: Listed, namespace: str) -> list[dict[str, Any]]:
    """Return the items of a list, which come without their kind, with it."""
    within = "" if namespace == EVERYWHERE else f"/namespaces/{namespace}"
    action = Action("list", kind.resource, "" if namespace == EVERYWHERE else namespace)
    items = await client.items(f"{kind.api}{within}/{kind.plural}", action, limit=_CHUNK)
    return [{**item, "kind": kind.kind} for item in items]


def _refused(error: KubeError, name: str, namespace: str) -> Problem:
    where = "" if namespace == EVERYWHERE else f" in namespace {namespace}"
    why = f"you may not list them (RBAC: list {name})" if error.status == _FORBIDDEN else error.message or error.status
    return Problem(f"{name} are left out{where}: {why}", Place(NAME, None))

"""Lists the objects of a live cluster for the audit, with the user's kubeconfig. Secrets are never read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from kvpressure.kubernetes import Action, KubeError
from kvpressure.kubernetes.client import KubeClient
from kvpressure.kubernetes.kubeconfig import Config, load_config
from kvpressure.tools.audit import Manifests, Problem, from_objects
from kvpressure.tools.audit.model import Place

NAME: Final = "cluster"

LISTED: Final = (
    ("/api/v1", "Pod", "ConfigMap", "Service"),
    ("/apis/apps/v1", "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"),
    ("/apis/batch/v1", "Job", "CronJob"),
    ("/apis/autoscaling/v2", "HorizontalPodAutoscaler"),
    ("/apis/keda.sh/v1alpha1", "ScaledObject"),
    ("/apis/leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"),
    ("/apis/ray.io/v1", "RayService"),
    ("/apis/serving.kserve.io/v1beta1", "InferenceService"),
    ("/apis/serving.kserve.io/v1alpha1", "LLMInferenceService", "ServingRuntime"),
    ("/apis/monitoring.coreos.com/v1", "PodMonitor", "ServiceMonitor", "PrometheusRule"),
    ("/apis/serving.kserve.io/v1alpha1", "ClusterServingRuntime"),
)
"""The path of an API, and the kinds of it to list; an API that is not installed is left out."""
_CLUSTER_WIDE: Final = "ClusterServingRuntime"

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
        for api, kind in ((api, kind) for api, *kinds in LISTED for kind in kinds):
            for namespace in (EVERYWHERE,) if kind == _CLUSTER_WIDE else namespaces:
                try:
                    found += await _list(client, api, kind, namespace)
                except KubeError as error:
                    if not error.status:
                        raise
                    if error.status != _NOT_INSTALLED:
                        problems.append(_refused(error, _resource(api, kind), namespace))
    return from_objects(found, NAME, problems)


async def _list(client: KubeClient, api: str, kind: str, namespace: str) -> list[dict[str, Any]]:
    """Return the items of a list, which come without their kind, with it."""
    within = "" if namespace == EVERYWHERE else f"/namespaces/{namespace}"
    action = Action("list", _resource(api, kind), "" if namespace == EVERYWHERE else namespace)
    items = await client.items(f"{api}{within}/{kind.lower()}s", action, limit=_CHUNK)
    return [{**item, "kind": kind} for item in items]


def _resource(api: str, kind: str) -> str:
    """Return a kind's name in RBAC and kubectl, as `podmonitors.monitoring.coreos.com`."""
    group = api.partition("/apis/")[2].partition("/")[0]
    return f"{kind.lower()}s{'.' if group else ''}{group}"


def _refused(error: KubeError, name: str, namespace: str) -> Problem:
    where = "" if namespace == EVERYWHERE else f" in namespace {namespace}"
    why = f"you may not list them (RBAC: list {name})" if error.status == _FORBIDDEN else error.message or error.status
    return Problem(f"{name} are left out{where}: {why}", Place(NAME, None))

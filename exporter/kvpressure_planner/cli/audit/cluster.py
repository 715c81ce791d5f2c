"""Lists the objects of a live cluster for the audit, with `kubectl get`, kind by kind. Secrets are never read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

from kvpressure.kubernetes import KubeError, UnauthorizedError
from kvpressure.kubernetes.kubectl.program import Kubectl, ended_by_signals, items_of, run_to_the_end
from kvpressure_planner.audit import Manifests, Problem, from_objects
from kvpressure_planner.audit.model import Place

NAME: Final = "cluster"

LISTED: Final = (
    "pods",
    "configmaps",
    "services",
    "deployments.apps",
    "statefulsets.apps",
    "daemonsets.apps",
    "replicasets.apps",
    "jobs.batch",
    "cronjobs.batch",
    "horizontalpodautoscalers.v2.autoscaling",
    "scaledobjects.keda.sh",
    "leaderworkersets.leaderworkerset.x-k8s.io",
    "rayservices.ray.io",
    "inferenceservices.serving.kserve.io",
    "llminferenceservices.serving.kserve.io",
    "servingruntimes.serving.kserve.io",
    "podmonitors.monitoring.coreos.com",
    "servicemonitors.monitoring.coreos.com",
    "prometheusrules.monitoring.coreos.com",
    "clusterservingruntimes.serving.kserve.io",
)
"""Kinds as `kubectl get` takes them; one that is not installed is left out."""
_CLUSTER_WIDE: Final = "clusterservingruntimes.serving.kserve.io"

EVERYWHERE: Final = "*"
_NOT_INSTALLED: Final = 404
_FORBIDDEN: Final = 403


def read_cluster(context: str | None, namespaces: Sequence[str]) -> Manifests:
    """Return the manifests in the namespaces ("*" for all), or in the context's own. Raises KubeError.

    A kind that may not be listed is a problem of the result.
    """
    kubectl = Kubectl(context or "")
    given = run_to_the_end(_read(kubectl, tuple(namespaces) or ("",)))
    # In a few namespaces only, monitors may lie in another.
    return given if EVERYWHERE in namespaces else Manifests(given.items, given.problems)


async def _read(kubectl: Kubectl, namespaces: Sequence[str]) -> Manifests:
    wanted = [(kind, "" if kind == _CLUSTER_WIDE else where) for kind in LISTED for where in namespaces]
    with ended_by_signals():
        # The first alone: it logs in, and fills the cache of discovery for the others.
        first, *others = dict.fromkeys(wanted)
        listed = [await _list(kubectl, *first), *await asyncio.gather(*(_list(kubectl, *other) for other in others))]
    items_listed = [item for items, _ in listed for item in items]
    return from_objects(items_listed, NAME, [problem for _, problem in listed if problem is not None])


async def _list(kubectl: Kubectl, kind: str, namespace: str) -> tuple[list[dict[str, Any]], Problem | None]:
    """Return the objects of a kind, and why they cannot be listed. Raises KubeError where nothing can be."""
    try:
        return [dict(item) for item in items_of(await kubectl.get(kind, namespace=namespace))], None
    except KubeError as error:
        if not error.status or isinstance(error, UnauthorizedError):
            raise
        return [], None if error.status == _NOT_INSTALLED else _refused(error, kind, namespace)


def _refused(error: KubeError, kind: str, namespace: str) -> Problem:
    where = f" in namespace {namespace}" if namespace not in ("", EVERYWHERE) else ""
    why = f"you may not list them (RBAC: list {kind})" if error.status == _FORBIDDEN else error.message
    return Problem(f"{kind} are left out{where}: {why}", Place(NAME, None))

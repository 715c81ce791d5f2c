"""Lists what the audit looks at in a live cluster, with the user's kubeconfig. Secrets are never read."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import httpx2
from lightkube import Client, KubeConfig
from lightkube.config.kubeconfig import DEFAULT_KUBECONFIG, SingleConfig
from lightkube.core.exceptions import ApiError
from lightkube.core.exceptions import ConfigError as KubeConfigError
from lightkube.generic_resource import create_global_resource, create_namespaced_resource, get_generic_resource
from lightkube.resources import apps_v1, autoscaling_v2, batch_v1, core_v1

from kvpressure.audit import Manifests, Problem, from_objects
from kvpressure.audit.model import Place
from kvpressure.config.small_file import read_text
from kvpressure.config.strict_yaml import loose

NAME: Final = "cluster"

BUILT_IN: Final[tuple[Any, ...]] = (
    *(core_v1.Pod, core_v1.ConfigMap, core_v1.Service),
    *(apps_v1.Deployment, apps_v1.StatefulSet, apps_v1.DaemonSet, apps_v1.ReplicaSet),
    *(batch_v1.Job, batch_v1.CronJob, autoscaling_v2.HorizontalPodAutoscaler),
)

CUSTOM: Final = (
    ("keda.sh", "v1alpha1", "ScaledObject", "scaledobjects"),
    ("leaderworkerset.x-k8s.io", "v1", "LeaderWorkerSet", "leaderworkersets"),
    ("serving.kserve.io", "v1beta1", "InferenceService", "inferenceservices"),
    ("serving.kserve.io", "v1alpha1", "LLMInferenceService", "llminferenceservices"),
    ("serving.kserve.io", "v1alpha1", "ServingRuntime", "servingruntimes"),
    ("monitoring.coreos.com", "v1", "PodMonitor", "podmonitors"),
    ("monitoring.coreos.com", "v1", "ServiceMonitor", "servicemonitors"),
    ("monitoring.coreos.com", "v1", "PrometheusRule", "prometheusrules"),
)
"""Group, version, kind and plural of what else is listed in namespaces; an API that is not installed is left out."""

CUSTOM_GLOBAL: Final = (("serving.kserve.io", "v1alpha1", "ClusterServingRuntime", "clusterservingruntimes"),)

MAX_KUBECONFIG_BYTES: Final = 4 << 20
_CHUNK: Final = 500
_NOT_INSTALLED: Final = 404
_FORBIDDEN: Final = 403


class ClusterError(Exception):
    """The cluster cannot be read at all; the message says what to do."""


def read_cluster(kubeconfig: str | None, context: str | None, namespaces: Sequence[str]) -> Manifests:
    """Read the namespaces given ("*" for all), or the context's own. Raises ClusterError.

    What may not be listed is a problem of the answer, and of nothing else.
    """
    config = _config(kubeconfig, context)
    client: Any = Client(config=config)
    found: list[dict[str, Any]] = []
    problems: list[Problem] = []
    for resource, namespace in _resources(tuple(namespaces) or (config.namespace,)):
        try:
            listed = client.list(resource, namespace=namespace, chunk_size=_CHUNK)
            found += [{**one.to_dict(), "kind": resource._api_info.resource.kind} for one in listed]  # noqa: SLF001
        except ApiError as error:
            if error.status.code != _NOT_INSTALLED:
                problems.append(_refused(error, resource, namespace))
        except (httpx2.HTTPError, ValueError) as error:
            raise ClusterError(f"{config.cluster.server}: {error or type(error).__name__}; check --context") from error
    given = from_objects(found, NAME, problems)
    # In a few namespaces only, monitors may lie in another.
    return given if "*" in namespaces else Manifests(given.items, given.problems)


def _resources(namespaces: Sequence[str]) -> Iterator[tuple[Any, str | None]]:
    for resource in (*BUILT_IN, *(_custom(kind, create_namespaced_resource) for kind in CUSTOM)):
        for namespace in namespaces:
            yield resource, namespace
    for kind in CUSTOM_GLOBAL:
        yield _custom(kind, create_global_resource), None


def _custom(kind: tuple[str, str, str, str], create: Callable[..., Any]) -> Any:
    """Lightkube keeps one class per kind in the process."""
    group, version, name, _ = kind
    known: Callable[[str, str], Any] = get_generic_resource
    return known(f"{group}/{version}", name) or create(*kind)


def _refused(error: ApiError, resource: Any, namespace: str | None) -> Problem:
    info = resource._api_info  # noqa: SLF001 - lightkube has no other way to tell a class's plural
    name = ".".join(filter(None, (info.plural, info.resource.group)))
    where = "" if namespace in {None, "*"} else f" in namespace {namespace}"
    if error.status.code == _FORBIDDEN:
        return Problem(f"{name} are left out{where}: you may not list them (RBAC: list {name})", Place(NAME, None))
    return Problem(f"{name} are left out{where}: {error.status.message or error.status.code}", Place(NAME, None))


def _config(kubeconfig: str | None, context: str | None) -> SingleConfig:
    try:
        config = _load(kubeconfig).get(context)
    except (KubeConfigError, KeyError, OSError, ValueError, TypeError, AttributeError) as error:
        raise ClusterError(f"kubeconfig: {error}; give --kubeconfig or --context") from error
    if config is None:
        raise ClusterError("kubeconfig: no current context; give --context")
    return config


def _load(kubeconfig: str | None) -> KubeConfig:
    """The file given, the first of $KUBECONFIG that exists, ~/.kube/config, or the pod's own service account."""
    listed = [kubeconfig] if kubeconfig else os.environ.get("KUBECONFIG", "").split(os.pathsep)
    named = [path for path in listed if path]
    path = next((path for path in named if Path(path).exists()), named[0] if named else None)
    if path is None:
        try:
            return KubeConfig.from_service_account()
        except KubeConfigError:
            path = DEFAULT_KUBECONFIG
    text = read_text(Path(path).expanduser(), max_bytes=MAX_KUBECONFIG_BYTES)
    return KubeConfig.from_dict(loose(text, path, max_chars=MAX_KUBECONFIG_BYTES), fname=path)

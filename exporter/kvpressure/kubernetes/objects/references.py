"""Names of objects on the command line: `pod/NAME`, `deploy/NAME` and the like. PURE."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvpressure.kubernetes import KubeError
from kvpressure.kubernetes.objects import mapping, objects, text, texts


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of workload: its name in kubectl, and its resource as kubectl takes it, with its group.

    Where there are `labels`, in which {} is the name, its pods are found by them.
    """

    short: str
    resource: str
    labels: str = ""


POD: Final = Kind("pod", "pods")
_KINDS: Final[Mapping[Kind, tuple[str, ...]]] = {
    POD: ("pod", "pods", "po"),
    Kind("deploy", "deployments.apps"): ("deploy", "deployment", "deployments"),
    Kind("statefulset", "statefulsets.apps"): ("sts", "statefulset", "statefulsets"),
    Kind("replicaset", "replicasets.apps"): ("rs", "replicaset", "replicasets"),
    Kind("daemonset", "daemonsets.apps"): ("ds", "daemonset", "daemonsets"),
    Kind("service", "services"): ("svc", "service", "services"),
    Kind(
        "leaderworkerset",
        "leaderworkersets",
        labels="leaderworkerset.sigs.k8s.io/name={},leaderworkerset.sigs.k8s.io/worker-index=0",
    ): ("lws", "leaderworkerset", "leaderworkersets"),
    Kind("inferenceservice", "inferenceservices", labels="serving.kserve.io/inferenceservice={}"): (
        "isvc",
        "inferenceservice",
        "inferenceservices",
    ),
}
_BY_WORD: Final = {word: kind for kind, words in _KINDS.items() for word in words}
_METRICS: Final = re.compile(r"(?<=/)(?P<name>[^/]+)/metrics$")
"""The usual path after an object's name; `deploy/metrics` is a Deployment of that name."""

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Reference:
    """An object named on the command line."""

    kind: Kind
    name: str

    def __str__(self) -> str:
        return f"{self.kind.short}/{self.name}"


@dataclass(frozen=True, slots=True)
class ReferencedPod:
    """A pod, and the workload it was found through (None where the pod itself or a selector was named)."""

    pod: Mapping[str, Any]
    through: Reference | None = None


def is_reference(word: str) -> bool:
    """Return whether a word names an object in a cluster rather than an address; `/metrics` may follow it.

    >>> [is_reference(word) for word in ("deploy/llama", "po/x/metrics", "sts/metrics", "http://pod/x", "gpu-7:80")]
    [True, True, True, False, False]
    """
    kind, slash, name = _METRICS.sub(r"\g<name>", word).partition("/")
    return bool(slash) and kind.lower() in _BY_WORD and "/" not in name and ":" not in name


def parse_reference(word: str) -> Reference:
    """Read `kind/name`. Raises KubeError for a name that no object can have."""
    kind, _, name = _METRICS.sub(r"\g<name>", word).partition("/")
    if not _NAME.fullmatch(name):
        raise KubeError(f"{word!r} names no object: names are lower-case letters, digits, - and .")
    return Reference(_BY_WORD[kind.lower()], name)


def selector_text(selector: Any) -> str:
    """Return a `LabelSelector`, or a service's mapping, as a query of the API server; "" selects nothing.

    >>> selector_text({"matchLabels": {"app": "llama"}, "matchExpressions": [{"key": "v", "operator": "Exists"}]})
    'app=llama,v'
    """
    labels, expressions = mapping(selector, "matchLabels"), objects(selector, "matchExpressions")
    if not {"matchLabels", "matchExpressions"} & set(mapping(selector)):
        labels = mapping(selector)
    terms = [f"{key}={value}" for key, value in labels.items() if isinstance(value, str)]
    if len(terms) < len(labels):
        return ""
    parts = [*terms, *map(_expression, expressions)]
    return ",".join(parts) if all(parts) else ""


def _expression(expression: Mapping[str, Any]) -> str:
    """Return the term of an expression, "" for an invalid one: without it the selector would select more."""
    key, values = text(expression, "key"), ",".join(texts(expression, "values"))
    forms = {"In": f"{key} in ({values})", "NotIn": f"{key} notin ({values})", "Exists": key, "DoesNotExist": f"!{key}"}
    return forms.get(text(expression, "operator"), "") if key else ""

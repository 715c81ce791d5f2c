"""How many pods an object asks for, and which autoscalers change that."""

from __future__ import annotations

from typing import Any

from kvpressure.config.strict_yaml import Path
from kvpressure.tools.audit.engine import Replicas
from kvpressure.tools.audit.manifests import Item, Manifests, get, text


def replicas(item: Item, path: Path, given: Manifests) -> Replicas:
    """Pods by the number at `path`; an autoscaler among what was given that targets the object has the last word."""
    for scaler in given.of("HorizontalPodAutoscaler", "ScaledObject"):
        if targets(scaler, item):
            low = "minReplicas" if scaler.kind == "HorizontalPodAutoscaler" else "minReplicaCount"
            return scaled(scaler, ("spec",), (low, low.replace("min", "max")), f"{scaler.kind} {scaler.name}")
    return counted(item, path)


def counted(item: Item, path: Path) -> Replicas:
    """Return a plain number of pods; absent means one."""
    value, key = get(item.data, *path), str(path[-1])
    if value is None:
        return Replicas(1, f"{key} is not set, which means 1", item.place(path), key)
    count = _count(value)
    why = f"{key}: {text(value)}" if count is not None else f"{key} is {text(value)!r}, which is not a number"
    return Replicas(count, why, item.place(path), key)


def scaled(item: Item, at: Path, names: tuple[str, str], who: str) -> Replicas:
    """Bounds of an autoscaler: at least one pod unless it says otherwise."""
    low, high = (get(item.data, *at, name) for name in names)
    floor, ceiling = 1 if low is None else _count(low), _count(high)
    why = f"{who} keeps {text(floor) or '?'} to {text(ceiling) or '?'} pods"
    return Replicas(floor, why, item.place((*at, names[0])), names[0], ceiling)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def targets(scaler: Item, item: Item) -> bool:
    """Whether an autoscaler is for this object."""
    reference = get(scaler.data, "spec", "scaleTargetRef")
    # KEDA's default kind is Deployment; a HorizontalPodAutoscaler has to name it.
    kind = text(get(reference, "kind")) or "Deployment"
    same_namespace = not scaler.namespace or not item.namespace or scaler.namespace == item.namespace
    return text(get(reference, "name")) == item.name and kind == item.kind and same_namespace

"""Which GPU a pod asks for: by the labels of nodes that it selects."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from kvpressure.commandline.numbers import whole
from kvpressure.tools.audit.manifests import get, mapping, sequence, strings, text

GPU_ANNOTATION: Final = "kvpressure.io/gpu"
"""Annotation: the GPU that the engine gets, as `kvpressure plan --gpu` takes it."""

# NVIDIA's and AMD's own labels, those of GKE, Karpenter, CoreWeave and others: the key says that it is a GPU's name.
_LABELS: Final = re.compile(
    r"gpu[./_-](product|name|model|type|class)|accelerator|instance-gpu-name|product-name", re.IGNORECASE
)
_TERMS: Final = ("nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
_SLICE: Final = re.compile(r"nvidia\.com/mig-[\w.]+")


def slice_asked(resources: Mapping[str, Any]) -> str:
    """Return the part of a GPU (MIG) that a container asks for, "" where it asks for none.

    Its memory is not the GPU's.
    """
    names = (name for kind in ("limits", "requests") for name in mapping(get(resources, kind)))
    return next((name for name in names if _SLICE.match(name)), "")


def gpu_text(pod: Mapping[str, Any], annotations: Mapping[str, str]) -> str:
    """Return the GPU's name as written on the pod or in what it selects nodes by; "" where neither says one."""
    return annotations.get(GPU_ANNOTATION, "").strip() or next(filter(None, _selected(pod)), "")


def _selected(pod: Mapping[str, Any]) -> Iterator[str]:
    for key, value in strings(pod.get("nodeSelector")).items():
        if _LABELS.search(key):
            yield value
    terms = [*sequence(get(pod, "affinity", *_TERMS)), *sequence(pod.get("nodeSelectorTerms"))]
    for term in terms:
        for one in sequence(get(term, "matchExpressions")):
            expression = mapping(one)
            values = sequence(expression.get("values"))
            # Several values leave open which it gets.
            if expression.get("operator") == "In" and len(values) == 1 and _LABELS.search(text(expression.get("key"))):
                yield text(values[0])


def gpus_asked(resources: Mapping[str, Any]) -> tuple[int | str | None, str]:
    """How many GPUs a container's resources ask for and under which name; None and NVIDIA's where they ask for none."""
    for kind in ("limits", "requests"):
        for name, count in mapping(get(resources, kind)).items():
            if name.endswith("/gpu"):
                number = whole(text(count))
                return (text(count) if number is None else int(number)), name
    return None, "nvidia.com/gpu"


def of_memory(requests: Any, limits: Any) -> dict[str, dict[str, Any]]:
    """Return memory as pods ask for it, without what is not given."""
    known = {"requests": requests, "limits": limits}
    return {name: {"memory": value} for name, value in known.items() if value is not None}


def shared_memory(spec: Mapping[str, Any], pod: Mapping[str, Any]) -> str:
    """Return what makes /dev/shm of a pod's container larger than a container's 64 MiB, "" for nothing."""
    volumes = {text(get(volume, "name")): volume for volume in sequence(pod.get("volumes"))}
    for mount in sequence(spec.get("volumeMounts")):
        if text(get(mount, "mountPath")).rstrip("/") == "/dev/shm":  # noqa: S108 - a path in their container
            return f"volume {text(get(mount, 'name'))} at /dev/shm" if text(get(mount, "name")) in volumes else ""
    return "hostIPC: true" if pod.get("hostIPC") is True else ""

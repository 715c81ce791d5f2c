"""The pods that references and a selector name, as kubectl lists them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

from kvpressure.kubernetes import KubeError
from kvpressure.kubernetes.kubectl.program import Kubectl, items_of
from kvpressure.kubernetes.objects import Object, dns_name, mapping, text
from kvpressure.kubernetes.objects.references import POD, Reference, ReferencedPod, selector_text

_NOT_FOUND = 404


async def find_pods(kubectl: Kubectl, references: Sequence[Reference], selector: str = "") -> list[ReferencedPod]:
    """Return each pod of `references` once, running ones first, then by name. Raises KubeError for missing objects."""
    pods_by_name: dict[str, ReferencedPod] = {}
    for reference in references:
        for pod in await _behind(kubectl, reference):
            pods_by_name.setdefault(_pod_name(pod.pod), pod)
    if selector:
        pods = await _list(kubectl, selector)
        if not pods:
            where = await kubectl.namespace()
            raise KubeError(f"no pod in namespace {where} has the labels {selector}; kubectl get pods --show-labels")
        for listed in pods:
            pods_by_name.setdefault(_pod_name(listed), ReferencedPod(listed))
    return sorted(
        pods_by_name.values(), key=lambda pod: (text(pod.pod, "status", "phase") != "Running", _pod_name(pod.pod))
    )


async def get_pods(kubectl: Kubectl, namespace: str, names: Sequence[str]) -> dict[str, Object]:
    """Return the pods that there are by name, as they are now, with one request. Raises KubeError."""
    answer = await kubectl.get(POD.resource, *names, "--ignore-not-found", namespace=namespace)
    return {_pod_name(pod): pod for pod in items_of(answer)}


async def _behind(kubectl: Kubectl, reference: Reference) -> list[ReferencedPod]:
    if reference.kind is POD:
        return [ReferencedPod(await _named(kubectl, reference))]
    if reference.kind.labels:
        selector = reference.kind.labels.format(reference.name)
    else:
        selector = selector_text(mapping(await _named(kubectl, reference), "spec", "selector"))
    pods = await _list(kubectl, selector) if selector else []
    if not pods:
        where = await kubectl.namespace()
        raise KubeError(f"{reference} in namespace {where} has no pods; kubectl -n {where} describe {reference}")
    return [ReferencedPod(pod, reference) for pod in pods]


async def _named(kubectl: Kubectl, reference: Reference) -> Object:
    """Return the object itself. Raises KubeError, which names objects of similar names."""
    try:
        return await kubectl.get(reference.kind.resource, reference.name)
    except KubeError as error:
        if error.status != _NOT_FOUND:
            raise
    names: list[str] = []
    with suppress(KubeError):  # there are no names to suggest where listing is forbidden
        names = await kubectl.names(reference.kind.resource)
    raise KubeError(_missing(reference, await kubectl.namespace(), names), _NOT_FOUND)


def _missing(reference: Reference, namespace: str, names: Sequence[str]) -> str:
    sentence = f"there is no {reference} in namespace {namespace}"
    begins = [name for name in names if name.startswith(reference.name) or reference.name.startswith(name)]
    close = begins[:3] or get_close_matches(reference.name, names, n=3, cutoff=0.6)
    if close:
        return f"{sentence}; did you mean {' or '.join(f'{reference.kind.short}/{name}' for name in close)}?"
    resource = reference.kind.resource.partition(".")[0]
    if names:
        shown = ", ".join(sorted(names)[:5]) + (", ..." if len(names) > 5 else "")
        return f"{sentence}; its {resource} are {shown}"
    return f"{sentence}, which has no {resource} that you may list; choose another with -n"


async def _list(kubectl: Kubectl, selector: str) -> list[Object]:
    return items_of(await kubectl.get(POD.resource, f"--selector={selector}"))


def _pod_name(pod: Mapping[str, Any]) -> str:
    """Return the pod's name, which is part of later requests. Raises KubeError for an invalid name or namespace."""
    name = dns_name(pod, "metadata", "name")
    if not name or not dns_name(pod, "metadata", "namespace"):
        raise KubeError("kubectl answered with something that is no pod; is a proxy between?")
    return name

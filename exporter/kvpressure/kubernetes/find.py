"""From what was named to the pods behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import Any

from kvpressure.kubernetes import Action, KubeError
from kvpressure.kubernetes.client import KubeClient
from kvpressure.kubernetes.objects import Object, dns_name, mapping, objects, text
from kvpressure.kubernetes.objects.references import POD, Found, Reference, selector_text

MAX_LISTED = 500


async def find_pods(
    client: KubeClient, namespace: str, references: Sequence[Reference], selector: str = ""
) -> list[Found]:
    """Return each pod of `references` once, running ones first, then by name. Raises KubeError for missing objects."""
    found: dict[str, Found] = {}
    for reference in references:
        for one in await _behind(client, namespace, reference):
            found.setdefault(_pod_name(one.pod), one)
    if selector:
        pods = await _list(client, namespace, selector)
        if not pods:
            raise KubeError(
                f"no pod in namespace {namespace} has the labels {selector}; kubectl get pods --show-labels"
            )
        for pod in pods:
            found.setdefault(_pod_name(pod), Found(pod))
    return sorted(found.values(), key=lambda one: (text(one.pod, "status", "phase") != "Running", _pod_name(one.pod)))


async def get_pod(client: KubeClient, namespace: str, name: str) -> Object:
    """Return one pod as it is now. Raises KubeError."""
    pod = await client.json(f"/api/v1/namespaces/{namespace}/pods/{name}", Action("get", "pods", namespace, name))
    _pod_name(pod)
    return pod


async def _behind(client: KubeClient, namespace: str, reference: Reference) -> list[Found]:
    if reference.kind is POD:
        return [Found(await _named(client, namespace, reference))]
    if reference.kind.labels:
        selector = reference.kind.labels.format(reference.name)
    else:
        workload = await _named(client, namespace, reference)
        selector = selector_text(mapping(workload, "spec", "selector"))
    pods = await _list(client, namespace, selector) if selector else []
    if not pods:
        raise KubeError(
            f"{reference} in namespace {namespace} has no pods; kubectl -n {namespace} describe {reference}"
        )
    return [Found(pod, reference) for pod in pods]


async def _named(client: KubeClient, namespace: str, reference: Reference) -> Object:
    """Return the object itself; where there is none, the error names those that are spelled alike."""
    folder = f"{reference.kind.api}/namespaces/{namespace}/{reference.kind.resource}"
    try:
        return await client.json(
            f"{folder}/{reference.name}", Action("get", reference.kind.resource, namespace, reference.name)
        )
    except KubeError as error:
        if error.status != 404:
            raise
    names: list[str] = []
    with suppress(KubeError):  # there are no names to suggest where listing is forbidden
        listed = await client.json(
            folder, Action("list", reference.kind.resource, namespace), {"limit": str(MAX_LISTED)}
        )
        names = [text(one, "metadata", "name") for one in objects(listed, "items", limit=MAX_LISTED)]
    raise KubeError(_missing(reference, namespace, client.config.namespace, names), 404)


def _missing(reference: Reference, namespace: str, default: str, names: Sequence[str]) -> str:
    sentence = f"there is no {reference} in namespace {namespace}"
    begins = [name for name in names if name.startswith(reference.name) or reference.name.startswith(name)]
    close = begins[:3] or get_close_matches(reference.name, names, n=3, cutoff=0.6)
    if close:
        return f"{sentence}; did you mean {' or '.join(f'{reference.kind.short}/{name}' for name in close)}?"
    if names:
        shown = ", ".join(sorted(names)[:5]) + (", ..." if len(names) > 5 else "")
        return f"{sentence}; its {reference.kind.resource} are {shown}"
    other = " (the context's own)" if namespace == default else ""
    return f"{sentence}, which{other} has no {reference.kind.resource} that you may list; choose another with -n"


async def _list(client: KubeClient, namespace: str, selector: str) -> list[Object]:
    query = {"labelSelector": selector, "limit": str(MAX_LISTED)}
    path, action = f"/api/v1/namespaces/{namespace}/pods", Action("list", "pods", namespace)
    return objects(await client.json(path, action, query), "items", limit=MAX_LISTED)


def _pod_name(pod: Mapping[str, Any]) -> str:
    """Return the pod's name, part of what is asked next, as its namespace is. Raise KubeError for what is none."""
    name = dns_name(pod, "metadata", "name")
    if not name or not dns_name(pod, "metadata", "namespace"):
        raise KubeError(
            "the API server answered with something that is no pod: is it one, or a proxy?", reason="garbage"
        )
    return name

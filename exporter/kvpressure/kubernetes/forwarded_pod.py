"""Finds the pods of references, forwards a port of a pod, and reads its state and logs.

Of a container's log, and of the previous one's, the newest part is read through the API server and counted by kind.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Final

from kvpressure.kubernetes import Action, KubeError
from kvpressure.kubernetes.client import KubeClient
from kvpressure.kubernetes.objects import Object, dns_name, mapping, objects, text
from kvpressure.kubernetes.objects.config_maps import (
    MapVersion,
    StartedAt,
    in_force,
    is_answered,
    read_version,
    why_not,
    with_version,
)
from kvpressure.kubernetes.objects.engine_pod import EnginePod, engine_pod
from kvpressure.kubernetes.objects.references import POD, Found, Reference, selector_text
from kvpressure.kubernetes.port_forward import PortForward
from kvpressure.model.environment import LOG_KINDS, ContainerId, LogReport
from kvpressure.sources.logs.classify import is_telling
from kvpressure.sources.logs.follower import Allowance, Tally
from kvpressure.sources.logs.lines import Line

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
    """Return the object itself. Raises KubeError, which names objects of similar names."""
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
    """Return the pod's name, which is part of later requests. Raises KubeError for an invalid name or namespace."""
    name = dns_name(pod, "metadata", "name")
    if not name or not dns_name(pod, "metadata", "namespace"):
        raise KubeError(
            "the API server answered with something that is no pod: is it one, or a proxy?", reason="garbage"
        )
    return name


TAIL_LINES: Final = 5000
MAX_LOG_BYTES: Final = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class PodLogs:
    """Logs of a container and of the previous one; None where there is none, or it cannot be read: see `problem`."""

    current: LogReport | None = None
    previous: LogReport | None = None
    problem: str = ""

    @property
    def whole(self) -> LogReport | None:
        """Both logs as one report; lines and times are the newest."""
        if self.current is None or self.previous is None:
            return self.current or self.previous
        old, new = self.previous, self.current
        counts = {kind: old.counts[kind] + new.counts[kind] for kind in LOG_KINDS}
        return replace(new, counts=counts, latest={**old.latest, **new.latest}, lines={**old.lines, **new.lines})


async def read_logs(client: KubeClient, id_: ContainerId, now: float, *, restarted: bool) -> PodLogs:
    """Return the current log, and the previous container's where it `restarted`; never raises.

    Of each, the last `TAIL_LINES` lines, at most `MAX_LOG_BYTES`.
    """
    found, action = PodLogs(), Action("get", "pods/log", id_.namespace, id_.pod)
    path = f"/api/v1/namespaces/{id_.namespace}/pods/{id_.pod}/log"
    query = {"container": id_.container, "tailLines": str(TAIL_LINES), "limitBytes": str(MAX_LOG_BYTES)}
    for previous in (False, True) if restarted else (False,):
        parameters = {**query, "timestamps": "true", "previous": "true" if previous else "false"}
        try:
            report = report_of(await client.text(path, action, parameters, MAX_LOG_BYTES), id_, now)
        except KubeError as error:
            found = replace(found, problem=found.problem or f"{error}")
        else:
            found = replace(found, previous=report) if previous else replace(found, current=report)
    return found


def report_of(log: bytes, id_: ContainerId, now: float) -> LogReport:
    """Count the incidents of a log whose lines begin with their times, as the API server writes them. PURE."""
    tally, allowance = Tally(id_, since=0.0), Allowance(shares=2)
    # Not splitlines(), which also splits at separators within a line.
    for raw in log.decode(errors="replace").split("\n"):
        stamp, space, rest = raw.partition(" ")
        line = Line(rest, stamp)
        if not is_telling(raw) or not allowance.covers(len(raw)):
            continue
        tally.take(line if space and line.t is not None else Line(raw), now, old=True)
    return tally.report(now)


@dataclass(slots=True)
class ForwardedPod:
    """The state of one pod in the cluster; `problem` is why its engine cannot be reached, "" where it can.

    `maps` are the ConfigMaps that its configuration file may be in, as they were when the container started, of the
    `versions` that were read; `unread` is why limits in one are not known.
    """

    found: Found
    engine: EnginePod
    forward: PortForward | None = None
    logs: PodLogs = field(default_factory=PodLogs)
    refused: str = ""
    maps: dict[str, Object] = field(default_factory=dict)
    versions: dict[str, tuple[MapVersion, ...]] = field(default_factory=dict)
    unread: str = ""

    @property
    def problem(self) -> str:
        """The problem of the pod, or of its port-forward."""
        if self.forward is not None and self.forward.problem:
            return self.forward.problem
        return self.engine.trouble or self.refused

    async def open(self, client: KubeClient, stack: contextlib.AsyncExitStack) -> None:
        """Forward the engine's port until the stack is unwound, unless the pod does not run. Raises nothing."""
        if self.engine.trouble:
            return
        id_ = self.engine.state.id
        forward = PortForward(client, id_.namespace, id_.pod, self.engine.port, self.engine.scheme)
        try:
            self.forward = await stack.enter_async_context(forward)
        except KubeError as error:
            self.refused = f"{error}"

    async def refresh(self, client: KubeClient, now: float) -> None:
        """Read state and logs again; a state that cannot be read stays as it is."""
        id_ = self.engine.state.id
        with contextlib.suppress(KubeError):
            pod = await get_pod(client, id_.namespace, id_.pod)
            await self._read_maps(client, id_.namespace, now)
            self.engine = engine_pod(replace(self.found, pod=pod), now, id_.container, self.engine.port, self.maps)
        self.logs = await read_logs(client, id_, now, restarted=self.engine.state.restarts > 0)

    async def _read_maps(self, client: KubeClient, namespace: str, now: float) -> None:
        """Read the ConfigMaps once for each start: a server reads its file when it starts."""
        state = self.engine.state
        start = None if state.started is None else StartedAt(state.started, anew=state.restarts > 0)
        self.unread, self.maps = "", {}
        for name in self.engine.needs:
            what = f"ConfigMap {name}, which the server's --config is mounted from"
            versions = self.versions.get(name, ())
            if not versions or (start is not None and not is_answered(versions, start)):
                try:
                    path = f"/api/v1/namespaces/{namespace}/configmaps/{name}"
                    found = await client.json(path, Action("get", "configmaps", namespace, name))
                except KubeError as error:
                    self.unread = f"{what}, cannot be read: {error}"
                    continue
                # The cluster's clock may be ahead of this machine's; the response is not older than the start.
                version = read_version(found, max(now, start.t if start is not None else now))
                versions = self.versions[name] = with_version(versions, version)
            known = versions[-1].found if start is None else in_force(versions, start)
            if known is not None:
                self.maps[name] = known
            elif start is not None:
                self.unread = f"{what}: {why_not(versions, start)}"

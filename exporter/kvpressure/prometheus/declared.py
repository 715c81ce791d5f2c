"""What a Prometheus has of engines beside their pages: their role where prefill and decode are apart, limits, GPUs.

A role is said by a label of the target, which the scrape configuration took over from its pod; by kube-state-metrics'
`kube_pod_labels`; or by Dynamo's frontend, by the id of a worker. Limits are those that an exporter has series of.
GPUs are those of dcgm-exporter or AMD's device-metrics-exporter, joined by the pod that their series name, and read as
the exporter reads such a page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from kvpressure.kubernetes.objects.containers import ROLE_LABELS
from kvpressure.model.environment import LIMIT_NAMES, PREFILL, ROLE_CODES, DeclaredLimit
from kvpressure.model.errors import SourceError
from kvpressure.model.family import PREFIX
from kvpressure.model.samples import GpuReport
from kvpressure.prometheus.answers import PrometheusError
from kvpressure.prometheus.client import Prometheus
from kvpressure.prometheus.names import Target, one_of, quoted
from kvpressure.prometheus.paging import Span, ranged
from kvpressure.promtext.lines import Series
from kvpressure.runtimes.gateways import DYNAMO, ROLES, WORKER, worker_of
from kvpressure.sources.gpu.exporter_pages import WANTED, read_page

_LABELS: Final = tuple(re.sub(r"\W", "_", label) for label in ROLE_LABELS)
_ROLES: Final = "|".join(ROLE_CODES)
_OF_PODS: Final = tuple(f'kube_pod_labels{{label_{label}=~"{_ROLES}"}}' for label in _LABELS)
_OF_DYNAMO: Final = f"{{{one_of([WORKER, *ROLES, *(name for row in DYNAMO for name in row.names)])}}}"

_Where = tuple[str, str]
"""Cluster and namespace."""
_Place = tuple[str, str, str]
"""The same, and a pod or an address."""


def roles_there(server: Prometheus, targets: Iterable[Target], span: Span) -> dict[Target, str]:
    """Return the role of each target of which one is known. Raises PrometheusError."""
    series = server.series([*_OF_PODS, _OF_DYNAMO], span.start, span.end)
    of_pods = dict[_Place, set[str]]()
    for labels in series:
        if labels.get("__name__") == "kube_pod_labels":
            pod = labels.get("exported_pod") or labels.get("pod", "")
            namespace = labels.get("exported_namespace") or labels.get("namespace", "")
            of_pods.setdefault((labels.get("cluster", ""), namespace, pod), set()).update(_said(labels, "label_"))
    of_workers = _of_workers(series)
    roles = dict[Target, str]()
    for target in targets:
        own, place = set(_said(dict(target.labels))), _place(target)
        for said in (own, of_pods.get(place, set()) if target.pod else set(), of_workers.get(place, set())):
            if said:
                # A name that had one role and then another says neither.
                roles |= {target: next(iter(said))} if len(said) == 1 else {}
                break
    return roles


def _said(labels: Mapping[str, str], prefix: str = "") -> Iterator[str]:
    """Yield the role that the first of the labels says."""
    said = (labels.get(f"{prefix}{label}", "") for label in _LABELS)
    yield from [role for role in said if role in ROLE_CODES][:1]


def _place(target: Target) -> _Place:
    return target.get("cluster"), target.namespace, target.pod or target.get("instance")


def _of_workers(series: Iterable[Mapping[str, str]]) -> dict[_Place, set[str]]:
    """Return what Dynamo's frontends say of the workers near them, where they serve one model and any prefills."""
    ids = dict[_Place, set[str]]()
    types = dict[_Where, dict[str, str]]()
    models = dict[_Where, set[str]]()
    for labels in series:
        name, its = labels.get("__name__", ""), Target(tuple(sorted(labels.items())))
        where = its.get("cluster"), its.namespace
        if name == WORKER:
            ids.setdefault(_place(its), set()).add(worker_of([Series(name, its.labels)]))
        elif name in ROLES:
            types.setdefault(where, {})[labels.get("worker_id", "")] = labels.get("worker_type", "")
        elif "model" in labels:
            models.setdefault(where, set()).add(labels["model"])
    of_workers = dict[_Place, set[str]]()
    for place, its_ids in ids.items():
        known = types.get(place[:2], {})
        if PREFILL in known.values() and len(models.get(place[:2], ())) == 1:
            of_workers[place] = {known[its_id] for its_id in its_ids if its_id and known.get(its_id) in ROLE_CODES}
    return of_workers


MAX_LOOK_BACK_SECONDS: Final = 30 * 86_400.0
WHERE: Final = "the exporter's series"
_OF: Final = "max by (cluster, namespace, pod, limit)"

Declared = dict[tuple[str, str, str], tuple[DeclaredLimit, ...]]
"""Limits by cluster, namespace and pod, as `pod_of` gives them of a target."""


def pod_of(target: Target) -> tuple[str, str, str]:
    """Return the cluster, namespace and pod of a target, each "" where it has none.

    Clusters have pods of the same name.
    """
    return target.get("cluster"), target.namespace, target.pod


def declared_there(server: Prometheus, span: Span) -> Declared:
    """Return the engines' declared limits that an exporter read last in that time; {} without any."""
    window = f"[{round(min(MAX_LOOK_BACK_SECONDS, span.seconds))}s]"
    value, known = (f'last_over_time({PREFIX}limit_{what}{{pod!=""}}{window})' for what in ("value", "declared"))
    try:
        rows = server.instant(f"{_OF} ({value}) and {_OF} ({known}) == 1", span.end)
    except PrometheusError:  # verdicts are possible without limits
        return {}
    limits: Declared = {}
    for row in rows:
        labels, (_, number) = row["metric"], row["value"]
        if labels.get("limit") in LIMIT_NAMES:
            key = (labels.get("cluster", ""), labels.get("namespace", ""), labels.get("pod", ""))
            limits[key] = (*limits.get(key, ()), DeclaredLimit(labels["limit"], float(number), WHERE))
    return limits


STEP_SECONDS: Final = 15.0
PAGE_SECONDS: Final = 7_200.0
"""Of one answer: eight GPUs with nine fields each are 35,000 values in two hours."""
_USED: Final = ("DCGM_FI_DEV_FB_USED", "gpu_used_vram", "amd_gpu_used_vram")
"""Who has one of these, has a GPU."""
_NAMES: Final = one_of(name.decode() for name in WANTED)
_POD_LABELS: Final = (("exported_namespace", "exported_pod"), ("namespace", "pod"))
"""The first are of the engine's pod where the others are those of the exporter itself."""


def gpus_there(server: Prometheus, targets: Iterable[Target], span: Span) -> dict[Target, str]:
    """Return what selects the series of the GPUs of each target whose pod has some. Raises PrometheusError."""
    selectors = dict[tuple[str, str, str], str]()
    for labels in server.series([f'{{{one_of(_USED)}, pod!=""}}'], span.start, span.end):
        named = next((pair for pair in _POD_LABELS if labels.get(pair[1])), None)
        if labels.get("__name__") not in _USED or named is None:
            continue
        place = labels.get("cluster", ""), labels.get(named[0], ""), labels[named[1]]
        pairs = zip(("cluster", *named), place, strict=True)
        matchers = ", ".join(f"{label}={quoted(value)}" for label, value in pairs if value)
        selectors[place] = f"{{{_NAMES}, {matchers}}}"
    places = ((one, (one.get("cluster"), one.namespace, one.pod)) for one in targets if one.pod)
    return {target: selectors[place] for target, place in places if place in selectors}


class Gpus:
    """The GPUs of one target, read some hours at a time as moments go forward."""

    def __init__(self, server: Prometheus, selector: str) -> None:
        self._server, self._selector = server, selector
        self._page = Span(0.0, 0.0)
        self._values: dict[int, dict[Series, float]] = {}

    def at(self, t: float) -> GpuReport | None:
        """Return them at a moment; None where the Prometheus has none then. Raises PrometheusError."""
        if not self._page.start <= t < self._page.end:
            self._page = Span(t, t + PAGE_SECONDS)
            self._values = self._read()
        now = self._values.get(round((t - self._page.start) / STEP_SECONDS), {})
        try:
            return read_page(now, now.values(), t)[0]
        except SourceError:  # none, or those of several nodes: nothing is known of the engine's
            return None

    def _read(self) -> dict[int, dict[Series, float]]:
        found = dict[int, dict[Series, float]]()
        for row in ranged(self._server, self._selector, self._page, STEP_SECONDS):
            labels = row.get("metric", {})
            series = Series(labels.get("__name__", ""), tuple(sorted(labels.items())))
            if series.name.encode() not in WANTED:
                continue
            for t, value in row["values"]:
                found.setdefault(round((t - self._page.start) / STEP_SECONDS), {})[series] = value
        return found

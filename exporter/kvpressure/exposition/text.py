"""Snapshot to a metrics page, in the Prometheus text format or OpenMetrics 1.0, written by prometheus_client.

Both formats have the same samples; only the headers of counters and the end differ. A scraper's Accept and
Accept-Encoding headers choose the format.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, choose_encoder, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import exposition as openmetrics_exposition
from prometheus_client.openmetrics.exposition import ALLOWUTF8, UNDERSCORES
from prometheus_client.registry import Collector, CollectorRegistry
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from kvpressure.exposition import Snapshot, profile
from kvpressure.exposition.families import container_values, engine_values, source_values, target_values
from kvpressure.model.family import Family, Scope
from kvpressure.model.samples import HistogramSample
from kvpressure.model.view import EngineView
from kvpressure.printable import distinct

TEXT = CONTENT_TYPE_PLAIN_0_0_4
_OPENMETRICS: Final = "application/openmetrics-text"
_VERSIONS: Final = {_OPENMETRICS: ("", "1.0.0"), "text/plain": ("", "0.0.4", "1.0.0")}
"""The versions that can be requested, "" where none is."""

AS_THEY_ARE = "none"
"""None of the library's escaping schemes: it then writes names of metrics and labels as they are.

All of ours are valid in the old character set, so every scheme gives the same page (a test compares them). But with a
scheme the library checks every name of every sample: a third of its work, half of it for OpenMetrics. It escapes
values of labels in any case.
"""


def render(snapshot: Snapshot, *, openmetrics: bool, own: Iterable[Collector] = ()) -> bytes:
    """Return the page: the snapshot, then the families of the `own` collectors. Called from any thread."""
    registry = CollectorRegistry(auto_describe=False)
    for collector in (SnapshotCollector(snapshot), *own):
        registry.register(collector)
    write = openmetrics_exposition.generate_latest if openmetrics else generate_latest
    return write(registry, escaping=AS_THEY_ARE)


@dataclass(frozen=True, slots=True)
class Format:
    """The format of a page, and its Content-Type."""

    openmetrics: bool
    content_type: str


def negotiate(accept: str) -> Format:
    """Return the format that the header prefers, OpenMetrics among equals; plain text where it has no known format.

    The library's `choose_encoder` returns the Content-Type of the preferred part, which it gets alone and normalized:
    by itself it ignores weights, fails at versions that are not numbers, and accepts any number as a version.
    """
    accepted = [requested for part in accept.split(",") if (requested := _requested(part)) is not None]
    _, media, best = max(accepted, key=lambda part: (part[0], part[1] == _OPENMETRICS), default=(1.0, "", ""))
    return Format(media == _OPENMETRICS, choose_encoder(best)[1])


def accepts_gzip(accept_encoding: str) -> bool:
    """Return whether the Accept-Encoding header allows gzip."""
    codings = (_split(part) for part in accept_encoding.split(","))
    return next((weight > 0 for coding, weight, _ in codings if coding == "gzip"), False)


def _requested(part: str) -> tuple[float, str, str] | None:
    """Return weight, media type and `choose_encoder`'s argument of a part of an Accept header, None if unsupported."""
    media, weight, named = _split(part)
    version = named.get("version", "")
    if not weight > 0 or version not in _VERSIONS.get(media, ()):
        return None
    escaping = ALLOWUTF8 if named.get("escaping") == ALLOWUTF8 else UNDERSCORES
    return weight, media, f"{media};version={version};escaping={escaping}" if version else media


def _split(part: str) -> tuple[str, float, dict[str, str]]:
    """Return name, weight and parameters of a part of a header."""
    name, *parameters = part.split(";")
    pairs = (parameter.partition("=") for parameter in parameters)
    named = {key.strip().lower(): value.strip() for key, _, value in pairs}
    try:
        weight = float(named.get("q", "1"))
    except ValueError:
        weight = 0.0
    return name.strip().lower(), weight, named


Labels = dict[str, str]
"""Never changed: most samples of an engine share one."""

Described = tuple[Labels, Mapping[str, object]]
"""The labels of one engine, GPU, source or container, and its values by the key of their family."""


class SnapshotCollector:
    """Collects the families that have series, in the order of the table."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        """Yield the families, each with all its samples. Called from any thread."""
        described = _by_scope(self._snapshot)
        for family in profile.families(self._snapshot.profile):
            name, key = family.name, family.key
            metric = Metric(name.removesuffix("_total"), family.help, family.type)
            add = metric.samples.append
            for labels, values in described[family.scope]:
                value = values.get(key)
                if isinstance(value, float):  # most of them
                    add(Sample(name, labels, value))
                elif isinstance(value, HistogramSample):
                    metric.samples.extend(_histogram(name, labels, value))
                elif family.observed:
                    metric.samples.extend(_summary(family, labels, value, values.get(family.observed)))
                elif value is not None:
                    metric.samples.extend(_numbers(name, family.labels, labels, value))
            if metric.samples:
                yield metric


def _by_scope(snapshot: Snapshot) -> dict[Scope, list[Described]]:
    views: defaultdict[str, list[EngineView]] = defaultdict(list)
    for view in snapshot.known:
        views[view.key.target].append(view)
    return {
        Scope.ENGINE: [
            (_labels(Scope.ENGINE, view.labels), profile.shown(snapshot.profile, engine_values(view)))
            for view in snapshot.known
        ],
        Scope.TARGET: [
            (
                _labels(Scope.TARGET, (target.name, target.namespace, target.pod)),
                target_values(target, health, views.get(target.name, ())),
            )
            for target, health in snapshot.polled
        ],
        Scope.GPU: [(_labels(Scope.GPU, view.labels), view.derived) for view in snapshot.gpus],
        Scope.SOURCE: [
            (_labels(Scope.SOURCE, (health.source, health.target)), source_values(health))
            for health in snapshot.sources
        ],
        Scope.CONTAINER: [
            (_labels(Scope.CONTAINER, (key.namespace, key.pod, key.container)), values)
            for key, values in container_values(snapshot.environment).items()
        ],
        Scope.EXPORTER: [({}, snapshot.exporter)],
    }


_shown = functools.lru_cache(maxsize=16384)(distinct)
"""A label's value without control characters; cached, since most are the same on every page."""


def _labels(scope: Scope, values: Iterable[str]) -> Labels:
    # Sorted, as the library sorts those of each sample.
    return dict(sorted(zip(scope.labels, map(_shown, values), strict=True)))


def _numbers(name: str, names: tuple[str, ...], labels: Labels, value: object) -> Iterator[Sample]:
    """Yield one sample per number below `value`, which is nested in the order of the label `names`."""
    if isinstance(value, Mapping):
        for label_value, below in value.items():
            yield from _numbers(name, names[1:], {**labels, names[0]: _shown(label_value)}, below)
    else:
        yield Sample(name, labels, value)  # type: ignore[arg-type]  # the leaves of derived values are numbers


def _summary(family: Family, labels: Labels, value: object, observed: object) -> Iterator[Sample]:
    """Yield quantiles, sum and count by the first label; OpenTelemetry's collector drops a summary without a count."""
    by, *others = family.labels
    recent, totals = (given if isinstance(given, Mapping) else {} for given in (value, observed))
    for label_value in {**recent, **totals}:
        own = {**labels, by: _shown(label_value)}
        yield from _numbers(family.name, tuple(others), own, recent.get(label_value, {}))
        if isinstance(total := totals.get(label_value), HistogramSample):
            yield Sample(f"{family.name}_sum", own, total.sum)
            yield Sample(f"{family.name}_count", own, total.count)


def _histogram(name: str, labels: Labels, histogram: HistogramSample) -> Iterator[Sample]:
    for bound, count in zip(_bounds(histogram.bounds), histogram.counts, strict=True):
        yield Sample(f"{name}_bucket", {**labels, "le": bound}, count)
    yield Sample(f"{name}_sum", labels, histogram.sum)
    yield Sample(f"{name}_count", labels, histogram.count)


@functools.lru_cache(maxsize=64)
def _bounds(bounds: tuple[float, ...]) -> tuple[str, ...]:
    return tuple(map(floatToGoString, bounds))


class OwnProcess:
    """The library's collectors of process, garbage collector and platform; one that fails is left out."""

    def collect(self) -> Iterator[Metric]:
        """Yield their families."""
        for collector in (PROCESS_COLLECTOR, GC_COLLECTOR, PLATFORM_COLLECTOR):
            try:
                yield from list(collector.collect())
            except (OSError, ValueError, LookupError, NameError):  # with a /proc that differs from Linux'
                continue

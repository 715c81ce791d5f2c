"""Snapshot to a metrics page, in the Prometheus text format or OpenMetrics 1.0, written by prometheus_client.

Both formats carry the same samples; only the headers of counters and the end differ. A scraper's Accept and
Accept-Encoding headers say which it gets.
"""

from __future__ import annotations

import functools
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
from kvpressure.exposition.families import container_values, engine_values, source_values
from kvpressure.model.family import Scope
from kvpressure.model.samples import HistogramSample
from kvpressure.printable import distinct

TEXT = CONTENT_TYPE_PLAIN_0_0_4
_OPENMETRICS: Final = "application/openmetrics-text"
_VERSIONS: Final = {_OPENMETRICS: ("", "1.0.0"), "text/plain": ("", "0.0.4", "1.0.0")}
"""What can be asked for, "" where no version is named."""

AS_THEY_ARE = "none"
"""Not a name of one of the library's escaping schemes: it then writes the names of metrics and labels as they are.

All of ours are valid in the old character set, so every scheme that may be negotiated gives the same page (a test
compares them). But under a scheme the library examines every name of every sample: a third of its work, and of
OpenMetrics half. It escapes the values of labels in any case.
"""


def render(snapshot: Snapshot, *, openmetrics: bool, own: Iterable[Collector] = ()) -> bytes:
    """Return the page: the snapshot, then what `own` collectors export of this process. Called from any thread."""
    registry = CollectorRegistry(auto_describe=False)
    for collector in (SnapshotCollector(snapshot), *own):
        registry.register(collector)
    write = openmetrics_exposition.generate_latest if openmetrics else generate_latest
    return write(registry, escaping=AS_THEY_ARE)


@dataclass(frozen=True, slots=True)
class Format:
    """How a page is written, and the Content-Type that says so."""

    openmetrics: bool
    content_type: str


def negotiate(accept: str) -> Format:
    """Return the format that the header prefers, OpenMetrics among equals; plain text where it names no known one.

    The library's `choose_encoder` gives the Content-Type of the best part. It gets that one alone and in our words: by
    itself it passes over weights, fails at versions that are no numbers, and repeats any number as the page's version.
    """
    liked = [found for part in accept.split(",") if (found := _requested(part)) is not None]
    _, media, wanted = max(liked, key=lambda one: (one[0], one[1] == _OPENMETRICS), default=(1.0, "", ""))
    return Format(media == _OPENMETRICS, choose_encoder(wanted)[1])


def accepts_gzip(accept_encoding: str) -> bool:
    """Return whether the Accept-Encoding header allows gzip."""
    codings = (_split(part) for part in accept_encoding.split(","))
    return next((weight > 0 for coding, weight, _ in codings if coding == "gzip"), False)


def _requested(part: str) -> tuple[float, str, str] | None:
    """Return weight, media type and `choose_encoder`'s argument of an Accept header's part; None if not available."""
    media, weight, named = _split(part)
    version = named.get("version", "")
    if not weight > 0 or version not in _VERSIONS.get(media, ()):
        return None
    escaping = ALLOWUTF8 if named.get("escaping") == ALLOWUTF8 else UNDERSCORES
    return weight, media, f"{media};version={version};escaping={escaping}" if version else media


def _split(part: str) -> tuple[str, float, dict[str, str]]:
    """Return the name, the weight and the parameters of one part of a header."""
    name, *parameters = part.split(";")
    pairs = (parameter.partition("=") for parameter in parameters)
    named = {key.strip().lower(): value.strip() for key, _, value in pairs}
    try:
        weight = float(named.get("q", "1"))
    except ValueError:
        weight = 0.0
    return name.strip().lower(), weight, named


Labels = dict[str, str]
"""Never changed once made: most samples of an engine share one."""

Described = tuple[Labels, Mapping[str, object]]
"""What a family's rows are read from: the labels of one engine, GPU, source or container, and its values by key."""


class SnapshotCollector:
    """Gives each family that has series, in the order of the table; a family without any is left out."""

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
                elif value is not None:
                    metric.samples.extend(_numbers(name, family.labels, labels, value))
            if metric.samples:
                yield metric


def _by_scope(snapshot: Snapshot) -> dict[Scope, list[Described]]:
    return {
        Scope.ENGINE: [
            (_labels(Scope.ENGINE, view.labels), profile.shown(snapshot.profile, engine_values(view)))
            for view in snapshot.known
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
"""A label's value as a terminal may show it: most are the same on every page."""


def _labels(scope: Scope, values: Iterable[str]) -> Labels:
    return dict(
        sorted(zip(scope.labels, map(_shown, values), strict=True))
    )  # as the library will sort those of each sample


def _numbers(name: str, names: tuple[str, ...], labels: Labels, value: object) -> Iterator[Sample]:
    """Yield one sample per number below `value`, which is nested in the order of the label `names`."""
    if isinstance(value, Mapping):
        for label_value, below in value.items():
            yield from _numbers(name, names[1:], {**labels, names[0]: _shown(label_value)}, below)
    else:
        yield Sample(name, labels, value)  # type: ignore[arg-type]  # the leaves of derived values are numbers


def _histogram(name: str, labels: Labels, histogram: HistogramSample) -> Iterator[Sample]:
    for bound, count in zip(_bounds(histogram.bounds), histogram.counts, strict=True):
        yield Sample(f"{name}_bucket", {**labels, "le": bound}, count)
    yield Sample(f"{name}_sum", labels, histogram.sum)
    yield Sample(f"{name}_count", labels, histogram.count)


@functools.lru_cache(maxsize=64)
def _bounds(bounds: tuple[float, ...]) -> tuple[str, ...]:
    return tuple(map(floatToGoString, bounds))


class OwnProcess:
    """The library's collectors of process, garbage collector and platform. What cannot be read is left out."""

    def collect(self) -> Iterator[Metric]:
        """Their families, as of now."""
        for collector in (PROCESS_COLLECTOR, GC_COLLECTOR, PLATFORM_COLLECTOR):
            try:
                yield from list(collector.collect())
            except (OSError, ValueError, LookupError, NameError):  # a /proc that is not quite Linux': no page is lost
                continue

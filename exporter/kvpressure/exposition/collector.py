"""Snapshot to prometheus_client's metric families: a custom collector over the family table."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping

from prometheus_client import GC_COLLECTOR, PLATFORM_COLLECTOR, PROCESS_COLLECTOR
from prometheus_client.metrics_core import Metric
from prometheus_client.samples import Sample
from prometheus_client.utils import floatToGoString

from kvpressure.exposition import profile
from kvpressure.exposition.families import container_values, engine_values, source_values
from kvpressure.exposition.snapshot import Snapshot
from kvpressure.model.family import Scope
from kvpressure.model.samples import HistogramSample
from kvpressure.printable import distinct

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

"""PURE: snapshot to OpenTelemetry's metrics, with the names and labels of the page.

Importing this module imports the OpenTelemetry SDK of the extra `otlp`. Its instruments are not used: they keep an
entry for every set of attributes for ever, and pods come and go.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.samples import Sample

from kvpressure import __version__
from kvpressure.exposition import Snapshot
from kvpressure.exposition.text import SnapshotCollector

SCOPE: Final = InstrumentationScope("kvpressure", __version__)
UNKNOWN_START: Final = 0
"""In nanoseconds: counters are those of engines, whose start is not known."""


def metrics_data(snapshot: Snapshot, resource: Resource) -> MetricsData:
    """Return all families but the process's own; quantiles of summaries are gauges."""
    t = int(snapshot.t * 1e9)
    metrics = [_metric(family, t) for family in SnapshotCollector(snapshot).collect()]
    return MetricsData([ResourceMetrics(resource, [ScopeMetrics(SCOPE, metrics, "")], "")])


def resource(instance: str) -> Resource:
    """Return the exporter's resource attributes: `instance` is its own address or host, as `service.instance.id`."""
    return Resource({"service.name": "kvpressure", "service.version": __version__, "service.instance.id": instance})


def _metric(family: Family, t: int) -> Metric:
    """Return the metric without a unit: a receiver would append it to the name, which has it already."""
    if family.type == "histogram":
        data: Gauge | Sum | Histogram = Histogram(
            list(_histograms(family.samples, t)), AggregationTemporality.CUMULATIVE
        )
        return Metric(family.name, family.documentation, "", data)
    points = [NumberDataPoint(sample.labels, UNKNOWN_START, t, float(sample.value)) for sample in family.samples]
    if family.type != "counter":
        return Metric(family.name, family.documentation, "", Gauge(points))
    data = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True)
    return Metric(f"{family.name}_total", family.documentation, "", data)


def _histograms(samples: Iterable[Sample], t: int) -> Iterator[HistogramDataPoint]:
    """Yield a point per series, whose samples are adjacent: buckets first, then sum and count."""
    bounds: list[float] = []
    counts: list[int] = []
    total = 0.0
    for sample in samples:
        if sample.name.endswith("_bucket"):
            bounds.append(float(sample.labels["le"]))
            counts.append(int(sample.value))
        elif sample.name.endswith("_sum"):
            total = sample.value
        else:
            each = [now - before for before, now in zip([0, *counts], counts, strict=False)]
            yield HistogramDataPoint(
                sample.labels,
                UNKNOWN_START,
                t,
                count=int(sample.value),
                sum=total,
                bucket_counts=each,
                explicit_bounds=bounds[:-1],  # the last is +Inf, which is implied
                min=None,  # type: ignore[arg-type]  # not known; the protocol leaves it out
                max=None,  # type: ignore[arg-type]
            )
            bounds, counts = [], []

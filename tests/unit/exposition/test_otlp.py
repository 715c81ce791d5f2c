"""What is pushed over OTLP, as the library encodes it, beside what the page says."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import accumulate

import pytest
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from prometheus_client.utils import floatToGoString

from kvpressure.exposition import Snapshot
from kvpressure.exposition.otlp import metrics_data, resource
from kvpressure.exposition.profile import Profile
from kvpressure.exposition.text import SnapshotCollector
from tests.support.snapshots import collapsed

pytestmark = pytest.mark.recorded

Row = tuple[str, tuple[tuple[str, str], ...], float]


def labels(point: object) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((pair.key, pair.value.string_value) for pair in point.attributes))  # type: ignore[attr-defined]


def encoded(snapshot: Snapshot) -> Iterator[Row]:
    """The samples that a receiver makes of the bytes, by the names of the Prometheus format."""
    (told,) = encode_metrics(metrics_data(snapshot, resource("node-1"))).resource_metrics
    for metric in told.scope_metrics[0].metrics:
        for point in (*metric.gauge.data_points, *metric.sum.data_points):
            assert point.time_unix_nano == int(snapshot.t * 1e9)
            yield metric.name, labels(point), point.as_double
        for point in metric.histogram.data_points:
            bounds = [*map(floatToGoString, point.explicit_bounds), "+Inf"]
            for bound, count in zip(bounds, accumulate(point.bucket_counts), strict=True):
                yield f"{metric.name}_bucket", tuple(sorted((*labels(point), ("le", bound)))), float(count)
            yield f"{metric.name}_sum", labels(point), point.sum
            yield f"{metric.name}_count", labels(point), float(point.count)
        assert not metric.sum.data_points or (metric.sum.is_monotonic and metric.name.endswith("_total"))


def shown(snapshot: Snapshot) -> Iterator[Row]:
    for family in SnapshotCollector(snapshot).collect():
        for sample in family.samples:
            yield sample.name, tuple(sorted(sample.labels.items())), float(sample.value)


@pytest.mark.parametrize("profile", Profile)
def test_it_is_what_the_page_shows(profile: Profile) -> None:
    snapshot = dataclasses.replace(collapsed(), profile=profile)
    assert sorted(encoded(snapshot)) == sorted(shown(snapshot))
    assert any(name.endswith("_bucket") for name, _, _ in encoded(snapshot)) is (profile is Profile.FULL)


def test_it_says_who_tells() -> None:
    (told,) = encode_metrics(metrics_data(collapsed(), resource("node-1"))).resource_metrics
    named = {pair.key: pair.value.string_value for pair in told.resource.attributes}
    assert (named["service.name"], named["service.instance.id"]) == ("kvpressure", "node-1")

"""Snapshot to a metrics page, in the Prometheus text format or OpenMetrics 1.0, written by prometheus_client.

Both formats carry the same samples; only the headers of counters and the end differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics_exposition
from prometheus_client.registry import Collector, CollectorRegistry

from kvpressure.exposition.collector import SnapshotCollector
from kvpressure.exposition.snapshot import Snapshot

TEXT = CONTENT_TYPE_PLAIN_0_0_4
OPENMETRICS = openmetrics_exposition.CONTENT_TYPE_LATEST

_openmetrics: Callable[[Collector], bytes] = partial(
    openmetrics_exposition.generate_latest, escaping=openmetrics_exposition.ALLOWUTF8
)


def render(snapshot: Snapshot, *, openmetrics: bool, own: Iterable[Collector] = ()) -> bytes:
    """The page: the snapshot, then what `own` collectors say of this process. Called from any thread.

    Every name of ours is valid in the old character set, so the page is the same under every escaping scheme that may
    be negotiated; OpenMetrics is written under the one in which the library does not look at each letter of a name,
    which takes it a quarter less time.
    """
    registry = CollectorRegistry(auto_describe=False)
    for collector in (SnapshotCollector(snapshot), *own):
        registry.register(collector)
    return _openmetrics(registry) if openmetrics else generate_latest(registry)

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

AS_THEY_ARE = "none"
"""Not a name of one of the library's escaping schemes: it then writes the names of metrics and labels as they are.

All of ours are valid in the old character set, so every scheme that may be negotiated gives the same page (a test
compares them). But under a scheme the library examines every name of every sample: a third of its work, and of
OpenMetrics half. It escapes the values of labels in any case.
"""

_openmetrics: Callable[[Collector], bytes] = partial(openmetrics_exposition.generate_latest, escaping=AS_THEY_ARE)


def render(snapshot: Snapshot, *, openmetrics: bool, own: Iterable[Collector] = ()) -> bytes:
    """Return the page: the snapshot, then what `own` collectors export of this process. Called from any thread."""
    registry = CollectorRegistry(auto_describe=False)
    for collector in (SnapshotCollector(snapshot), *own):
        registry.register(collector)
    return _openmetrics(registry) if openmetrics else generate_latest(registry, AS_THEY_ARE)

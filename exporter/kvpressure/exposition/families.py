"""Every metric family, collected from where it is declared; those of the exporter itself are declared here.

`collector` reads the table, in its order. The standard families of the process itself are prometheus_client's own
(`collector.OwnProcess`). `docs/metrics.md` is generated from it, and rules and dashboards are tested against it.
"""

from __future__ import annotations

from typing import Final

from kvpressure.advice import limit_families
from kvpressure.exposition import containers, source_health, verdicts
from kvpressure.model.family import Family, exporter_family
from kvpressure.signals import (
    batch,
    canary,
    cost,
    eviction,
    gpu,
    kv,
    latency,
    prefix_cache,
    saturation,
    throughput,
    traffic,
)

EXPORTER: Final = (
    exporter_family(
        "cpu_pressure_ratio", "gauge", "Share of time in which some task on the host waited for CPU (PSI)."
    ),
    exporter_family("node_memory_pressure", "gauge", "1 while the node reports MemoryPressure, else 0."),
    exporter_family("samples_rejected_total", "counter", "Readings dropped as impossible.", "source", "reason"),
    exporter_family(
        "caps_reached_total", "counter", "Times something was left out because a configured cap was reached.", "cap"
    ),
    exporter_family(
        "polls_skipped_total", "counter", "Engine polls skipped because the previous one was still running."
    ),
    exporter_family(
        "log_lines_dropped_total",
        "counter",
        "Lines of the exporter's own log that could not be written: standard error is full, closed or not read.",
    ),
    exporter_family("engine_page_bytes_total", "counter", "Bytes of engine pages received."),
    exporter_family("web_connections", "gauge", "Connections open to the exporter's own server."),
    exporter_family(
        "web_refused_total",
        "counter",
        "Connections ended and requests turned away so that nobody keeps the exporter's own server busy.",
        "reason",
    ),
    exporter_family(
        "config_last_reload_successful", "gauge", "1 if the last configuration reload succeeded, 0 if it was rejected."
    ),
    exporter_family(
        "config_last_reload_success_timestamp_seconds",
        "gauge",
        "Unix time of the last successful configuration reload.",
    ),
    exporter_family("thresholds_info", "gauge", "1; hash of the thresholds in use.", "hash"),
    exporter_family("build_info", "gauge", "1; version of kvpressure and Python.", "version", "python_version"),
)

FAMILIES: Final[tuple[Family, ...]] = (
    *batch.FAMILIES,
    *kv.FAMILIES,
    *prefix_cache.FAMILIES,
    *eviction.FAMILIES,
    *traffic.REFUSALS,
    *latency.FAMILIES,
    *throughput.FAMILIES,
    *cost.FAMILIES,
    *throughput.PLATEAU,
    *saturation.FAMILIES,
    *traffic.FAMILIES,
    *gpu.FAMILIES,
    *verdicts.FAMILIES,
    *canary.FAMILIES,
    *limit_families.FAMILIES,
    *gpu.GPU_FAMILIES,
    *source_health.FAMILIES,
    *containers.FAMILIES,
    *EXPORTER,
)
"""In the order in which they are shown."""

"""The bundle that makes the exporter's series useful, generated from one thresholds file.

Prometheus rules, `PrometheusRule` objects, an Alertmanager example, Grafana dashboards, runbooks, and the page that
explains the alerts. `generate.bundle_files` makes it in memory, `write.write_bundle` puts it in place whole or not at
all.
"""

from __future__ import annotations

from kvpressure.tools.bundle.generate import bundle_files, load_rules
from kvpressure.tools.bundle.options import Options
from kvpressure.tools.bundle.write import write_bundle

__all__ = ["Options", "bundle_files", "load_rules", "write_bundle"]

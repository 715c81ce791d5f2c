"""Settings and thresholds that earlier versions had: an error says that one is gone, and what takes its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

GONE: Final[Mapping[str, str]] = {
    "baseline_file": "baselines are learned again after a restart, and limits are absolute until then",
    "engines.canary": "a blackbox_exporter asks engines for one token (docs/deploy.md)",
    "kubernetes.kubeconfig_file": "outside a pod, name engines in engines.targets or engines.file_sd",
    "otlp": "the Prometheus receiver of an OpenTelemetry Collector reads /metrics (docs/deploy.md)",
    "stuck_unanswered_min_seconds": "kvpressure asks no engine for a token; a blackbox_exporter does (docs/deploy.md)",
}
"""What to do instead, by the dotted key of a setting or of a whole section, or by the name of a threshold."""


def gone(path: Sequence[str | int]) -> str | None:
    """Return `is gone: ` and what takes its place for a key, or for one in a section that is gone; None of others."""
    names = [part for part in path if isinstance(part, str)]
    for end in range(len(names), 0, -1):
        instead = GONE.get(".".join(names[:end]))
        if instead is not None:
            return f"is gone: {instead}"
    return None

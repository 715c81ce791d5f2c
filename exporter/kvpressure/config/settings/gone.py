"""Settings that earlier versions had: an error says that one is gone, and what takes its place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

GONE: Final[Mapping[str, str]] = {
    "baseline_file": "baselines are learned again after a restart, and limits are absolute until then",
    "otlp": "the Prometheus receiver of an OpenTelemetry Collector reads /metrics (docs/deploy.md)",
}
"""What to do instead, by the dotted key of a setting or of a whole section."""


def gone(path: Sequence[str | int]) -> str | None:
    """Return `is gone: ` and what takes its place for a key, or for one in a section that is gone; None of others."""
    names = [part for part in path if isinstance(part, str)]
    for end in range(len(names), 0, -1):
        instead = GONE.get(".".join(names[:end]))
        if instead is not None:
            return f"is gone: {instead}"
    return None

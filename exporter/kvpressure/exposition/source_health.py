"""The families of sources: whether and how long they are read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from kvpressure.model.family import Family, Scope
from kvpressure.model.samples import SourceHealth

FAMILIES: Final = (
    Family("source_up", "gauge", Scope.SOURCE, "1 when the source's last read succeeded."),
    Family("source_duration_seconds", "gauge", Scope.SOURCE, "How long the source's last read took."),
    Family(
        "source_last_success_timestamp_seconds",
        "gauge",
        Scope.SOURCE,
        "When the source was last read successfully, in unix time.",
    ),
    Family(
        "poll_duration_seconds",
        "summary",
        Scope.SOURCE,
        "How long the source's latest reads took (at most 60, the one under way included): median, and the longest.",
        ("quantile",),
    ),
    Family("source_errors_total", "counter", Scope.SOURCE, "Failed reads of the source.", ("reason",)),
)


def source_values(health: SourceHealth) -> Mapping[str, object]:
    """Return values of the source families; what is not known is None."""
    return {
        "source_up": float(health.up),
        "source_duration_seconds": None if math.isnan(health.duration_seconds) else health.duration_seconds,
        "source_last_success_timestamp_seconds": health.last_success,
        "source_errors_total": health.errors,
        "poll_duration_seconds": _poll_durations(health),
    }


def _poll_durations(health: SourceHealth) -> Mapping[str, float] | None:
    if health.usual_seconds is None or health.longest_seconds is None:
        return None
    return {"0.5": health.usual_seconds, "1": health.longest_seconds}

"""What can go wrong between us and a Prometheus: one sentence each, saying what happened, where, and what to do."""

from __future__ import annotations

from kvpressure.model.errors import SourceError


class PrometheusError(SourceError):
    """The server cannot be asked, or does not answer; asking again for the same does not help."""


class TooMuchError(PrometheusError):
    """One answer would be larger, or take longer, than the server or this program allows: ask for a shorter time."""


class BusyError(PrometheusError):
    """The server could not answer just now; the same question may be answered after `wait_seconds`, where it said."""

    wait_seconds: float = 0.0

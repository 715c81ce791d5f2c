"""PURE: keeps what is known of a GPU source's health."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from kvpressure.model.samples import GpuReport, SourceHealth
from kvpressure.sources.gpu.backend import ABSENT

MOST_REASONS: Final = 64
"""Each is a series; those of a child gone mad are counted as "other"."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a child ended: a stable word and a sentence for people."""

    reason: str
    sentence: str


class Status:
    """The health of one source as it changes; times are unix seconds."""

    def __init__(self, source: str, t: float) -> None:
        self._source = source
        self._t = t
        self._up = False
        self.reason = "starting"
        self._error = "no answer yet"
        self._duration_seconds = math.nan
        self._last_success: float | None = None
        self._errors: dict[str, int] = {}

    def _set(self, t: float, up: bool, reason: str, error: str) -> None:
        self._t, self._up, self.reason, self._error = t, up, reason, error

    def _count(self, reason: str) -> None:
        if reason not in self._errors and len(self._errors) >= MOST_REASONS:
            reason = "other"
        self._errors[reason] = self._errors.get(reason, 0) + 1

    def reported(self, t: float, report: GpuReport) -> None:
        """A report arrived. One device in trouble is enough to be down: the others' data flow all the same."""
        self._duration_seconds = max(0.0, t - report.t)
        if report.gpus:
            self._last_success = report.t
        if not report.errors:
            self._set(t, True, "", "")
            return
        sentences = [f"GPU {device}: {error.partition(': ')[2]}" for device, error in report.errors.items()]
        reason = next(iter(report.errors.values())).partition(":")[0]
        self._count(reason)
        self._set(t, False, reason, "; ".join(sentences))

    def failed(self, t: float, failure: Failure) -> None:
        """The child ended. A vendor that is not there is counted once, not at every look for it."""
        if failure.reason not in ABSENT or failure.reason != self.reason:
            self._count(failure.reason)
        self._set(t, False, failure.reason, failure.sentence)

    def detached(self, t: float, sentence: str) -> None:
        """Somebody asked for the devices: down, and no failure."""
        self._set(t, False, "detached", sentence)

    def health(self) -> SourceHealth:
        """An immutable copy."""
        return SourceHealth(
            source=self._source,
            target="",
            up=self._up,
            t=self._t,
            duration_seconds=self._duration_seconds,
            last_success=self._last_success,
            error=self._error,
            reason=self.reason,
            errors=dict(self._errors),
        )

"""Logs the changes of state of the sources that do not log their own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from kvpressure.model.samples import NOT_READ_REASON, SourceHealth
from kvpressure.sources.gpu.backend import ABSENT_REASONS
from kvpressure.sources.gpu.process import DetachedError

_NOT_YET_READ: Final = ("starting", "pending")
_EXPECTED: Final = (*ABSENT_REASONS, DetachedError.reason, NOT_READ_REASON)


class HealthLog:
    """Writes one line to `log` per change of state of a source."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._states: dict[tuple[str, str], tuple[bool, str]] = {}

    def write(self, sources: Sequence[SourceHealth]) -> None:
        """Log the sources whose state differs from the last call."""
        known = {(health.source, health.target) for health in sources}
        self._states = {key: state for key, state in self._states.items() if key in known}
        for health in sources:
            key, state = (health.source, health.target), (health.up, health.reason)
            if self._states.get(key) == state or health.reason in _NOT_YET_READ:
                continue
            self._states[key] = state
            write = self._log.info if health.up or health.reason in _EXPECTED else self._log.warning
            write(
                _event(health),
                source=health.source,
                target=health.target,
                error=health.error,
            )


def _event(health: SourceHealth) -> str:
    if health.up:
        return "source up"
    return "source not present" if health.absent else "source not read" if health.not_read else "source down"

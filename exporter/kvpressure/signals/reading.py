"""One poll on its way through the signals: what those before have found is there for those after."""

from __future__ import annotations

from dataclasses import dataclass

from kvpressure.model.values import Derived, known
from kvpressure.signals.context import Context
from kvpressure.signals.verdict_window import VerdictWindow
from kvpressure.signals.windows import EngineWindow


@dataclass(slots=True)
class Reading:
    """What one poll of an engine comes to so far: the values that are exported, and the newest polls for a verdict."""

    window: EngineWindow
    context: Context
    derived: Derived
    newest: VerdictWindow


def judged(reading: Reading) -> Derived:
    """Return the values that are both exported and judged: of each there is one, the verdict window's."""
    newest = reading.newest
    return known(
        {
            "kv_cache_usage_ratio": newest.kv_usage_ratio,
            "admission_blocked_ratio": newest.fit.blocked_ratio,
            "preempted_request_ratio": newest.preemption.request_ratio,
            "refused_request_ratio": newest.refused_ratio,
        }
    )

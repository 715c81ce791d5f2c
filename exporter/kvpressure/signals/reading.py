"""One poll on its way through the signals: what those before have found is there for those after."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import lru_cache

from kvpressure.model.samples import CacheConfig
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

    @property
    def signals(self) -> frozenset[str]:
        """Names of what some poll of the window had, and of what is known of the cache."""
        return self.window.signals() | _known_of(self.window.cache) | self.window.histograms()


def judged(reading: Reading) -> Derived:
    """Return the values that are both exported and judged: of each there is one, the verdict window's."""
    newest, role = reading.newest, reading.newest.transfer.role
    return known(
        {
            "kv_cache_usage_ratio": newest.kv_usage_ratio,
            "admission_blocked_ratio": newest.fit.blocked_ratio,
            "preempted_request_ratio": newest.preemption.request_ratio,
            "refused_request_ratio": newest.refused_ratio,
            "role": {role: 1.0} if role else None,
            "held_for_transfer_tokens": newest.transfer.held_tokens,
            "offload_hit_ratio": newest.deferral.offload_hit_ratio,
            "offload_loads_under_way": newest.deferral.loads,
        }
    )


@lru_cache(maxsize=256)
def _known_of(cache: CacheConfig) -> frozenset[str]:
    return frozenset(field.name for field in fields(cache) if getattr(cache, field.name) is not None)

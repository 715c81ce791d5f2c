"""Counters of what no page counts: estimates of tokens per second, added up from poll to poll."""

from __future__ import annotations

from typing import Final

from kvpressure.model.family import engine_family
from kvpressure.model.values import Derived
from kvpressure.signals.cost import LONGEST_INTERVAL_SECONDS

FAMILIES: Final = (
    engine_family(
        "kv_preempted_tokens_total",
        "Estimated KV cache tokens lost to preemption: preemptions times the mean tokens per running request. Tokens "
        "that stay in the prefix cache are not recomputed. Stands still while it is unknown.",
    ),
    engine_family(
        "recomputed_prompt_tokens_total",
        "Estimated prompt tokens that are computed again after eviction, from the hit ratio at longer cache turnovers. "
        "Stands still while no longer turnover was observed.",
    ),
)

_RATES: Final = (
    ("computed_prompt_tokens_total", "computed_prompt_tokens_per_second"),
    ("kv_preempted_tokens_total", "kv_preempted_tokens_per_second"),
    ("recomputed_prompt_tokens_total", "recomputed_prompt_tokens_per_second"),
)


class Estimates:
    """The counters of one engine, since it is watched; one is absent until its rate is known for the first time.

    Of a time between two polls that is longer than `longest_interval_seconds` nothing is counted.
    """

    def __init__(self, longest_interval_seconds: float = LONGEST_INTERVAL_SECONDS) -> None:
        self._longest_interval_seconds = longest_interval_seconds
        self._t: float | None = None
        self._totals: dict[str, float] = {}

    def take(self, t: float, derived: Derived) -> Derived:
        """Return the counters as of the poll at `t` (unix seconds), but for those that its values `derived` have."""
        seconds = 0.0 if self._t is None else t - self._t
        self._t = t
        if not 0.0 < seconds <= self._longest_interval_seconds:
            seconds = 0.0
        for total, rate in _RATES:
            if rate in derived and total not in derived:
                self._totals.setdefault(total, 0.0)
                self._totals[total] += derived[rate] * seconds  # type: ignore[operator]  # it has no labels
        # What the page counts itself from now on is no estimate any more.
        return {total: value for total, value in self._totals.items() if total not in derived}

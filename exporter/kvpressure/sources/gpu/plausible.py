"""PURE: which readings can be true. Vendor libraries hand out 4294967295 %, used > total and INT64_MAX.

A reading that cannot be true is dropped, counted by reason, and becomes absent.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

LARGEST_MEMORY_BYTES: Final = float(2**50)
"""1 PiB: orders of magnitude above any device, far below the sentinels (INT64_MAX, UINT64_MAX)."""

CLOCK_SLACK_SECONDS: Final = 60.0


class Sieve:
    """Checks the readings of one report; `rejected` counts what it dropped, by reason."""

    def __init__(self) -> None:
        self.rejected: dict[str, int] = {}

    def _reject(self, reason: str) -> None:
        self.rejected[reason] = self.rejected.get(reason, 0) + 1

    def share(self, percent: float | None, reason: str = "utilization_out_of_range") -> float | None:
        """Return a percentage 0..100 as a ratio 0..1; None stays None."""
        if percent is None:
            return None
        if not 0 <= percent <= 100:  # false for NaN too
            self._reject(reason)
            return None
        return percent / 100

    def shares(self, percents: Iterable[float]) -> tuple[float, ...]:
        """Return several percentages as ratios, without those that cannot be true."""
        return tuple(share for share in map(self.share, percents) if share is not None)

    def memory(self, used: float | None, total: float | None) -> tuple[float | None, float | None]:
        """Return used and total bytes. A total that cannot be true takes the used with it: no scale is left."""
        if total is not None and not (0 < total < LARGEST_MEMORY_BYTES):
            self._reject("memory_total_out_of_range")
            return None, None
        if used is not None and not (math.isfinite(used) and 0 <= used < LARGEST_MEMORY_BYTES):
            self._reject("memory_used_out_of_range")
            return None, total
        if used is not None and total is not None and used > total:
            self._reject("memory_used_above_total")
            return None, total
        return used, total

    def sample_time(self, t_seconds: float, now: float) -> bool:
        """Whether a driver's sample time (unix seconds) can be real: not from the future."""
        if 0 < t_seconds <= now + CLOCK_SLACK_SECONDS:
            return True
        self._reject("sample_time_out_of_range")
        return False

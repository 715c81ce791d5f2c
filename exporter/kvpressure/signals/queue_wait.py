"""How long requests that wait now will wait, and since when that has been too long: known before one is served.

Latencies are observed when requests finish, so in a collapse they are the last to show it. The queue shows it at once:
by Little's law those who wait, over those admitted a second, is how long they wait. That is a mean: where some wait for
all the others, because they were preempted or have a lower priority, the slowest first tokens of late show them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Final

from kvpressure.config.thresholds import Thresholds
from kvpressure.model.family import engine_family, json_value
from kvpressure.model.values import Derived, at, known, quantile
from kvpressure.signals.points import mean
from kvpressure.signals.windows import EngineWindow

FAMILIES: Final = (
    engine_family(
        "queue_drain_seconds",
        "Waiting requests divided by the recent admission rate, 0 while none wait; while none are admitted, the time "
        "since the last admission.",
    ),
    engine_family(
        "queue_unserved_seconds",
        "Time for which the queue has taken too long to drain, or first tokens were late or latency was inflated "
        "while requests waited; 0 otherwise, and while the queue shrinks.",
    ),
    json_value("nothing_admitted_seconds", "Time since the last admission, while requests wait and none is admitted."),
)

SLOWEST: Final = 0.99
"""The quantile of first tokens of which serving benchmarks set the longest time that is allowed."""
NEWEST_PARTS: Final = 4
"""The newest of so many parts of the verdict's window is what is compared with the whole: single polls flicker."""


class QueueWait:
    """Since when the queue of one engine is not served in time."""

    def __init__(self) -> None:
        self._since = self._last = float("-inf")
        self._admitted: float | None = None
        """When a request was last admitted, or the queue began, while none is admitted: longer ago than a window."""

    def families(
        self,
        window: EngineWindow,
        waiting: float | None,
        derived: Derived,
        baseline: Mapping[str, float],
        thresholds: Thresholds,
    ) -> Derived:
        """Return `queue_drain_seconds` and `queue_unserved_seconds`; none where the queue is not known.

        `waiting` is how many wait, on average over the polls of the verdict, idle streams left out.
        """
        least_seconds = thresholds.verdict.verdict_window_seconds
        drain, in_vain = drain_seconds(window, waiting, least_seconds), self._in_vain_seconds(window, waiting)
        drain = in_vain if drain is None else drain
        if drain is None:
            self._last = float("-inf")
            return {}
        late = drain > 0 and (
            drain >= _longest_seconds(baseline, thresholds)
            or _inflated(derived, thresholds)
            or _first_tokens_late(window, baseline, thresholds)
        )
        shrinks = _shrinks(window, thresholds)
        # A queue that breathes is not reported while it shrinks, and what comes back began before that.
        if window.t - self._last > thresholds.verdict.verdict_window_seconds:
            self._since = window.t
        if late and not shrinks:
            self._last = window.t
        unserved = not shrinks and window.t - self._last <= thresholds.verdict.cause_hold_seconds
        return known(
            {
                "queue_drain_seconds": drain,
                "queue_unserved_seconds": window.t - self._since if unserved else 0.0,
                "nothing_admitted_seconds": in_vain,
            }
        )

    def _in_vain_seconds(self, window: EngineWindow, waiting: float | None) -> float | None:
        if (seconds := in_vain_seconds(window, waiting)) is None:
            self._admitted = None
            return None
        if self._admitted is None:
            self._admitted = window.t - seconds
        return window.t - self._admitted


def drain_seconds(window: EngineWindow, waiting: float | None, least_seconds: float) -> float | None:
    """Return seconds until the waiting requests are admitted at the recent rate, if no others came; None if not known.

    The rate is that of the last `least_seconds`, or since the newest admission before them, or of as long as is known.
    """
    if waiting is None or waiting <= 0:
        return waiting
    admissions, drain = _admissions(window), None
    now = window.newest(admissions)
    if now is None:
        return None
    for point in reversed(window.points):
        if admissions in point.counters and point.counters[admissions] < now:
            seconds = window.t - point.t
            drain = waiting * seconds / (now - point.counters[admissions])
            if seconds >= least_seconds:
                break
    return drain


def in_vain_seconds(window: EngineWindow, waiting: float | None) -> float | None:
    """Return for how long requests have waited and none was admitted; None where one was in the window, or unknown."""
    admissions = _admissions(window)
    now = window.newest(admissions)
    if not waiting or now is None:
        return None
    since, queued = window.t, True
    for point in reversed(window.points):
        if admissions in point.counters and point.counters[admissions] < now:
            return None
        queued = queued and point.gauges.get("waiting", 0.0) > 0
        since = point.t if queued else since
    return window.t - since


def _admissions(window: EngineWindow) -> str:
    return "started" if window.shows("started") else "finished"


def _longest_seconds(baseline: Mapping[str, float], thresholds: Thresholds) -> float:
    """Return the time to drain from which a queue is not served in time.

    A request that waits as long as a healthy one takes in all will take twice that: latency will be inflated.
    """
    more = (thresholds.symptoms.latency_inflated_min_factor - 1.0) * baseline.get("e2e", float("inf"))
    return min(thresholds.queue.queue_drain_max_seconds, more)


def _inflated(derived: Derived, thresholds: Thresholds) -> bool:
    factors = (at(derived, "latency_inflation_ratio", kind) for kind in ("e2e", "inter_token"))
    return any(factor is not None and factor >= thresholds.symptoms.latency_inflated_min_factor for factor in factors)


def _first_tokens_late(window: EngineWindow, baseline: Mapping[str, float], thresholds: Thresholds) -> bool:
    """Whether one first token in a hundred took too long of late, where long prompts take less when all is healthy."""
    slowest = window.of_histograms(_slowest_first_token, thresholds.verdict.verdict_window_seconds)
    healthy = thresholds.symptoms.latency_inflated_min_factor * baseline.get("ttft", 0.0)
    return slowest is not None and slowest >= max(thresholds.queue.first_token_max_seconds, healthy)


def _slowest_first_token(window: EngineWindow, seconds: float) -> float | None:
    first_tokens = window.histogram("ttft", seconds)
    return None if first_tokens is None else quantile(first_tokens, SLOWEST)


def _shrinks(window: EngineWindow, thresholds: Thresholds) -> bool:
    """Whether far fewer wait than a moment ago: what is over soon is not reported any more."""
    seconds = thresholds.verdict.verdict_window_seconds
    before, now = _waiting(window, seconds), _waiting(window, seconds / NEWEST_PARTS)
    return bool(now) and mean(now) < thresholds.queue.queue_shrinks_max_ratio * mean(before)


def _waiting(window: EngineWindow, seconds: float) -> Sequence[float]:
    """Return how many waited at the polls of the last seconds that have it."""
    first = bisect_right(window.points.times, window.t - seconds)
    return [waiting for waiting in window.points.readings("waiting")[first:] if waiting is not None]

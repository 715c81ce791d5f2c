"""How long requests that wait now will wait, and since when that has been too long: known before one is served.

Latencies are observed when requests finish, so in a collapse they are the last to show it. The queue shows it at once:
by Little's law those who wait, over those admitted a second, is how long they wait. That is a mean: where some wait for
all the others, because they were preempted or have a lower priority, the slowest first tokens of late show them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import Final

from kvpressure.config.thresholds import Thresholds
from kvpressure.model.family import engine_family
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
)

SLOWEST: Final = 0.99
"""The quantile of first tokens of which serving benchmarks set the longest time that is allowed."""
NEWEST_PARTS: Final = 4
"""The newest of so many parts of the verdict's window is what is compared with the whole: single polls flicker."""


class QueueWait:
    """Since when the queue of one engine is not served in time."""

    def __init__(self) -> None:
        self._since = self._last = float("-inf")

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
        drain = drain_seconds(window, waiting, thresholds.verdict.verdict_window_seconds)
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
            {"queue_drain_seconds": drain, "queue_unserved_seconds": window.t - self._since if unserved else 0.0}
        )


def drain_seconds(window: EngineWindow, waiting: float | None, least_seconds: float) -> float | None:
    """Return seconds until the waiting requests are admitted at the recent rate, if no others came; None if not known.

    The rate is that of the last `least_seconds`, or since the newest admission before them, or of as long as is known.
    Where there was none in the whole window, the time is that for which requests have waited in vain.
    """
    if waiting is None or waiting <= 0:
        return waiting
    counter = "started" if window.shows("started") else "finished"
    now, since = window.newest(counter), window.t
    if now is None:
        return None
    queued, drain = True, None
    points, newest_t = window.points, window.t
    counts, queue = points.counts(counter), points.readings("waiting")
    for place in range(len(points) - 1, -1, -1):
        t, read = points.times[place], counts[place]
        counted = now if read is None else read
        if counted < now:
            drain = waiting * (newest_t - t) / (now - counted)
            if newest_t - t >= least_seconds:
                break
        queued = queued and counted >= now and (queue[place] or 0.0) > 0
        since = t if queued else since
    return newest_t - since if drain is None else drain


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
    before, now = (
        window.points.newest(bisect_right(window.points.times, window.t - lately)).values("waiting")
        for lately in (seconds, seconds / NEWEST_PARTS)
    )
    return bool(now) and mean(now) < thresholds.queue.queue_shrinks_max_ratio * mean(before)

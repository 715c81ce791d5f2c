"""Since when an engine's page has been idle, what this exporter itself asked for left out."""

from __future__ import annotations

from typing import Final

from kvpressure.signals.windows import Point

_OUTPUT: Final = ("prompt_tokens", "generation_tokens", "finished")


class Idleness:
    """One engine. `since` is when its page became idle after traffic (unix seconds), None while it is not or had none.

    What the server counted before it was first read is traffic, unless it has only just `started`.
    """

    def __init__(self, *, started: bool = False) -> None:
        self.since: float | None = None
        self._had_traffic = False
        self._started = started
        self._last: Point | None = None

    def take(self, point: Point, *, ours: bool) -> None:
        """Take one poll in. `ours`: a request of this exporter was under way; one more than that is traffic."""
        last, self._last = self._last, point
        running, waiting = point.gauges.get("running"), point.gauges.get("waiting")
        if running is None or waiting is None:
            self.since = None
            return
        if last is None:
            self._had_traffic = not self._started and any(point.counters.get(name) for name in _OUTPUT)
        grown = 0.0 if last is None else max(_growth(last, point, name) for name in ("generation_tokens", "finished"))
        counted = last is not None and any(_growth(last, point, name) for name in _OUTPUT)
        if not (running or waiting or counted):
            if self.since is None and self._had_traffic:
                self.since = point.t
        elif not (ours and running + waiting <= 1 and grown <= 1):
            self._had_traffic, self.since = True, None


def _growth(before: Point, after: Point, name: str) -> float:
    return after.counters.get(name, 0.0) - before.counters.get(name, 0.0)

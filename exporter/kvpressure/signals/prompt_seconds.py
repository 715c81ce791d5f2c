"""Seconds of an engine's time that one prompt token takes: least squares over what it did while it was busy.

The page times a prompt from its admission to its first token, with the decoding of others in the same steps in it, and
tells of it when the request ends. KV events tell the tokens of each step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from kvpressure.signals.linear import solved
from kvpressure.signals.points import Point

ROWS: Final = 60
LEAST_ROWS: Final = 10
SPACING_SECONDS: Final = 2.0
"""Of a row: a step with much of a prompt takes up to half a second, and lies in one row or the next."""
_TERMS: Final = ((0, 1, 2), (0, 1), (0, 2), (0,))
"""Those kept: no step takes less than no time."""


class _Row(NamedTuple):
    """What was done in a few seconds: `used` is the use of the cache summed over the steps, each of which reads it."""

    seconds: float = 0.0
    steps: float = 0.0
    used: float = 0.0
    tokens: float = 0.0


class PromptSeconds:
    """Fits tokens = (seconds - steps x a - used x b) / c to the last rows in which requests ran all the time.

    The tokens are what is known least exactly, for a step that has not ended is counted in part; so they are what is
    explained, and errors in them do not make `c` too small.
    """

    def __init__(self) -> None:
        self._rows: deque[_Row] = deque(maxlen=ROWS)
        self._row = _Row()
        self._stored: float | None = None
        self.seconds: float | None = None
        """Of one prompt token; None where the page counts no steps, and until enough was seen."""

    def restarted(self) -> None:
        """Begin anew: another process answers."""
        self._rows.clear()
        self._row, self._stored, self.seconds = _Row(), None, None

    def take(self, points: Sequence[Point], stored: float | None) -> None:
        """Take in the newest poll, by which so many tokens were `stored` in all; None: not known."""
        before, self._stored = self._stored, stored
        done = None if len(points) < 2 or before is None or stored is None else _done(points[-2], points[-1])
        if done is None or stored is None or before is None or stored < before:
            self._row = _Row()
            return
        done = done._replace(tokens=done.tokens + stored - before)
        self._row = _Row(*(a + b for a, b in zip(self._row, done, strict=True)))
        if self._row.seconds >= SPACING_SECONDS:
            self._rows.append(self._row._replace(tokens=max(0.0, self._row.tokens)))
            self._row = _Row()
            self.seconds = _fitted(self._rows) if len(self._rows) >= LEAST_ROWS else None


def _done(earlier: Point, later: Point) -> _Row | None:
    """Return what was done between two polls, answers off the tokens; None where nothing ran at one of them."""
    if not (earlier.gauges.get("running") and later.gauges.get("running")):
        return None
    grown = [
        later.counters[name] - earlier.counters[name]
        for name in ("steps", "generation_tokens")
        if name in later.counters and name in earlier.counters
    ]
    if len(grown) < 2:
        return None
    steps, generated = grown
    return _Row(later.t - earlier.t, steps, steps * later.gauges.get("kv_usage", 0.0), -generated)


def _fitted(rows: Sequence[_Row]) -> float | None:
    """Return `c`; None where no tokens were computed, or they do not go with the time."""
    columns = [(row.seconds, -row.steps, -row.used) for row in rows]
    for terms in _TERMS:
        squares = [[sum(one[i] * one[j] for one in columns) for j in terms] for i in terms]
        right = [sum(one[i] * row.tokens for one, row in zip(columns, rows, strict=True)) for i in terms]
        for place, line in enumerate(squares):
            line[place] *= 1.0 + _RIDGE
        if not all(line[place] for place, line in enumerate(squares)):
            continue
        found = solved(squares, right)
        if min(found) >= 0:
            return 1.0 / found[0] if found[0] > 0 else None
    return None


_RIDGE: Final = 1e-9
"""Makes what two terms tell alike one solution of many, where it would be none."""

"""Seconds of an engine's time that one prompt token takes: least squares over what it did while it was busy.

The page times a prompt from its admission to its first token, with the decoding of others in the same steps in it, and
reports it when the request ends. KV events report the tokens of each step.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from kvpressure.model.linear_system import solved
from kvpressure.signals.points import Point

ROWS: Final = 60
LEAST_ROWS: Final = 10
SPACING_SECONDS: Final = 2.0
"""Of a row, at least: a step with much of a prompt takes up to half a second, and lies in one row or the next."""
LONGEST_POLL_SECONDS: Final = 3.0
"""Between two polls: whether requests ran all the time between others is not known."""
_POLLS: Final = 4
"""Events are at most a few polls old."""
_TERMS: Final = ((0, 1, 2), (0, 1), (0, 2), (0,))
"""Those kept: no step takes less than no time."""


class _Work(NamedTuple):
    """What was done by then, or between two such: `used` is the use of the cache summed over the steps that read it."""

    seconds: float
    steps: float
    used: float
    generated: float
    stored: float = 0.0

    def since(self, before: _Work) -> _Work:
        return _Work(*(now - then for now, then in zip(self, before, strict=True)))

    def part(self, ratio: float) -> _Work:
        return _Work(*(part * ratio for part in self))


class PromptSeconds:
    """Fits prompt tokens = (seconds - steps x a - used x b) / c to the last rows in which requests ran all the time.

    The tokens are what is known least exactly, for a step that has not ended is counted in part; so they are what is
    explained, and errors in them do not make `c` too small.
    """

    def __init__(self) -> None:
        self._rows: deque[_Work] = deque(maxlen=ROWS)
        self._polls: deque[_Work] = deque(maxlen=_POLLS)
        """The newest in a row at which requests ran."""
        self._last: _Work | None = None
        self.seconds: float | None = None
        """Of one prompt token; None where the page counts no steps, and until there are enough rows."""

    def restarted(self) -> None:
        """Forget what was learned: another process answers."""
        self._rows.clear()
        self._polls.clear()
        self._last = self.seconds = None

    def interrupted(self) -> None:
        """Leave out what was done since the last row: not all that was stored is known."""
        self._last = None

    def take(self, newest: Point, t: float, stored: float) -> None:
        """Take in a poll, and the tokens that had been `stored` in all at `t` (unix seconds), which is about then."""
        if (now := self._poll(newest)) is not None:
            self._polls.append(now)
        at = _at(self._polls, t)
        if at is None:
            self._last = None
            return
        at, last = at._replace(stored=stored), self._last
        if last is None or at.seconds < last.seconds or stored < last.stored:
            self._last = at
        elif at.seconds - last.seconds >= SPACING_SECONDS:
            self._last = at
            self._rows.append(at.since(last))
            self.seconds = _fitted(self._rows) if len(self._rows) >= LEAST_ROWS else None

    def _poll(self, newest: Point) -> _Work | None:
        """Return the work done up to a poll, counted from anywhere; None where nothing ran, or it is not counted."""
        before = self._polls[-1] if self._polls else None
        steps, generated = (newest.counters.get(name) for name in ("steps", "generation_tokens"))
        idle = not newest.gauges.get("running") or steps is None or generated is None
        if idle or before is None or not 0 < newest.t - before.seconds <= LONGEST_POLL_SECONDS:
            self._polls.clear()
            self._last = None
        if idle or steps is None or generated is None:
            return None
        if not self._polls or before is None:
            return _Work(newest.t, steps, 0.0, generated)
        used = before.used + (steps - before.steps) * newest.gauges.get("kv_usage", 0.0)
        return _Work(newest.t, steps, used, generated)


def _at(polls: Sequence[_Work], t: float) -> _Work | None:
    """Return the work done by `t`, between two polls; None where it is not known that requests ran then."""
    if not polls or t < polls[0].seconds:
        return None
    for earlier, later in zip(polls, itertools.islice(polls, 1, None), strict=False):
        if t < later.seconds:
            done = later.since(earlier).part((t - earlier.seconds) / (later.seconds - earlier.seconds))
            return _Work(*(before + more for before, more in zip(earlier, done, strict=True)))
    return polls[-1]


def _fitted(rows: Sequence[_Work]) -> float | None:
    """Return `c`; None where no tokens were computed, or they do not go with the time."""
    tokens = [max(0.0, row.stored - row.generated) for row in rows]
    columns = [(row.seconds, -row.steps, -row.used) for row in rows]
    for terms in _TERMS:
        squares = [[sum(row[i] * row[j] for row in columns) for j in terms] for i in terms]
        right = [sum(row[i] * computed for row, computed in zip(columns, tokens, strict=True)) for i in terms]
        for place, line in enumerate(squares):
            line[place] *= 1.0 + _RIDGE
        if not all(line[place] for place, line in enumerate(squares)):
            continue
        coefficients = solved(squares, right)
        if min(coefficients) >= 0:
            return 1.0 / coefficients[0] if coefficients[0] > 0 else None
    return None


_RIDGE: Final = 1e-9
"""Makes the system solvable where two terms say the same."""

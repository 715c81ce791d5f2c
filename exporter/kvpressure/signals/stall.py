"""Demand that is not served: for how long no request has begun to be answered or ended, and what came out meanwhile.

It is followed from poll to poll, so that it is known since when it is so, however long ago that began and however rare
polls are. What runs at the moment of a poll says little: an engine that computes the same prompt again and again shows
a batch of one in some polls and a queue of one in the others.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kvpressure.model.record import record
from kvpressure.signals.gateway import IN_ENGINE
from kvpressure.signals.points import Point, grown
from kvpressure.signals.progress import how_paused
from kvpressure.signals.windows import EngineWindow

_RATE_SECONDS: Final = 10.0
"""Rates over less are of single steps."""

_TRICKLE_SECONDS: Final = 60.0
"""What comes out now is counted over so long: before that, the engine may have worked as usual."""

_FALL_RATIO: Final = 0.5
"""A use of the cache that falls to this share of its highest has lost a request, and not blocks outside a window."""

_LEAST_USE_RATIO: Final = 0.02
"""Of less, single blocks of short requests make half."""

_LEAST_FILL_TOKENS: Final = 64.0
_FILL_BLOCKS: Final = 2
"""Use grows in whole blocks: so many for each request that runs say nothing yet."""

_FILL_RATIO: Final = 0.002
"""Growth of use that counts where the size of the cache is not known, and answers grow too."""


@record
class Stall:
    """What has come out since anybody was served, at the newest poll; `seconds` is 0 where somebody just was.

    Served is a request that got its first token, or ended without being given up by its client. `tokens` were generated
    meanwhile, `tokens_per_second` of them over the last minute, `before_tokens_per_second` is the highest rate known of
    this engine, `request_tokens_per_second` that of each request while it is decoded; None where not known.
    `step_seconds` and `before_step_seconds` are a step's, lately and at its shortest. `filled_seconds` is how long ago
    a prompt last grew in the cache, by more than answers explain; `falls` is how often what was computed was given up.
    `runs` is the mean batch of that minute, `waits` the least number that waited, `deferred` those of them that were
    deferred in the newest poll. `grows`: more wait than when it began. `full_ratio` is the highest use of the cache.
    """

    seconds: float = 0.0
    polls: int = 0
    tokens: float | None = None
    tokens_per_second: float | None = None
    before_tokens_per_second: float | None = None
    request_tokens_per_second: float | None = None
    step_seconds: float | None = None
    before_step_seconds: float | None = None
    filled_seconds: float = 0.0
    falls: int = 0
    runs: float = 0.0
    waits: float = 0.0
    deferred: float = 0.0
    grows: bool = False
    full_ratio: float = 0.0


SERVED: Final = Stall()
"""Somebody just was, as far as is known."""


class _Mark(NamedTuple):
    """A poll of an unserved stretch, with the batches of its polls so far added up, and how many these are."""

    point: Point
    running: float
    polls: int


@dataclass(slots=True)
class _Stretch:
    """What is counted from the poll in which somebody was last served."""

    first: Point
    served: float
    polls: int = 1
    running: float = 0.0
    least_waiting: float = math.inf
    falls: int = 0
    filled: float = 0.0
    peak: float = 0.0
    highest: float = 0.0
    excess: float = 0.0
    marks: deque[_Mark] = field(default_factory=deque)

    def lately(self, newest: Point) -> tuple[float | None, float]:
        """Return tokens a second and the mean batch over the last minute, or since anybody was served."""
        marks = self.marks
        if not marks or newest.t - marks[-1].point.t >= _RATE_SECONDS:
            marks.append(_Mark(newest, self.running, self.polls))
        while len(marks) > 1 and marks[1].point.t <= newest.t - _TRICKLE_SECONDS:
            marks.popleft()
        first = marks[0]
        tokens, seconds = grown(first.point, newest, "generation_tokens"), newest.t - first.point.t
        polls = self.polls - first.polls
        runs = (self.running - first.running) / polls if polls else self.running / self.polls
        return None if tokens is None or seconds <= 0 else tokens / seconds, runs


class ServiceWatch:
    """Follows one engine. It forgets an unserved stretch at a gap, and what the engine can do when it is restarted."""

    def __init__(self) -> None:
        self._stretch: _Stretch | None = None
        self._last: Point | None = None
        self._mark: Point | None = None
        self._tokens_per_second: float | None = None
        self._request_tokens_per_second: float | None = None
        self._step_seconds: float | None = None

    def begin_anew(self) -> None:
        """Forget since when nobody has been served."""
        self._stretch = self._last = self._mark = None

    def take(self, point: Point, window: EngineWindow) -> Stall:
        """Return what is known after a poll, the newest of `window`."""
        before, self._last = self._last, point
        running, waiting = point.gauges.get("running"), _waiting(point)
        if running is None or "keeps_last_step" in point.gauges or how_paused(point):
            self._stretch = None
            return SERVED
        self._learn(point, running)
        if before is None or point.t <= window.joined or not (running or waiting) or _served(before, point):
            self._stretch = _Stretch(point, point.t, filled=point.t, running=running)
            self._stretch.peak = self._stretch.highest = point.gauges.get("kv_usage", 0.0)
            return self._stall(point, window)
        stretch = self._stretch or _Stretch(point, point.t, filled=point.t)
        self._stretch = stretch
        stretch.polls += 1
        stretch.running += running
        stretch.least_waiting = min(stretch.least_waiting, waiting)
        _follow_cache(stretch, before, point, window)
        return self._stall(point, window)

    def _stall(self, point: Point, window: EngineWindow) -> Stall:
        stretch = self._stretch
        if stretch is None:
            return SERVED
        first, counted = stretch.first, _counts_service(point)
        tokens = point.counters.get("generation_tokens")
        if tokens is not None:
            tokens -= first.counters.get("generation_tokens", tokens)
        rate, runs = stretch.lately(point)
        return Stall(
            seconds=point.t - stretch.served if counted else 0.0,
            polls=stretch.polls,
            tokens=tokens,
            tokens_per_second=rate,
            before_tokens_per_second=self._tokens_per_second,
            request_tokens_per_second=_highest(self._request_tokens_per_second, _of_all_requests(window)),
            step_seconds=self._newest_step_seconds(point),
            before_step_seconds=self._step_seconds,
            filled_seconds=point.t - stretch.filled,
            falls=stretch.falls,
            runs=runs,
            waits=stretch.least_waiting if stretch.polls > 1 else _waiting(point),
            deferred=point.gauges.get("waiting_deferred", 0.0),
            grows=_waiting(point) > _waiting(first),
            full_ratio=stretch.highest,
        )

    def _learn(self, point: Point, running: float) -> None:
        """Learn the rates of ten seconds in which something ran, at both ends."""
        mark = self._mark
        if mark is None or running < 1 or mark.gauges.get("running", 0.0) < 1:
            self._mark = point
            return
        seconds = point.t - mark.t
        if seconds < _RATE_SECONDS:
            return
        rates = [grown(mark, point, name) for name in ("generation_tokens", "steps")]
        tokens, steps = (None if growth is None else growth / seconds for growth in rates)
        batch = (running + mark.gauges["running"]) / 2
        self._tokens_per_second = _highest(self._tokens_per_second, tokens)
        each = None if tokens is None else tokens / batch
        self._request_tokens_per_second = _highest(self._request_tokens_per_second, each)
        if steps:
            self._step_seconds = min(1 / steps, self._step_seconds or 1 / steps)
        self._mark = point

    def _newest_step_seconds(self, point: Point) -> float | None:
        """Return the seconds of a step since anybody was served, None without a step."""
        stretch = self._stretch
        steps = None if stretch is None else grown(stretch.first, point, "steps")
        return None if stretch is None or not steps else (point.t - stretch.served) / steps


def _waiting(point: Point) -> float:
    """Return how many wait in the engine itself."""
    gauges = point.gauges
    return gauges[IN_ENGINE] if IN_ENGINE in gauges else gauges.get("waiting", 0.0)


def _counts_service(point: Point) -> bool:
    return any(name in point.counters for name in ("started", "finished", "finished_prompts", "generation_tokens"))


def _served(before: Point, after: Point) -> bool:
    """Return whether somebody was served between two polls."""
    started, finished = grown(before, after, "started"), grown(before, after, "finished")
    if started is None and finished is None:
        names = ("finished_prompts", "generation_tokens")
        return bool(next((more for name in names if (more := grown(before, after, name)) is not None), 0.0))
    return bool(started) or (finished or 0.0) > (grown(before, after, "aborted") or 0.0)


def _follow_cache(stretch: _Stretch, before: Point, after: Point, window: EngineWindow) -> None:
    """Take in how the use of the cache changed between two polls."""
    usage, usage_before = after.gauges.get("kv_usage"), before.gauges.get("kv_usage")
    if usage is None or usage_before is None:
        if after.gauges.get("running"):
            stretch.filled = after.t  # a prompt may be under way, for all that is known
        return
    stretch.peak, stretch.highest = max(stretch.peak, usage_before), max(stretch.highest, usage)
    if stretch.peak >= _LEAST_USE_RATIO and usage <= _FALL_RATIO * stretch.peak:
        stretch.falls += not grown(before, after, "aborted")
        stretch.peak, stretch.excess = usage, 0.0
        return
    generated = grown(before, after, "generation_tokens") or 0.0
    capacity, block = window.cache.capacity_tokens, window.cache.block_size or 16
    if capacity is None:
        if usage - usage_before > (_FILL_RATIO if generated else 0.0):
            stretch.filled = after.t
        return
    stretch.excess = max(0.0, stretch.excess + (usage - usage_before) * capacity - generated)
    blocks = _FILL_BLOCKS * block * max(1.0, after.gauges.get("running", 0.0))
    if stretch.excess > max(_LEAST_FILL_TOKENS, blocks):
        stretch.filled, stretch.excess = after.t, 0.0


def _of_all_requests(window: EngineWindow) -> float | None:
    """Return the tokens a second of one request, over all that ended since the server started; None if not known."""
    between = window.total("inter_token")
    if between is not None and between.count and between.sum > 0:
        return between.count / between.sum
    tokens, seconds = window.newest("finished_output_tokens"), window.newest("inference_seconds")
    return None if tokens is None or not seconds else tokens / seconds


def _highest(known: float | None, other: float | None) -> float | None:
    return max((value for value in (known, other) if value is not None), default=None)

"""Whether an engine gets anywhere: what moves between polls, what stands still, and since when.

Engines set their gauges when the outputs of a step come back. So the page of an engine whose core hangs stands still
as a whole, with requests in its batch; a long prefill moves the use of the cache chunk by chunk, and pooling moves
prompts and steps without one generated token.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, NamedTuple

from kvpressure.model.record import record
from kvpressure.signals.gateway import IN_ENGINE
from kvpressure.signals.points import Point
from kvpressure.signals.windows import EngineWindow

_OUTPUT: Final = ("prompt_tokens", "generation_tokens", "finished", "started", "finished_prompts", "token_gaps")
_DECODING: Final = ("generation_tokens", "steps", "token_gaps")
_PROMPTS: Final = ("prompt_tokens", "started", "finished_prompts", "preemptions")
_COUNTERS: Final = ("steps", *_OUTPUT, "preemptions")
_GAUGES: Final = ("running", "waiting", "waiting_deferred", "kv_usage")


@record
class Progress:
    """Seconds up to the newest poll.

    `frozen_seconds`: requests run, and nothing that work moves has moved. `still_seconds`: nothing runs, requests wait
    for a place in the batch, and nothing moved. `looping_seconds`: requests run, the use of the cache falls and rises,
    and nothing comes out: no token, no prompt, no finished request. `standing` names the signals of the page that have
    not moved for `standing_seconds`, the longest of the three. `filling_seconds`: requests ran, the use of the cache
    only rose, and no prompt was done; `filled_ratio` is the share of prompts under
    way in what came into it. `paused_by` is how it was stopped on purpose, a
    detail of that cause, "" where it was not. `last_step_seconds`: nothing has moved on a page that keeps
    what its last step said while there is nothing to do; then none of the others is known.
    """

    frozen_seconds: float = 0.0
    still_seconds: float = 0.0
    looping_seconds: float = 0.0
    standing_seconds: float = 0.0
    paused_by: str = ""
    moved: bool = True
    standing: tuple[str, ...] = ()
    last_step_seconds: float = 0.0
    filling_seconds: float = 0.0
    filled_ratio: float = 0.0


def progress_of(window: EngineWindow, done_within_seconds: float = 0.0) -> Progress:
    """Return what the window's polls show; a long prompt also where it was done in the last `done_within_seconds`."""
    track = _Track(window)
    points, last = track.points, track.last
    newest = points[-1]
    if paused_by := how_paused(newest):
        return Progress(paused_by=paused_by)
    unmoved = points[max(track.unmoved(_WORK, last), track.same_gauges())].t
    running, waiting = newest.gauges.get("running"), newest.gauges.get("waiting", 0.0)
    if "keeps_last_step" in newest.gauges and newest.t > unmoved and (running != 0 or waiting):
        return Progress(last_step_seconds=newest.t - unmoved, moved=unmoved > points[track.first].t)
    deferred = newest.gauges.get("waiting_deferred", 0.0)
    counted = not newest.counters.keys().isdisjoint(_OUTPUT)
    seconds = newest.t - unmoved if counted else 0.0
    # What moves while answers grow, if the page has it: of the rest nothing may move for minutes.
    decodes = not newest.counters.keys().isdisjoint(_DECODING)
    frozen = seconds if running and decodes else 0.0
    still = newest.t - points[track.still()].t if running == 0 and waiting - deferred >= 1 else 0.0
    looping = track.looping_seconds() if running and "generation_tokens" in newest.counters else 0.0
    filling, filled = track.filling(window.cache.capacity_tokens, done_within_seconds) if counted else (0.0, 0.0)
    return Progress(
        frozen_seconds=frozen,
        still_seconds=still,
        looping_seconds=looping,
        standing_seconds=max(frozen, still, looping),
        moved=not counted or seconds == 0.0 or newest.t - unmoved < newest.t - points[track.first].t,
        standing=_standing(newest, everything=frozen >= max(still, looping)) if max(frozen, still, looping) else (),
        filling_seconds=filling,
        filled_ratio=filled,
    )


def _standing(point: Point, *, everything: bool) -> tuple[str, ...]:
    """Return the signals of the page that stand still: all that work moves, or what comes out of it."""
    counters = [name for name in (_COUNTERS if everything else _OUTPUT) if name in point.counters]
    return (*counters, *(name for name in _GAUGES if everything and name in point.gauges))


def how_paused(point: Point) -> str:
    """Return how an engine was stopped on purpose at a poll, "" where it was not."""
    gauges = point.gauges
    if ("awake" in gauges and gauges["awake"] <= 0) or ("falling_asleep" in gauges and gauges["falling_asleep"] > 0):
        return "asleep"
    if "updating" in gauges and gauges["updating"] > 0:
        return "weight_update"
    return "pause_call" if "pauses" in gauges and gauges["pauses"] > gauges.get("resumes", 0.0) else ""


class _Same(NamedTuple):
    """Whether counters are the same at two polls in a row: all that work moves, what comes out of it, prompts."""

    work: bool
    output: bool
    prompts: bool


_WORK, _CAME_OUT, _PROMPT = range(3)
"""Places in `_Same`."""


def _same(before: Point, after: Point) -> _Same:
    readings = zip(_COUNTERS, map(before.counters.get, _COUNTERS), map(after.counters.get, _COUNTERS), strict=True)
    moved = {name for name, earlier, later in readings if earlier != later}
    return _Same(not moved, moved.isdisjoint(_OUTPUT), moved.isdisjoint(_PROMPTS))


class _Track:
    """The polls of a window since another process joined, and what changed between each two of them.

    Polls are named by their places. What has been the same since a poll is found by walking back from the newest, no
    further than that: polls that moved end the walk at once.
    """

    def __init__(self, window: EngineWindow) -> None:
        self.points = window.points
        self.first, self.last = bisect_left(self.points.times, window.joined), len(self.points) - 1
        self._same = window.each_interval(_same)
        self._running = self.points.readings("running")
        self._usage = self.points.readings("kv_usage")

    def unmoved(self, counters: int, last: int) -> int:
        """Return the first poll since which these have been what they are in the poll `last`."""
        place = last
        same = self._same
        first = self.first
        while place > first and same[place - 1][counters]:
            place -= 1
        return place

    def same_gauges(self) -> int:
        """Return the first poll since which no gauge that work moves has differed from the newest.

        What a gateway holds back changes while an engine hangs.
        """
        last = self.last
        waiting, deferred, inside = map(self.points.readings, ("waiting", "waiting_deferred", IN_ENGINE))
        running, usage = self._running, self._usage
        place, behind = last, inside[last] is not None
        own = inside[last] if behind else waiting[last]
        while place > self.first:
            before = place - 1
            other = waiting[before] if inside[before] is None else inside[before]
            if other != own or running[before] != running[last] or usage[before] != usage[last]:
                break
            alone = not behind and inside[before] is None
            if alone and (waiting[before] != waiting[last] or deferred[before] != deferred[last]):
                break
            place = before
        return place

    def still(self) -> int:
        """Return the first poll since which nothing has run while requests waited, and nothing came out."""
        place, waiting = self.unmoved(_CAME_OUT, self.last), self.points.readings("waiting")
        for at in range(self.last, place, -1):
            if not self._waits(at, waiting):
                return min(at + 1, self.last)
        return place if self._waits(place, waiting) else min(place + 1, self.last)

    def _waits(self, place: int, waiting: Sequence[float | None]) -> bool:
        return self._running[place] == 0 and (waiting[place] or 0.0) >= 1

    def _runs(self, last: int, least: int) -> int:
        """Return the first poll since which requests have run, up to the poll `last`; no earlier one than `least`."""
        place, running = last + 1, self._running
        while place > least and (running[place - 1] or 0.0) >= 1:
            place -= 1
        return min(place, last)

    def looping_seconds(self) -> float:
        """Return how long nothing has come out of a batch whose cache use keeps falling; 0 unless it fell twice."""
        last = self.last
        since = self.unmoved(_CAME_OUT, last)
        falls, _ = self._falls_and_rises(since, last)
        return self.points[last].t - self.points[since].t if falls >= 2 and self._runs(last, since) <= since else 0.0

    def filling(self, capacity_tokens: float | None, done_within_seconds: float) -> tuple[float, float]:
        """Return for how long the cache only filled and no prompt was done, now or lately; and the share of prompts.

        The page counts a prompt when its first token comes; answers are counted as they grow.
        """
        last, same = self.last, self._same
        longest, newest_t = self._filled(last, capacity_tokens), self.points[last].t
        for place in range(last, self.first + 1, -1):
            if newest_t - self.points[place].t > done_within_seconds:
                break
            if not same[place - 1][_PROMPT] and same[place - 2][_PROMPT]:
                longest = max(longest, self._filled(place - 1, capacity_tokens))
        return longest

    def _filled(self, last: int, capacity_tokens: float | None) -> tuple[float, float]:
        """Return the same of the time up to the poll `last`; 0 seconds unless the use of the cache rose twice."""
        since = self._runs(last, self.unmoved(_PROMPT, last))
        if last - since < 2:
            return 0.0, 0.0
        falls, rises = self._falls_and_rises(since, last)
        if falls or rises < 2:
            return 0.0, 0.0
        first, newest = self.points[since], self.points[last]
        if not _counts_answers(first, newest):
            return 0.0, 0.0
        generated = newest.counters.get("generation_tokens", 0.0) - first.counters.get("generation_tokens", 0.0)
        came = (newest.gauges.get("kv_usage", 0.0) - first.gauges.get("kv_usage", 0.0)) * (capacity_tokens or 0.0)
        ratio = 1.0 if generated <= 0 else max(0.0, 1.0 - generated / came) if came else 0.0
        return newest.t - first.t, ratio

    def _falls_and_rises(self, since: int, last: int) -> tuple[int, int]:
        """Return how often the use of the cache fell and rose from one poll to the next."""
        falls = rises = 0
        before = self._usage[since] or 0.0
        for place in range(since + 1, last + 1):
            after = self._usage[place] or 0.0
            falls, rises = falls + (after < before), rises + (after > before)
            before = after
        return falls, rises


def _counts_answers(first: Point, newest: Point) -> bool:
    """Return whether the page counts tokens as they are generated, so that answers do not look like a prompt.

    Some runtimes count them when requests end, and some monitoring drops the counter.
    """
    if "generation_tokens" not in newest.counters:
        return False
    decoded = newest.counters.get("decode_steps", 0.0) - first.counters.get("decode_steps", 0.0)
    return decoded <= 0 or newest.counters["generation_tokens"] > first.counters.get("generation_tokens", 0.0)

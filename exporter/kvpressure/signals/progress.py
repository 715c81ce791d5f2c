"""Whether an engine gets anywhere: what moves between polls, what stands still, and since when.

Engines set their gauges when the outputs of a step come back. So the page of an engine whose core hangs stands still
as a whole, with requests in its batch; a long prefill moves the use of the cache chunk by chunk, and pooling moves
prompts and steps without one generated token.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Final

from kvpressure.model.record import record
from kvpressure.signals.gateway import IN_ENGINE
from kvpressure.signals.points import Point
from kvpressure.signals.windows import EngineWindow

_OUTPUT: Final = ("prompt_tokens", "generation_tokens", "finished", "started", "finished_prompts", "token_gaps")
_PROMPTS: Final = ("prompt_tokens", "started", "finished_prompts", "preemptions")
_COUNTERS: Final = ("steps", *_OUTPUT, "preemptions")
_GAUGES: Final = ("running", "waiting", "waiting_deferred", "kv_usage")
_GAUGES_BEHIND: Final = ("running", "kv_usage")


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

    @property
    def paused(self) -> bool:
        """Whether it is asleep, paused, or its weights are being exchanged."""
        return bool(self.paused_by)


def progress_of(window: EngineWindow, done_within_seconds: float = 0.0) -> Progress:
    """Return what the window's polls show; a long prompt also where it was done in the last `done_within_seconds`."""
    points = [point for point in window.points if point.t >= window.joined]
    newest = points[-1]
    if paused_by := _paused_by(newest):
        return Progress(paused_by=paused_by)
    unmoved = max(_unmoved_since(points, _COUNTERS), _since(points, lambda point: _same_gauges(point, newest)))
    running, waiting = newest.gauges.get("running"), newest.gauges.get("waiting", 0.0)
    if "keeps_last_step" in newest.gauges and newest.t > unmoved and (running != 0 or waiting):
        return Progress(last_step_seconds=newest.t - unmoved, moved=unmoved > points[0].t)
    deferred = newest.gauges.get("waiting_deferred", 0.0)
    counted = any(name in newest.counters for name in _OUTPUT)
    seconds = newest.t - unmoved if counted else 0.0
    frozen = seconds if running else 0.0
    still = newest.t - _still_since(points) if running == 0 and waiting - deferred >= 1 else 0.0
    looping = _looping(points) if running and counted else 0.0
    filling, filled = _filling(points, window.cache.capacity_tokens, done_within_seconds) if counted else (0.0, 0.0)
    return Progress(
        frozen_seconds=frozen,
        still_seconds=still,
        looping_seconds=looping,
        standing_seconds=max(frozen, still, looping),
        moved=not counted or seconds == 0.0 or newest.t - unmoved < newest.t - points[0].t,
        standing=_standing(newest, everything=frozen >= max(still, looping)) if max(frozen, still, looping) else (),
        filling_seconds=filling,
        filled_ratio=filled,
    )


def _standing(point: Point, *, everything: bool) -> tuple[str, ...]:
    """Return the signals of the page that stand still: all that work moves, or what comes out of it."""
    counters = [name for name in (_COUNTERS if everything else _OUTPUT) if name in point.counters]
    return (*counters, *(name for name in _GAUGES if everything and name in point.gauges))


def _paused_by(point: Point) -> str:
    gauges = point.gauges
    if gauges.get("awake", 1.0) <= 0 or gauges.get("falling_asleep", 0.0) > 0:
        return "asleep"
    if gauges.get("updating", 0.0) > 0:
        return "weight_update"
    return "pause_call" if gauges.get("pauses", 0.0) > gauges.get("resumes", 0.0) else ""


def _same_gauges(one: Point, other: Point) -> bool:
    """Return whether no gauge that work moves differs; what a gateway holds back changes while an engine hangs."""
    behind = IN_ENGINE in one.gauges or IN_ENGINE in other.gauges
    names = _GAUGES_BEHIND if behind else _GAUGES
    waiting, other_waiting = (point.gauges.get(IN_ENGINE, point.gauges.get("waiting")) for point in (one, other))
    return waiting == other_waiting and all(one.gauges.get(name) == other.gauges.get(name) for name in names)


def _unmoved_since(points: Sequence[Point], counters: Sequence[str]) -> float:
    """Return since when all of these have been what they are in the newest poll."""
    newest = points[-1]

    def same(point: Point) -> bool:
        return not any(point.counters.get(name) != newest.counters.get(name) for name in counters)

    return _since(points, same)


def _still_since(points: Sequence[Point]) -> float:
    """Return since when nothing has run while requests waited, and nothing came out."""

    def waits(point: Point) -> bool:
        return point.gauges.get("running") == 0 and point.gauges.get("waiting", 0.0) >= 1

    return max(_since(points, waits), _unmoved_since(points, _OUTPUT))


def _since(points: Sequence[Point], holds: Callable[[Point], bool]) -> float:
    return min((point.t for point in itertools.takewhile(holds, reversed(points))), default=points[-1].t)


def _looping(points: Sequence[Point]) -> float:
    """Return how long nothing has come out of a batch whose use of the cache keeps falling; 0 unless it fell twice."""
    since = _unmoved_since(points, _OUTPUT)
    falls, _ = _falls_and_rises(points, since)
    return points[-1].t - since if _runs_since(points) <= since and falls >= 2 else 0.0


def _filling(points: Sequence[Point], capacity_tokens: float | None, done_within_seconds: float) -> tuple[float, float]:
    """Return for how long the cache only filled and no prompt was done, up to now or lately; and the share of prompts.

    The page counts a prompt when its first token comes; answers are counted as they grow.
    """
    ends = [points]
    for place in range(len(points) - 1, 1, -1):
        if points[-1].t - points[place].t > done_within_seconds:
            break
        if _done(points[place - 1], points[place]) and not _done(points[place - 2], points[place - 1]):
            ends.append(points[:place])
    return max((_filled(up_to, capacity_tokens) for up_to in ends), default=(0.0, 0.0))


def _done(before: Point, after: Point) -> bool:
    """Return whether a prompt was done between two polls."""
    return any(before.counters.get(name) != after.counters.get(name) for name in _PROMPTS)


def _filled(points: Sequence[Point], capacity_tokens: float | None) -> tuple[float, float]:
    """Return the same of the time up to the newest poll; 0 seconds unless the use of the cache rose twice."""
    since = max(_unmoved_since(points, _PROMPTS), _runs_since(points))
    falls, rises = _falls_and_rises(points, since)
    if falls or rises < 2:
        return 0.0, 0.0
    first, newest = next(point for point in points if point.t >= since), points[-1]
    generated = newest.counters.get("generation_tokens", 0.0) - first.counters.get("generation_tokens", 0.0)
    came = (newest.gauges.get("kv_usage", 0.0) - first.gauges.get("kv_usage", 0.0)) * (capacity_tokens or 0.0)
    ratio = 1.0 if generated <= 0 else max(0.0, 1.0 - generated / came) if came else 0.0
    return newest.t - since, ratio


def _runs_since(points: Sequence[Point]) -> float:
    return _since(points, lambda point: point.gauges.get("running", 0.0) >= 1)


def _falls_and_rises(points: Sequence[Point], since: float) -> tuple[int, int]:
    """Return how often the use of the cache fell and rose from one poll to the next."""
    usages = [point.gauges.get("kv_usage", 0.0) for point in points if point.t >= since]
    changes = [after - before for before, after in itertools.pairwise(usages)]
    return sum(change < 0 for change in changes), sum(change > 0 for change in changes)

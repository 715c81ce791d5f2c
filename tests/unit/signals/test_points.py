import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpressure.model.samples import CacheConfig, EngineSample, HistogramSample
from kvpressure.signals.gateway import IN_ENGINE
from kvpressure.signals.points import Point, Polls, Tally, batch_of, growth, line, rate, values, weighted_quantiles
from kvpressure.signals.prefix_cache import written_tokens
from kvpressure.signals.progress import progress_of
from kvpressure.signals.room import poll
from kvpressure.signals.windows import EngineWindow

INF = math.inf


@given(st.lists(st.integers(1, 64), min_size=1, max_size=100), st.floats(0.01, 1.0))
def test_weighted_quantiles_equal_those_of_the_repeated_values(values, q):
    pairs = [(float(v), 1.0 + v % 3) for v in values]
    repeated = sorted(v for v, w in pairs for _ in range(int(w)))
    found = weighted_quantiles(pairs, [q])
    assert found == [repeated[max(0, math.ceil(q * len(repeated) - 1e-9) - 1)]]


def test_quantiles_of_nothing_are_unknown():
    assert weighted_quantiles([], [0.5]) is None
    assert weighted_quantiles([(3.0, 0.0)], [0.5]) is None


@given(
    st.lists(
        st.tuples(st.floats(0, 100), st.floats(-1e6, 1e6)), min_size=3, max_size=50, unique_by=lambda p: round(p[0], 2)
    )
)
def test_the_line_is_that_of_the_standard_library(points):
    fit = line(points)
    expected = statistics.linear_regression([t for t, _ in points], [v for _, v in points])
    assert fit.slope == pytest.approx(expected.slope, rel=1e-5, abs=1e-5)
    assert -1e-9 <= fit.r2 <= 1 + 1e-9


def test_a_line_needs_three_points_at_different_times():
    assert line([(0, 1), (1, 2)]) is None
    assert line([(1, 1), (1, 2), (1, 3)]) is None


def test_a_tally_is_a_cumulative_histogram_of_weights():
    tally = Tally((1.0, 2.0))
    for value, weight in ((1.0, 5.0), (1.5, 2.0), (9.0, 1.0)):
        tally.observe(value, weight)
    assert tally.histogram() == HistogramSample((1.0, 2.0, INF), (5.0, 7.0, 8.0), 17.0)


# What slides with the window is what a walk over its polls gives: at gaps, resets, thinned polls, clock steps.


GAUGES = ("running", "waiting", "waiting_deferred", "kv_usage", IN_ENGINE)
COUNTERS = ("steps", "prompt_tokens", "generation_tokens", "finished", "started", "preemptions", "prefix_hits")
SPACINGS = (1.0, 10.0, 30.0)

gauge = st.sampled_from((0.0, 1.0, 2.0, 5.0))
added = st.sampled_from((0.0, 0.0, 1.0, 7.0))
polls = st.fixed_dictionaries(
    {
        # Some come late, some after a gap, some from before: a clock that was set back.
        "after": st.sampled_from((1.0, 1.0, 1.0, 1.0, 1.4, 3.0, 25.0, 90.0, -0.5, -20.0)),
        "gauges": st.dictionaries(st.sampled_from(GAUGES), gauge),
        "added": st.dictionaries(st.sampled_from(COUNTERS), added),
        "missing": st.sets(st.sampled_from(COUNTERS), max_size=2),
        "reset": st.sampled_from((False,) * 9 + (True,)),
        "joined": st.sampled_from((False,) * 19 + (True,)),
    }
)
runs: st.SearchStrategy[tuple[float, list[dict[str, Any]]]] = st.tuples(
    st.sampled_from(SPACINGS), st.lists(polls, min_size=1, max_size=90)
)

prefills = st.lists(
    st.fixed_dictionaries(
        {
            "after": st.just(1.0),
            "rise": st.sampled_from((0.01, 0.01, 0.01, 0.0, -0.01)),
            "gauges": st.fixed_dictionaries({"running": st.sampled_from((1.0,) * 9 + (0.0,))}),
            "added": st.sampled_from(
                ({},) * 5 + ({"generation_tokens": 1.0}, {"prompt_tokens": 500.0, "started": 1.0})
            ),
            "missing": st.just(set()),
            "reset": st.just(False),
            "joined": st.just(False),
        }
    ),
    min_size=5,
    max_size=90,
)
"""Long prompts: the use of the cache rises and falls, and little comes out."""


def played(spacing: float, history: Sequence[dict[str, Any]], look: Callable[[EngineWindow], None]) -> None:
    """Let a window take a history in, and `look` at it after every poll that it took."""
    window, t, counted, usage = EngineWindow(60.0, 600.0), 1000.0, dict.fromkeys(COUNTERS, 0.0), 0.2
    for one in history:
        t += one["after"] * spacing if one["after"] > 0 else one["after"]
        if one["reset"]:
            counted = dict.fromkeys(COUNTERS, 0.0)
        for name, more in one["added"].items():
            counted[name] += more
        counters = {name: value for name, value in counted.items() if name not in one["missing"]}
        observed = counted["finished"]
        histograms = {"ttft": HistogramSample((0.1, 1.0, float("inf")), (observed / 2, observed, observed), observed)}
        usage += one.get("rise", 0.0)
        gauges = {**one["gauges"], "kv_usage": usage} if "rise" in one else one["gauges"]
        sample = EngineSample("m", "0", gauges, counters, histograms, cache=CacheConfig(capacity_tokens=1000))
        if window.add(t, sample, restarted=one["joined"], started=1.0 if one["joined"] else None):
            look(window)


@given(runs)
@settings(max_examples=60, deadline=None)
def test_readings_sums_and_ends_are_those_of_a_walk(run: tuple[float, list[dict[str, Any]]]) -> None:
    def look(window: EngineWindow) -> None:
        latest = window.latest(20.0, 8)
        assert list(latest) == latest_by_walk(list(window.points), window.t)
        for points in (window.points, latest):
            walked = list(points)
            assert points.times == [point.t for point in walked]
            for name in GAUGES:
                assert list(points.readings(name)) == [point.gauges.get(name) for point in walked]
                assert list(points.values(name)) == values(walked, name)
                read = values(walked, name)
                assert points.mean(name) == (sum(read) / len(read) if read else None)
            for name in COUNTERS:
                assert (points.growth(name), points.rate(name)) == (growth(walked, name), rate(walked, name))
        for name in COUNTERS:
            newest = [point.counters[name] for point in window.points if name in point.counters]
            assert window.newest(name) == (newest[-1] if newest else None)
            assert window.shows(name) == bool(newest)

    played(*run, look)


@given(runs)
@settings(max_examples=60, deadline=None)
def test_what_is_kept_for_a_poll_or_two_is_what_they_give(run: tuple[float, list[dict[str, Any]]]) -> None:
    def steps(before: Point, after: Point) -> tuple[float, float | None]:
        return after.t - before.t, growth((before, after), "steps")

    def written(point: Point) -> float | None:
        return written_tokens(point.counters)

    calls = itertools.count()

    def look(window: EngineWindow) -> None:
        if next(calls) % 3 == 1:  # not asked at every poll, as what is only needed in trouble
            return
        assert list(window.each_interval(steps)) == list(itertools.starmap(steps, itertools.pairwise(window.points)))
        assert list(window.each_poll(written)) == [written(point) for point in window.points]
        for streams in (False, True):
            kept = window.each_poll(poll, window.cache, streams)
            assert list(kept) == [poll(point, window.cache, streams) for point in window.points]
        assert [batch_of(point) for point in window.points] == [
            point.gauges.get("batch", point.gauges.get("running", 0.0)) for point in window.points
        ]

    played(*run, look)


@given(runs | st.tuples(st.just(1.0), prefills), st.sampled_from((0.0, 20.0)))
@settings(max_examples=150, deadline=None)
def test_what_stands_still_is_what_a_walk_back_finds(run: tuple[float, list[dict[str, Any]]], lately: float) -> None:
    def look(window: EngineWindow) -> None:
        found = progress_of(window, lately)
        points = [point for point in window.points if point.t >= window.joined]
        slow = _Slow(points, window.cache.capacity_tokens or 0.0, lately)
        assert found.frozen_seconds == slow.frozen()
        assert found.still_seconds == slow.still()
        assert found.looping_seconds == slow.looping()
        assert (found.filling_seconds, found.filled_ratio) == slow.filling()

    played(*run, look)


@given(runs, st.sampled_from((1.0, 4.0, 20.0)), st.sampled_from((0.0, 10.0, 60.0)))
@settings(max_examples=100, deadline=None)
def test_growth_per_event_is_that_of_a_walk(
    run: tuple[float, list[dict[str, Any]]], least: float, seconds: float
) -> None:
    known: list[Point] = []

    def look(window: EngineWindow) -> None:
        if known and window.t <= known[-1].t:
            known.clear()
        known.append(window.points[-1])
        # As far as polls of the window reach; what is older is thinned.
        newest, found = None, None
        for point in reversed(window.points):
            if "prompt_tokens" not in point.counters or "started" not in point.counters:
                continue
            newest = newest or point
            count = newest.counters["started"] - point.counters["started"]
            found = (newest.counters["prompt_tokens"] - point.counters["prompt_tokens"]) / count if count else found
            if count >= least and newest.t - point.t >= seconds:
                assert window.per_event("prompt_tokens", "started", least=least, seconds=seconds) == found
                return
        if window.points[0] is known[0]:
            assert window.per_event("prompt_tokens", "started", least=least, seconds=seconds) == found

    played(*run, look)


def latest_by_walk(points: list[Point], t: float) -> list[Point]:
    """Return the polls of twenty seconds, at least eight."""
    late = [point for point in points if point.t >= t - 20.0]
    return late if len(late) >= 8 else points[-8:]


class _Slow:
    """Progress as its definition says it: from the newest poll back, with every poll compared with it."""

    OUTPUT = ("prompt_tokens", "generation_tokens", "finished", "started", "finished_prompts", "token_gaps")
    PROMPTS = ("prompt_tokens", "started", "finished_prompts", "preemptions")

    def __init__(self, points: Sequence[Point], capacity: float, lately: float) -> None:
        self.points, self.newest, self.capacity, self.lately = points, points[-1], capacity, lately
        self.counted = any(name in self.newest.counters for name in self.OUTPUT)

    def since(self, holds: Callable[[Point], bool], points: Sequence[Point] | None = None) -> float:
        points = self.points if points is None else points
        return min((one.t for one in itertools.takewhile(holds, reversed(points))), default=points[-1].t)

    def unmoved(self, names: Sequence[str], points: Sequence[Point] | None = None) -> float:
        points = self.points if points is None else points
        last = points[-1].counters
        return self.since(lambda one: all(one.counters.get(n) == last.get(n) for n in names), points)

    def same_gauges(self, one: Point) -> bool:
        mine, others = one.gauges, self.newest.gauges
        behind = IN_ENGINE in mine or IN_ENGINE in others
        names = ("running", "kv_usage") if behind else ("running", "waiting", "waiting_deferred", "kv_usage")
        waiting, other = (gauges.get(IN_ENGINE, gauges.get("waiting")) for gauges in (mine, others))
        return waiting == other and all(mine.get(name) == others.get(name) for name in names)

    def frozen(self) -> float:
        unmoved = max(self.unmoved(("steps", *self.OUTPUT, "preemptions")), self.since(self.same_gauges))
        return self.newest.t - unmoved if self.counted and self.newest.gauges.get("running") else 0.0

    def still(self) -> float:
        gauges = self.newest.gauges
        if gauges.get("running") != 0 or gauges.get("waiting", 0.0) - gauges.get("waiting_deferred", 0.0) < 1:
            return 0.0
        waits = self.since(lambda one: one.gauges.get("running") == 0 and one.gauges.get("waiting", 0.0) >= 1)
        return self.newest.t - max(waits, self.unmoved(self.OUTPUT))

    def runs(self, points: Sequence[Point]) -> float:
        return self.since(lambda one: one.gauges.get("running", 0.0) >= 1, points)

    def looping(self) -> float:
        if not self.newest.gauges.get("running") or not self.counted:
            return 0.0
        since = self.unmoved(self.OUTPUT)
        falls, _ = _falls_and_rises(self.points, since)
        return self.newest.t - since if self.runs(self.points) <= since and falls >= 2 else 0.0

    def filling(self) -> tuple[float, float]:
        if not self.counted:
            return 0.0, 0.0
        points, ends = self.points, [self.points]
        for place in range(len(points) - 1, 1, -1):
            if self.newest.t - points[place].t > self.lately:
                break
            if self.done(points[place - 1 : place + 1]) and not self.done(points[place - 2 : place]):
                ends.append(points[:place])
        return max(self.filled(up_to) for up_to in ends)

    def done(self, pair: Sequence[Point]) -> bool:
        return any(pair[0].counters.get(name) != pair[1].counters.get(name) for name in self.PROMPTS)

    def filled(self, points: Sequence[Point]) -> tuple[float, float]:
        since = max(self.unmoved(self.PROMPTS, points), self.runs(points))
        falls, rises = _falls_and_rises(points, since)
        if falls or rises < 2:
            return 0.0, 0.0
        first, newest = next(one for one in points if one.t >= since), points[-1]
        made = newest.counters.get("generation_tokens", 0.0) - first.counters.get("generation_tokens", 0.0)
        came = (newest.gauges.get("kv_usage", 0.0) - first.gauges.get("kv_usage", 0.0)) * self.capacity
        return newest.t - since, 1.0 if made <= 0 else max(0.0, 1.0 - made / came) if came else 0.0


def _falls_and_rises(points: Sequence[Point], since: float) -> tuple[int, int]:
    usages = [one.gauges.get("kv_usage", 0.0) for one in points if one.t >= since]
    changes = [after - before for before, after in itertools.pairwise(usages)]
    return sum(change < 0 for change in changes), sum(change > 0 for change in changes)


def test_a_part_of_the_polls_answers_as_the_whole_of_them_would() -> None:
    whole = Polls([Point(float(t), {"running": float(t)} if t % 3 else {}, {"steps": 2.0 * t}) for t in range(10)])
    part = whole.newest(5)
    assert (part.times, part.readings("running")) == ([5.0, 6.0, 7.0, 8.0, 9.0], [5.0, None, 7.0, 8.0, None])
    assert (part.mean("running"), part.growth("steps"), part.rate("steps")) == (pytest.approx(20 / 3), 8.0, 2.0)
    assert part.growth("nothing") is None

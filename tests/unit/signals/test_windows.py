import itertools
import math
from typing import Any

import pytest

from kvpressure.model.samples import EngineSample, HistogramSample
from kvpressure.signals.points import Point
from kvpressure.signals.windows import MAX_POINTS, EngineWindow

INF = math.inf


def sample(gauges=None, counters=None, histograms=None) -> EngineSample:
    return EngineSample("m", "0", gauges or {}, counters or {}, histograms or {})


def window_of(*counters: dict[str, float], seconds: float = 60) -> EngineWindow:
    window = EngineWindow(seconds, 600)
    for t, values in enumerate(counters):
        window.add(float(t), sample(counters=values))
    return window


def hist(*counts: float, total: float = 0.0, bounds=(1.0, 2.0, INF)) -> HistogramSample:
    return HistogramSample(bounds, tuple(counts), total)


def test_a_counter_that_falls_is_a_restart_from_zero():
    window = window_of({"steps": 100.0}, {"steps": 130.0}, {"steps": 7.0}, {"steps": 9.0})
    assert window.points.growth("steps") == 30 + 9


def test_a_restart_that_the_counter_alone_does_not_show_is_known_from_the_page():
    window = window_of({"steps": 10.0})
    window.add(1.0, sample(counters={"steps": 25.0}), restarted=True)
    assert window.points.growth("steps") == 25


def test_one_counter_that_falls_does_not_touch_the_others():
    window = window_of({"steps": 10.0, "finished": 5.0}, {"steps": 3.0, "finished": 6.0})
    assert (window.points.growth("steps"), window.points.growth("finished")) == (3, 1)


def test_a_missing_poll_changes_no_total_and_no_rate():
    window = EngineWindow(60, 600)
    for t in (0, 1, 2, 7, 8, 9, 10):
        window.add(float(t), sample(counters={"steps": 10.0 * t}))
    assert (window.points.growth("steps"), window.points.rate("steps")) == (100, 10)


def test_a_signal_absent_from_some_polls_is_measured_between_those_that_have_it():
    window = window_of({}, {"steps": 10.0}, {}, {"steps": 50.0}, {})
    assert (window.points.growth("steps"), window.points.rate("steps")) == (40, 20)


def test_a_mean_per_event_looks_back_just_far_enough():
    # Two tokens per event for 100 s, then ten per event; one event a second.
    window = EngineWindow(60, 600)
    for t in range(121):
        window.add(float(t), sample(counters={"events": float(t), "total": 2.0 * min(t, 100) + 10.0 * max(0, t - 100)}))
    assert window.per_event("total", "events", least=4, seconds=10) == 10
    assert window.per_event("total", "events", least=40, seconds=10) == pytest.approx(6)
    assert window.per_event("total", "events", least=110, seconds=10) == pytest.approx(3.45, abs=0.2)
    assert window.per_event("total", "missing", least=1, seconds=10) is None


@pytest.mark.fault("several replicas answer at one address in turn", "a difference between their counters is no growth")
def test_what_another_replica_counted_before_it_answered_is_not_growth():
    window = EngineWindow(seconds=60, long_window_seconds=600)
    ours, other = 1_000_000.0, 999_000.0  # when each process began
    window.add(ours + 100, sample(counters={"steps": 500.0, "started": 7.0}), started=ours)
    window.add(ours + 101, sample(counters={"steps": 90_000.0, "started": 9000.0}), started=other, restarted=True)
    assert (window.points.growth("steps"), window.points.growth("started")) == (0.0, 0.0)
    window.add(ours + 102, sample(counters={"steps": 90_010.0, "started": 9001.0}), started=other)
    assert (window.points.growth("steps"), window.points.growth("started")) == (10.0, 1.0)


def test_counters_that_fall_although_the_process_is_an_old_one_are_another_process_too():
    window, bounds = EngineWindow(seconds=60, long_window_seconds=600), (1.0, math.inf)
    for t, steps, counts in ((100.0, 500.0, (5.0, 6.0)), (101.0, 400.0, (1.0, 4.0)), (110.0, 420.0, (3.0, 7.0))):
        histogram = HistogramSample(bounds, counts, 10.0 * counts[-1])
        window.add(1e6 + t, EngineSample("m", "0", {}, {"steps": steps}, {"ttft": histogram}), started=1e6 - 100)
    assert window.points.growth("steps") == 20.0
    assert window.histogram("ttft") == HistogramSample(bounds, (2.0, 3.0), 30.0)


def test_a_process_that_is_new_counts_from_zero_whatever_its_clock_says():
    window = EngineWindow(seconds=60, long_window_seconds=600)
    window.add(1e6, sample(counters={"steps": 500.0}), started=1e6 - 4000)
    window.add(1e6 + 30, sample(counters={"steps": 40.0}), started=1e6 - 20, restarted=True)
    assert window.points.growth("steps") == 40.0


def test_the_highest_batch_is_remembered_beyond_the_window_until_the_server_restarts():
    window = EngineWindow(60, 600)
    for t in range(500):
        window.add(float(t), sample({"running": 30.0 if t < 50 else 5.0}))
    assert (window.points.max("running"), window.highest_running()) == (5, 30)
    for t in range(500, 700):
        window.add(float(t), sample({"running": 5.0}))
    assert window.highest_running() == 5
    window.add(700.0, sample({"running": 2.0}), restarted=True)
    assert window.highest_running() == 2


def test_one_reading_gives_no_delta():
    assert window_of({"steps": 10.0}).points.growth("steps") is None
    assert window_of({"steps": 10.0}).points.rate("steps") is None


def test_readings_older_than_the_window_do_not_count():
    window = EngineWindow(20, 600)
    for t in range(100):
        window.add(float(t), sample({"running": float(t)}, {"steps": float(t) ** 2}))
    assert list(window.points.values("running")) == [float(t) for t in range(79, 100)]
    assert window.points.growth("steps") == 99**2 - 79**2


def test_a_poll_that_is_not_newer_is_dropped():
    window = window_of({"steps": 1.0}, {"steps": 2.0})
    window.add(0.5, sample(counters={"steps": 500.0}))
    assert window.points.growth("steps") == 1


def test_the_window_is_bounded_by_count_as_well():
    window = EngineWindow(600, 600)
    for i in range(5000):
        window.add(i * 0.01, sample({"running": 1.0}))
    assert len(window.points) == MAX_POINTS


def test_histograms_are_differenced_over_the_window_not_since_the_server_started():
    window = EngineWindow(20, 600)
    for t in range(0, 100, 5):
        window.add(float(t), sample(histograms={"e2e": hist(t, 2 * t, 3 * t, total=10.0 * t)}))
    observed = window.histogram("e2e")
    assert observed.counts == (20, 40, 60)
    assert observed.sum == 200


def test_the_long_window_looks_further_back():
    window = EngineWindow(20, 200)
    for t in range(400):
        window.add(float(t), sample(histograms={"e2e": hist(t, t, t)}))
    recent, shape = window.histogram("e2e"), window.long_histogram("e2e")
    assert 20 <= recent.count <= 22
    assert 200 <= shape.count <= 210


def test_a_restart_within_the_window_adds_both_lives_of_a_histogram():
    window = EngineWindow(60, 600)
    for t, value in enumerate((hist(1, 2, 10), hist(2, 4, 20), hist(0, 1, 3))):
        window.add(float(t * 5), sample(histograms={"e2e": value}))
    observed = window.histogram("e2e")
    assert observed.counts == (1, 3, 13)


def test_a_histogram_with_other_bounds_starts_anew():
    window = EngineWindow(60, 600)
    window.add(0.0, sample(histograms={"e2e": hist(1, 2, 3)}))
    window.add(5.0, sample(histograms={"e2e": hist(1, 9, bounds=(5.0, INF))}))
    assert window.histogram("e2e") is None
    window.add(10.0, sample(histograms={"e2e": hist(2, 11, bounds=(5.0, INF))}))
    observed = window.histogram("e2e")
    assert observed.counts == (1, 2)


def test_memory_per_engine_is_bounded_over_a_simulated_day():
    window = EngineWindow(60, 600)
    for t in range(0, 86400, 7):
        window.add(float(t), sample({"running": 1.0}, {"steps": t}, {"e2e": hist(t, t, t)}))
    assert len(window.points) <= 61
    assert len(window._recent._readings) <= 32
    assert len(window._long._readings) <= 26


def test_each_interval_is_computed_once_and_forgotten_with_its_polls():
    calls: list[tuple[float, float]] = []

    def span(before: Point, after: Point) -> float:
        calls.append((before.t, after.t))
        return after.t - before.t

    window = EngineWindow(seconds=3, long_window_seconds=30)
    times = [0.0, 1.0, 1.5, 3.0, 4.0, 7.5, 8.0]
    for index, t in enumerate(times):
        window.add(t, sample())
        kept = [at for at in times[: index + 1] if at >= t - 3]
        assert window.each_interval(span) == [b - a for a, b in itertools.pairwise(kept)]
        assert window.each_interval(span) == window.each_interval(span)
    assert calls == [pair for pair in itertools.pairwise(times) if pair != (4.0, 7.5)], "7.5 forgot all before"
    assert window.each_interval(lambda before, after: after.t) == [8.0], "another question is calls of all there are"


def test_values_of_histograms_are_computed_again_when_some_came():
    calls: list[float] = []

    def count(window: EngineWindow, factor: float) -> float:
        calls.append(window.t)
        histogram = window.histogram("ttft")
        return 0.0 if histogram is None else histogram.count * factor

    def polled(t: float, *counts: float) -> float:
        histograms = {"ttft": HistogramSample((1.0, math.inf), counts, 1.0)} if counts else {}
        window.add(t, sample(histograms=histograms))
        return window.of_histograms(count, 2.0)

    window = EngineWindow(seconds=60, long_window_seconds=600)
    assert polled(0.0, 1.0, 1.0) == 0.0
    assert [polled(1.0), polled(2.0)] == [0.0, 0.0]
    assert polled(6.0, 2.0, 4.0) == 6.0
    assert window.of_histograms(count, 3.0) == 9.0
    assert calls == [0.0, 6.0, 6.0]


def test_computing_twice_at_one_poll_still_gives_that_poll():
    window = EngineWindow(seconds=2, long_window_seconds=30)
    for t, running in ((0.0, 1.0), (1.0, 2.0), (2.0, 6.0), (3.0, 4.0)):
        window.add(t, sample({"running": running, f"at_{t:.0f}": 1.0}))
        assert window.points.values("running")[-1] == window.points.values("running")[-1] == running
    assert (window.points.mean("running"), window.points.max("running")) == (4.0, 6.0)
    assert window.signals() == {"running", "at_1", "at_2", "at_3"}


def test_readings_are_forgotten_with_the_polls_that_are_too_many():
    window = EngineWindow(60, 600)
    for n in range(MAX_POINTS + 50):
        window.add(n * 0.01, sample({"running": float(n)}))
        window.points.values("running")
    assert list(window.points.values("running")) == [float(n) for n in range(50, MAX_POINTS + 50)]


def test_what_a_histogram_saw_lately_follows_the_time_also_between_two_pages_that_bring_it():
    window = EngineWindow(60, 600)
    for n in range(59):
        brought = {"ttft": hist(n, 2.0 * n, 3.0 * n, total=n)} if n % 6 == 0 else {}
        window.add(float(n), sample({"running": 1.0}, histograms=brought))
        # The newest is that of `last`; what is compared with it, the newest that is 20 s old or older.
        last, since = n - n % 6, max(0, (n - 20) // 6 * 6)
        observed = window.histogram("ttft", 20.0)
        assert (0 if observed is None else observed.count) == 3.0 * (last - since)


def tokens(point: Point) -> float:
    return point.counters.get("tokens", -INF)


def seconds_since(window: EngineWindow, count: Any, room: Any, least: float) -> float | None:
    return window.seconds_since(count, float, room, least)


def test_how_long_ago_a_count_was_less_is_found_between_polls_and_beyond_them():
    steady = window_of(*({"tokens": 10.0 * t} for t in range(100)))
    assert seconds_since(steady, tokens, lambda _: 25.0, 25.0) == pytest.approx(2.5)
    assert seconds_since(steady, tokens, lambda _: 0.0, 0.0) == 0.0
    assert seconds_since(steady, tokens, lambda _: 590.0, 590.0) == pytest.approx(59.0)
    assert seconds_since(steady, tokens, lambda _: 5_000.0, 5_000.0) == pytest.approx(500.0)
    busier = window_of(*({"tokens": float(min(t, 50) + 100 * max(0, t - 50))} for t in range(60)))
    assert seconds_since(busier, tokens, lambda _: 900.0, 900.0) == pytest.approx(9.0)
    assert seconds_since(busier, tokens, lambda _: 930.0, 930.0) == pytest.approx(39.0)


def test_a_count_that_stands_still_or_is_not_there_was_never_less():
    still = window_of(*({"tokens": 5.0} for _ in range(60)))
    assert seconds_since(still, tokens, lambda _: 1.0, 1.0) is None
    assert seconds_since(still, lambda _: -INF, lambda _: 1.0, 1.0) is None

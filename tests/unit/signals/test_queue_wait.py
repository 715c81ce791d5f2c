"""How long those who wait will wait, and since when that is too long; thresholds are those of the package."""

from collections.abc import Callable, Iterator, Mapping

import pytest

from kvpressure.config.thresholds import load_thresholds
from kvpressure.model.samples import EnginePage, EngineSample, HistogramSample
from kvpressure.model.values import Derived
from kvpressure.signals.past import EngineHistory
from kvpressure.signals.queue_wait import QueueWait, drain_seconds, in_vain_seconds
from kvpressure.signals.windows import EngineWindow
from tests.support.engines import CONTEXT

LIMITS = load_thresholds()
LONGEST = LIMITS.queue.queue_drain_max_seconds
BOUNDS = (1.0, 5.0, 10.0, 40.0, 80.0, float("inf"))
SLOW = (0.2, 40.0)
"""One first token in fifty took twenty seconds and more, while the others came at once."""


def first_tokens(t: int, slow: float, slow_seconds: float) -> HistogramSample:
    """Ten a second within a second, and beside them `slow` a second that took so long."""
    counts = tuple((10.0 if bound < slow_seconds else 10.0 + slow) * t for bound in BOUNDS)
    return HistogramSample(BOUNDS, counts, 0.0)


def polled(
    seconds: int,
    waiting: Callable[[int], float],
    started: Callable[[int], float] | None,
    slow: tuple[float, float] = (0.0, 1.0),
) -> Iterator[tuple[EngineWindow, float]]:
    """A window after each poll of a second, and how many have waited on average over the verdict's."""
    window, queue = EngineWindow(60, 600), []
    for t in range(seconds):
        queue.append(waiting(t))
        counters = {} if started is None else {"started": started(t)}
        gauges, histograms = {"running": 4.0, "waiting": queue[-1]}, {"ttft": first_tokens(t, *slow)}
        window.add(float(t), EngineSample("m", "0", gauges, counters, histograms))
        lately = queue[-int(LIMITS.verdict.verdict_window_seconds) :]
        yield window, sum(lately) / len(lately)


def series(
    seconds: int,
    waiting: Callable[[int], float],
    started: Callable[[int], float] | None,
    derived: Derived | None = None,
    baseline: Mapping[str, float] | None = None,
    slow: tuple[float, float] = (0.0, 1.0),
) -> list[Derived]:
    queue = QueueWait()
    return [
        queue.families(window, mean, derived or {}, baseline or {}, LIMITS)
        for window, mean in polled(seconds, waiting, started, slow)
    ]


def unserved(found: list[Derived]) -> list[float]:
    return [float(one["queue_unserved_seconds"]) for one in found if isinstance(one["queue_unserved_seconds"], float)]


def test_the_queue_takes_as_long_as_it_has_requests_per_admission():
    *_, (window, waiting) = polled(61, lambda _: 12.0, lambda t: 0.5 * t)
    assert drain_seconds(window, waiting, 20.0) == pytest.approx(24.0)
    assert drain_seconds(window, 0.0, 20.0) == 0.0


def test_the_rate_is_that_of_the_last_seconds_and_not_of_the_calm_before():
    *_, (window, _) = polled(61, lambda _: 10.0, lambda t: 2.0 * min(t, 40) + 0.1 * max(0, t - 40))
    assert drain_seconds(window, 10.0, 20.0) == pytest.approx(100.0)


def test_one_admission_long_ago_counts_for_all_the_time_since_and_none_for_the_time_in_vain():
    *_, (window, _) = polled(61, lambda _: 5.0, lambda t: float(t >= 30))
    assert drain_seconds(window, 5.0, 20.0) == pytest.approx(5 * 31.0)
    *_, (window, _) = polled(61, lambda t: 5.0 * (t > 20), lambda _: 7.0)
    assert drain_seconds(window, 5.0, 20.0) is None
    assert in_vain_seconds(window, 5.0) == pytest.approx(39.0)


def test_nothing_admitted_is_told_of_all_the_time_and_ends_with_an_admission():
    found = series(240, lambda t: 5.0 * (t > 20), lambda t: float(t >= 230))
    assert found[15].get("nothing_admitted_seconds") is None
    assert found[220]["nothing_admitted_seconds"] == found[220]["queue_drain_seconds"] == pytest.approx(199.0)
    assert found[235].get("nothing_admitted_seconds") is None


def test_without_a_counter_of_admissions_or_a_queue_nothing_is_known():
    assert series(30, lambda _: 5.0, None)[-1] == {}
    *_, (window, _) = polled(30, lambda _: 5.0, float)
    assert drain_seconds(window, None, 20.0) is None


INFLATED: Derived = {"latency_inflation_ratio": {"e2e": 2 * LIMITS.symptoms.latency_inflated_min_factor}}


@pytest.mark.parametrize(
    ("waiting", "given", "is_unserved"),
    [
        pytest.param(2 * LONGEST, {}, True, id="a long queue, without any healthy past"),
        pytest.param(0.5 * LONGEST, {}, False, id="a short one"),
        pytest.param(3.0, {"baseline": {"e2e": 2.0}}, True, id="latency that will be inflated"),
        pytest.param(3.0, {"baseline": {"e2e": 4.5}}, False, id="latency that will not"),
        pytest.param(0.0, {"baseline": {"e2e": 0.0}}, False, id="no queue, and a healthy request takes no time"),
        pytest.param(1.0, {"derived": INFLATED}, True, id="inflated latency where requests wait"),
        pytest.param(0.0, {"derived": INFLATED}, False, id="inflated latency where none waits"),
        pytest.param(1.0, {"slow": SLOW}, True, id="a few that wait for all the others"),
        pytest.param(1.0, {"slow": (0.05, 40.0)}, False, id="fewer than one in a hundred"),
        pytest.param(1.0, {"slow": (0.2, 0.9)}, False, id="no longer than it may be"),
        pytest.param(0.0, {"slow": SLOW}, False, id="nobody waits"),
        pytest.param(1.0, {"slow": SLOW, "baseline": {"ttft": 30.0}}, False, id="as long in health"),
        pytest.param(1.0, {"slow": SLOW, "baseline": {"ttft": 5.0}}, True, id="longer than in health"),
    ],
)
def test_a_queue_is_unserved_for_as_long_as_those_in_it_are_late(waiting, given, is_unserved):
    lasts = unserved(series(60, lambda _: waiting, float, **given))[-1]
    assert 50 < lasts <= 59 if is_unserved else lasts == 0.0


def test_a_queue_that_shrinks_is_not_reported_although_it_still_takes_long_to_drain():
    found = unserved(series(80, lambda t: 40.0 if t < 60 else max(0.0, 40.0 - 4.0 * (t - 60)), lambda t: 0.5 * t))
    assert found[59] == pytest.approx(59.0, abs=2.0)
    assert found[70:] == [0.0] * 10


def test_a_queue_that_is_empty_now_and_then_has_lasted_and_one_that_is_over_begins_anew():
    thrash = unserved(series(90, lambda t: 0.0 if t % 5 == 0 else 60.0, float))
    assert thrash[-1] == pytest.approx(88.0, abs=3.0)
    again = unserved(series(120, lambda t: 60.0 if t < 30 or t >= 60 else 0.0, float))
    assert again[29] == pytest.approx(29.0, abs=2.0)
    assert again[59] == 0.0
    assert 40 < again[-1] < 60


def test_a_queue_that_breathes_has_lasted_since_before_its_troughs_and_is_not_reported_in_them() -> None:
    """Eight seconds of forty that wait, then eight of one: within every trough the queue shrinks."""
    found = unserved(series(120, lambda t: 40.0 if t % 16 < 8 else 1.0, float))
    assert found[115] == pytest.approx(115.0, abs=8.0)
    assert 0.0 in found[100:112], "nothing begins while it shrinks"


def test_a_clock_that_is_set_back_starts_anew() -> None:
    past, found = EngineHistory(60, 600), []
    for start in (1_000, 0):
        past.begin_anew()
        for t in range(start, start + 40):
            sample = EngineSample("m", "0", {"running": 4.0, "waiting": 2 * LONGEST}, {"started": float(t)})
            past.take(EnginePage(float(t), (sample,)), sample, None, restarted=False)
            found.append(past.reading(CONTEXT).derived)
    assert unserved([one for one in found[:40] if one.get("queue_unserved_seconds") is not None])[-1] > 30
    lately = unserved([one for one in found[40:] if one.get("queue_unserved_seconds") is not None])
    assert min(lately) == 0.0
    assert max(lately) == pytest.approx(39.0, abs=2.0)


def test_where_starts_are_not_counted_the_rate_is_of_requests_that_finished():
    window = EngineWindow(60, 600)
    for t in range(31):
        window.add(float(t), EngineSample("m", "0", {"running": 4.0, "waiting": 8.0}, {"finished": 2.0 * t}, {}))
    assert drain_seconds(window, 8.0, 20.0) == 4.0

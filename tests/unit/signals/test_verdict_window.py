"""What a verdict counts of its polls."""

import math
from dataclasses import replace

import pytest

from kvpressure.model.samples import HistogramSample
from kvpressure.signals.verdict_window import Preemption, verdict_window
from tests.support.engines import CONTEXT, histogram, window


def preempting(usage: float | None, lowest: float | None = None, every: int = 6) -> Preemption:
    """One request in a batch of ten is preempted every so many seconds; usage is lowest right after it."""

    def gauges(t: int) -> dict[str, float]:
        lowered = lowest if lowest is not None and t % every == 0 else usage
        return {"running": 10.0, "waiting": 0.0} | ({} if lowered is None else {"kv_usage": lowered})

    made = window(40, gauges, lambda t: {"preemptions": float(t // every), "started": t / 4})
    return verdict_window(made, CONTEXT).preemption


@pytest.mark.parametrize(
    ("usage", "lowest", "bursts"),
    [(0.95, None, 3), (0.17, None, 0), (0.45, 0.1, 0), (0.95, 0.1, 3), (0.55, None, 3), (None, None, 3)],
    ids=["full", "reset of an empty cache", "reset", "one large request gone", "half full", "use not known"],
)
def test_preemptions_are_counted_by_spans_of_five_seconds_but_none_where_there_was_plenty_of_room(
    usage: float | None, lowest: float | None, bursts: int
) -> None:
    assert preempting(usage, lowest).burst_count == bursts


def test_how_much_is_plenty_is_a_threshold() -> None:
    made = window(40, lambda _: {"kv_usage": 0.3}, lambda t: {"preemptions": float(t // 6)})
    lower = replace(CONTEXT, thresholds=CONTEXT.thresholds.with_values(preempting_min_usage_ratio=0.2))
    assert [verdict_window(made, context).preemption.burst_count for context in (CONTEXT, lower)] == [0, 3]


def test_tokens_are_held_up_for_all_of_the_time_at_most() -> None:
    def between(t: int) -> dict[str, HistogramSample]:
        return {"inter_token": histogram((-30.0, 0.5), (float(t),) * 3, float(t))}

    assert verdict_window(window(40, histograms=between), CONTEXT).throughput.held_up_ratio == 1.0


@pytest.mark.parametrize("share", [0.5, 0.55, 0.6, 0.65, 0.7])
def test_gaps_of_one_pace_on_either_side_of_a_bound_hold_nothing_up(share: float) -> None:
    def between(t: int) -> dict[str, HistogramSample]:
        return {"inter_token": HistogramSample((0.01, 0.025, 0.05, math.inf), (share * t, t, t, t), 0.010 * t)}

    assert verdict_window(window(40, histograms=between), CONTEXT).throughput.held_up_ratio == 0.0


def slowdown(counts: tuple[float, ...], mean: float, healthy: float, healthy_mean: float | None) -> float | None:
    def between(t: int) -> dict[str, HistogramSample]:
        grown = tuple(t * one for one in counts)
        return {"inter_token": HistogramSample((0.01, 0.025, 0.05, math.inf), grown, mean * t)}

    baseline = {"inter_token": healthy} | ({} if healthy_mean is None else {"inter_token_mean": healthy_mean})
    made = verdict_window(window(40, histograms=between), replace(CONTEXT, baseline=baseline))
    return made.throughput.slowdown_factor


def test_a_slowdown_is_what_bounds_or_sums_prove() -> None:
    straddling = (0.9, 1.0, 1.0, 1.0)
    assert slowdown(straddling, 0.0101, 0.0095, 0.0098) == pytest.approx(0.0101 / 0.0098)
    assert slowdown((0.0, 0.1, 1.0, 1.0), 0.030, 0.0095, None) == pytest.approx(2.5)  # from 25 ms on, and 10 at most
    assert slowdown((0.0, 0.1, 1.0, 1.0), 0.030, 0.0095, 0.009) == pytest.approx(0.030 / 0.009)


@pytest.mark.parametrize(("queued", "known"), [(1.0, True), (0.7, False)])
def test_time_outside_the_engine_is_not_known_where_the_queue_is_of_other_requests(queued: float, known: bool) -> None:
    def counters(t: int) -> dict[str, float]:
        each = {"ended": 10.0, "e2e_seconds": 50.0, "queue_seconds": 5.0, "inference_seconds": 30.0}
        return {name: value * t for name, value in (each | {"queued": 10.0 * queued}).items()}

    assert (verdict_window(window(40, counters=counters), CONTEXT).outside is not None) is known

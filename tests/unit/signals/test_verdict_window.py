"""What a verdict counts of its polls."""

from __future__ import annotations

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


def test_preemptions_are_counted_by_spans_of_five_seconds() -> None:
    assert preempting(0.95).burst_count == 3


@pytest.mark.parametrize(
    ("usage", "lowest", "bursts"),
    [(0.17, None, 0), (0.45, 0.1, 0), (0.95, 0.1, 3), (0.55, None, 3), (None, None, 3)],
    ids=["reset of an empty cache", "reset", "one large request gone", "half full", "use not known"],
)
def test_where_there_was_plenty_of_room_nobody_was_preempted_for_it(
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

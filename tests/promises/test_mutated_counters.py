"""Counters that jump, fall, are no numbers or lose their buckets: our own page stays one that strict parsers read."""

import pytest

from kvpressure.signals.points import Tally
from tests.support.mutated_pages import check, story

STORIES = 24


@pytest.mark.fault(
    "an engine whose counters jump, fall, are NaN, infinite, negative or 2^63, or whose buckets fall, move or go",
    "prometheus_client's strict parsers accept /metrics in both formats: no series twice, no counter below 0, and "
    "histograms whose buckets rise to their count",
)
@pytest.mark.parametrize("first", range(0, STORIES, 6))
def test_mutated_counters_never_give_a_page_that_strict_parsers_refuse(first: int) -> None:
    snapshots = [snapshot for seed in range(first, first + 6) for snapshot in story(1000 + seed)]
    assert sum(map(check, snapshots)) > 1000


def test_a_histogram_of_weights_that_are_seconds_has_whole_counts() -> None:
    tally = Tally((1.0, 8.0))
    for value in (1.0, 4.0, 9.0):
        tally.observe(value, 1.4)
    assert tally.histogram().counts == (1.0, 2.0, 4.0)

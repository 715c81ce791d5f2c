"""Clients that wait for their answers, or a rate, by how the number of requests changes over five minutes."""

from __future__ import annotations

import random
import statistics

import pytest

from kvpressure.model.samples import CacheConfig
from kvpressure.model.view import Interval, Minutes, Observed
from kvpressure.simulation.demand import arrival_rate

SECONDS = 10
COUNT = 30


def observed(counts: list[float], finished: list[int]) -> Observed:
    """An engine of which so many requests ran or waited each second, and ended in each interval."""
    means = [sum(counts[at : at + SECONDS]) / SECONDS for at in range(0, len(counts), SECONDS)]
    intervals = tuple(
        Interval(seconds=float(SECONDS), running=min(8.0, mean), waiting=max(0.0, mean - 8.0), finished=float(ended))
        for mean, ended in zip(means, finished, strict=True)
    )
    mean = sum(means) / len(means)
    minutes = Minutes(float(len(counts)), min(8.0, mean), max(0.0, mean - 8.0), 100.0, 0.0, intervals)
    return Observed(intervals=(), cache=CacheConfig(), minutes=minutes)


def at_rate(rate: float, served: float, seed: int, present: int = 30) -> Observed:
    """A queue that requests join by chance, and leave by chance as they are served."""
    rng, counts, finished = random.Random(seed), [], []
    for second in range(COUNT * SECONDS):
        if second % SECONDS == 0:
            finished.append(0)
        for _ in range(20):
            present += rng.random() < rate / 20
            if present and rng.random() < served / 20:
                present, finished[-1] = present - 1, finished[-1] + 1
        counts.append(float(present))
    return observed(counts, finished)


@pytest.mark.parametrize("rate", [0.4, 1.0, 4.0])
def test_requests_that_join_a_queue_by_chance_come_at_a_rate(rate):
    rates = [arrival_rate(at_rate(rate, rate, seed)) for seed in range(100)]
    found = [one for one in rates if one is not None]
    assert len(found) >= 80  # the others are taken for clients that wait, as before five minutes are known
    assert statistics.fmean(found) == pytest.approx(rate, rel=0.05)


@pytest.mark.parametrize("seed", range(12))
def test_clients_that_wait_for_their_answers_are_as_many_all_the_time(seed):
    rng = random.Random(seed)
    counts = [30.0 - (rng.random() < 0.2) for _ in range(COUNT * SECONDS)]
    assert arrival_rate(observed(counts, [rng.randint(4, 40) for _ in range(COUNT)])) is None


def test_clients_that_all_come_at_once_are_no_rate():
    counts = [4.0] * (20 * SECONDS) + [60.0] * (10 * SECONDS)
    assert arrival_rate(observed(counts, [6] * COUNT)) is None


def test_of_less_than_two_minutes_nothing_is_said():
    long = at_rate(2.0, 2.0, seed=3)
    assert long.minutes is not None
    short = Minutes(110.0, 8.0, 22.0, 100.0, 0.0, long.minutes.intervals[:11])
    assert arrival_rate(long) is not None
    assert arrival_rate(Observed(intervals=(), cache=CacheConfig(), minutes=short)) is None

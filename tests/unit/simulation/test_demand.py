"""Clients that wait for their answers, requests at a rate, or both: told from how arrivals go with ends."""

import math
import random
from dataclasses import replace

import pytest

from kvpressure.model.samples import CacheConfig
from kvpressure.model.view import Interval, Observed
from kvpressure.simulation.demand import Arrivals, arrivals_of, of_present_load

SECONDS = 60
STAY = 8.0


def observed(events: list[tuple[float, int]], seconds: int = SECONDS, begin: float = 30.0) -> Observed:
    """An engine at which requests come (+1) and end (-1) at these times, polled each second from `begin` on."""
    intervals = []
    for second in range(seconds):
        at = begin + second
        ended = sum(change < 0 and at - 1 <= t < at for t, change in events)
        present = sum(change for t, change in events if t < at)
        intervals.append(Interval(1.0, running=float(present), waiting=0.0, finished=float(ended)))
    return Observed(intervals=tuple(intervals), cache=CacheConfig())


def served(starts: list[float], rng: random.Random, stay: float) -> list[tuple[float, int]]:
    return [event for t in starts for event in ((t, 1), (t + rng.uniform(0.5, 1.5) * stay, -1))]


def open_loop(rate: float, cv: float, seed: int, stay: float = STAY) -> Observed:
    """Requests at a rate, whose spacing has this coefficient of variation."""
    rng, t, starts = random.Random(seed), 0.0, list[float]()
    while t < 90:
        t += rng.gammavariate(1 / cv**2, cv**2 / rate) if cv else 1 / rate
        starts.append(t)
    return observed(served(starts, rng, stay))


def closed_loop(clients: int, seed: int, stay: float = STAY, pause: float = 0.02) -> Observed:
    rng, events = random.Random(seed), list[tuple[float, int]]()
    for _ in range(clients):
        t = rng.uniform(0.0, 2.0)
        while t < 90:
            end = t + rng.uniform(0.5, 1.5) * stay
            events += [(t, 1), (end, -1)]
            t = end + pause
    return observed(events)


def told(what: Observed) -> Arrivals:
    return arrivals_of(what)


@pytest.mark.parametrize(("rate", "cv"), [(4.0, 0.0), (4.0, 1.0), (10.0, 1.0), (10.0, 2.5)])
def test_requests_at_a_rate_are_told_with_their_spacing(rate: float, cv: float) -> None:
    found = [told(open_loop(rate, cv, seed)) for seed in range(20)]
    assert sum(one.waiting_ratio <= 0.3 for one in found) >= 18
    assert all(one.least == 0.0 for one in found)
    # What the true rate may be is in the deviation that is told of it.
    assert sum(abs(one.per_second / rate - 1) <= 2.6 * one.rate_deviation_ratio + 0.05 for one in found) >= 18
    mean = sum(one.per_second for one in found) / len(found)
    assert mean == pytest.approx(rate, rel=0.1)
    dispersion = sum(one.dispersion for one in found) / len(found)
    assert dispersion == pytest.approx(cv**2, rel=0.4)


@pytest.mark.parametrize("clients", [12, 40, 100])
def test_clients_that_wait_for_their_answers_are_told(clients: int) -> None:
    assert all(told(closed_loop(clients, seed)).open_per_second == 0.0 for seed in range(20))


@pytest.mark.parametrize(("clients", "stay", "pause"), [(68, 60.0, 0.7), (40, 30.0, 0.5), (300, 60.0, 0.9)])
def test_clients_whose_next_request_is_on_the_page_a_poll_later_wait_too(
    clients: int, stay: float, pause: float
) -> None:
    found = [told(closed_loop(clients, seed, stay, pause)) for seed in range(20)]
    assert sum(one.waiting_ratio == 1.0 for one in found) >= 18
    assert all(one.most == 1.0 for one in found)


@pytest.mark.parametrize("cv", [0.5, 1.0, 2.0])
def test_requests_at_a_rate_that_stay_for_long_are_not_taken_for_clients(cv: float) -> None:
    found = [told(open_loop(2.0, cv, seed, stay=30.0)) for seed in range(20)]
    assert sum(one.least == 0.0 for one in found) >= 18
    assert sum(one.waiting_ratio < 1.0 for one in found) >= 16


def test_requests_in_a_queue_that_grows_are_not_taken_for_clients() -> None:
    found = []
    for seed in range(20):
        rng, came, served, events = random.Random(seed), 0.0, 0.0, list[tuple[float, int]]()
        while came < 300:
            came += rng.expovariate(5.0)
            served = max(served, came) + rng.uniform(0.0, 0.6)
            events += [(came, 1), (served, -1)]
        found.append(told(observed(events, begin=240.0)))
    assert sum(one.waiting_ratio < 0.5 for one in found) >= 18


def test_both_at_once_are_a_mixture() -> None:
    mixed = []
    for seed in range(20):
        some, others = closed_loop(20, seed), open_loop(3.0, 1.0, seed)
        together = tuple(
            Interval(1.0, (a.running or 0) + (b.running or 0), 0.0, finished=(a.finished or 0) + (b.finished or 0))
            for a, b in zip(some.intervals, others.intervals, strict=True)
        )
        mixed.append(told(replace(some, intervals=together)))
    inside = [one.least <= 20 / STAY / (20 / STAY + 3) <= one.most for one in mixed]
    assert sum(inside) >= 13


def test_where_polls_are_too_far_apart_it_is_either() -> None:
    far = tuple(
        replace(one, seconds=15.0, running=30.0 + place % 3) for place, one in enumerate(open_loop(4, 1, 1).intervals)
    )
    found = told(replace(open_loop(4, 1, 1), intervals=tuple(replace(one, finished=60.0) for one in far)))
    assert (found.least, found.most) == (0.0, pytest.approx(1.0, abs=0.01))
    assert found.otherwise == found.least


def test_a_queue_that_grows_is_told_with_its_growth() -> None:
    intervals = tuple(Interval(1.0, 20.0, 8.0 * second, finished=float(10 + second % 3)) for second in range(SECONDS))
    found = told(Observed(intervals=intervals, cache=CacheConfig()))
    assert found.growth_per_second == pytest.approx(8.0, rel=0.05)
    assert found.open_per_second == pytest.approx(8.0 if found.waiting_ratio else 19.0, rel=0.1)
    assert found.otherwise is None


def test_a_load_that_has_changed_at_once_is_that_since_then() -> None:
    before, after = (Interval(1.0, running, 0.0, finished=1.0) for running in (3.0, 12.0))
    assert len(of_present_load((*[before] * 30, *[after] * 30))) == 30
    assert len(of_present_load((*[before] * 55, *[after] * 5))) == 60
    assert len(of_present_load(tuple(replace(after, running=10 + math.sin(t)) for t in range(60)))) == 60


def test_of_few_polls_nothing_is_said() -> None:
    few = open_loop(4.0, 1.0, 1)
    assert arrivals_of(replace(few, intervals=few.intervals[:10])) is None

"""The network between two engines: what is under way shares it, and nothing comes sooner than it takes."""

from __future__ import annotations

import pytest

from tests.lab.clock import Clock
from tests.lab.link import Link


def link(rate: float = 100.0, latency: float = 0.0) -> tuple[Clock, Link, list[tuple[float, int]]]:
    clock, seen = Clock(), list[tuple[float, int]]()
    made = Link(clock, rate, latency)
    made.observe = lambda seconds, tokens: seen.append((round(seconds, 6), tokens))
    return clock, made, seen


def test_transfers_share_the_bandwidth_and_the_rest_goes_on_faster_once_one_is_through():
    clock, made, seen = link()
    made.begin("a", 100)
    made.begin("b", 300)
    clock.now += 2
    assert made.take() == {"a"}, "100 of 200 tokens each"
    clock.now += 1.9
    assert made.take() == set()
    clock.now += 0.1
    assert made.take() == {"b"}
    assert seen == [(2.0, 100), (4.0, 300)]
    assert not made.busy


def test_one_that_comes_later_takes_its_share_from_then_on():
    clock, made, _ = link()
    made.begin("a", 200)
    clock.now += 1
    made.begin("b", 100)
    clock.now += 1.99
    assert made.take() == set()
    clock.now += 0.01
    assert made.take() == {"a", "b"}


@pytest.mark.parametrize("tokens", [0, 5])
def test_nothing_comes_before_its_latency(tokens: int):
    clock, made, _ = link(1e12, latency=0.5)
    arrived: list[str] = []
    made.arrived = arrived.append
    made.begin("a", tokens)
    clock.now += 0.4
    assert made.take() == set()
    clock.now += 0.1
    assert made.take() == {"a"}
    assert arrived == ["a"]

"""What gateways hold back over the polls of a verdict; tests/unit/sources/test_gateway.py has what makes the polls."""

import pytest

from kvpressure.signals import gateway
from kvpressure.signals.gateway import GatewayQueue, gateway_queue
from kvpressure.signals.points import Point


def polled(*held: tuple[float, float, float]) -> GatewayQueue | None:
    """Return what polls show in which so many requests were at the gateway, with its cache and queue use."""
    names = (gateway._POOL, gateway._KV, gateway._QUEUE)
    return gateway_queue([Point(float(t), dict(zip(names, one, strict=True)), {}) for t, one in enumerate(held)])


def test_the_use_of_the_pool_is_its_mean_in_the_polls_in_which_requests_were_queued():
    found = polled((0.0, 0.1, 0.1), (4.0, 0.8, 0.2), (8.0, 1.0, 0.4), (0.0, 0.1, 0.1))
    assert (found.requests, found.held_polls_ratio) == (3.0, 0.5)
    assert (found.kv_ratio, found.engine_queue_ratio) == (pytest.approx(0.9), pytest.approx(0.3))


def test_without_a_queue_the_use_of_the_pool_says_nothing():
    found = polled((0.0, 0.9, 0.9), (0.0, 0.9, 0.9))
    assert found == GatewayQueue(0.0, None, 0.0, 0.0, None, None)


def test_a_gateway_that_reports_no_queue_now_has_none():
    assert gateway_queue([Point(0.0, {gateway._POOL: 3.0}, {}), Point(1.0, {}, {})]) is None

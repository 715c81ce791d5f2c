import math
from statistics import median

import pytest

from kvpressure.simulation.queue_order import FirstComeFirstServed, Request, ShortPromptsFirst, queue_of
from kvpressure.simulation.scheduler import simulate
from kvpressure.simulation.server import Demand, RequestShape, Server, StepSeconds

STEPS = StepSeconds(0.03, 0.0, 1 / 16_000)
MIXED = Demand(tuple([RequestShape(200, 200, 140)] * 450 + [RequestShape(5700, 5700, 280)] * 62), clients=35)


def request(prompt: int, came: float) -> Request:
    return Request(prompt, 10, 10, came, 0)


def test_first_come_first_served_puts_who_was_thrown_out_at_the_head_and_throws_out_the_last():
    queue = FirstComeFirstServed()
    first, second, third = (request(100, came) for came in (1.0, 2.0, 3.0))
    queue.add(second)
    queue.add(third)
    queue.push_back(first)
    assert queue[0] is first
    assert [queue.take() for _ in range(3)] == [first, second, third]
    assert queue.victim({second: None, first: None}) is first


def test_by_priority_short_ones_go_first_by_arrival_and_the_last_long_one_is_thrown_out():
    queue = ShortPromptsFirst(1000)
    long, late, early = request(5000, 1.0), request(100, 3.0), request(1000, 2.0)
    for one in (long, late):
        queue.add(one)
    queue.push_back(early)
    assert len(queue) == 3
    assert queue.victim({long: None, late: None, early: None}) is long
    assert queue.victim({early: None, late: None}) is late
    assert [queue.take() for _ in range(3)] == [early, late, long]


def test_servers_serve_in_order_unless_short_ones_go_first():
    assert isinstance(queue_of(Server(1e4, STEPS)), FirstComeFirstServed)
    assert isinstance(queue_of(Server(1e4, STEPS, priority_max_prompt_tokens=100)), ShortPromptsFirst)


def test_chats_before_documents_are_answered_several_times_as_fast_from_the_same_pool():
    """The lab's kv-bimodal; its table in docs/internals/accuracy/advice.md has what vLLM's own scheduler did."""
    usual = simulate(Server(16_368.0, STEPS), MIXED, 20.0)
    first = simulate(Server(16_368.0, STEPS, priority_max_prompt_tokens=1000), MIXED, 20.0)
    assert first.goodput > 1.5 * usual.goodput
    assert median(first.latencies) < 0.5 * median(usual.latencies)


def test_without_long_ones_the_order_is_the_same():
    chats = Demand((RequestShape(200, 200, 140),), clients=60)
    usual = simulate(Server(4096.0, STEPS), chats)
    first = simulate(Server(4096.0, STEPS, priority_max_prompt_tokens=1000), chats)
    assert first.tokens_per_second == pytest.approx(usual.tokens_per_second, rel=0.02)


def test_a_tier_that_keeps_all_saves_what_would_be_computed_again():
    slow = StepSeconds(0.03, 0.0, 1e-3)
    thrashed = Demand((RequestShape(460, 460, 830),), clients=32)
    lost = simulate(Server(8176.0, slow, reuses=False), thrashed)
    found = simulate(Server(8176.0, slow), thrashed)
    kept = simulate(Server(8176.0, slow, reuses=False, kv_offload=True), thrashed)
    assert lost.tokens_per_second < found.tokens_per_second < kept.tokens_per_second
    assert math.isfinite(kept.latency_p95)

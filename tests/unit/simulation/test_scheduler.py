import math
import time
from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpressure.simulation.clients import Clients
from kvpressure.simulation.scheduler import simulate
from kvpressure.simulation.server import MAX_ARRIVALS, Demand, RequestShape, Server, StepSeconds

STEPS = StepSeconds(0.03, 0.0, 1 / 16_000)
ROOMY = Server(1e6, STEPS)


def alike(clients: int, prompt: int, output: int) -> Demand:
    return Demand((RequestShape(prompt, prompt, output),), clients)


def test_one_client_alone_gets_what_its_steps_give():
    # 16,000 prompt tokens a second: 0.1 + 0.03 for the first token (two chunks would be one more step), then 99 steps.
    outcome = simulate(ROOMY, alike(1, 1600, 100))
    whole = 0.03 + 0.1 + 99 * 0.03
    assert outcome.latency_p95 == pytest.approx(whole, rel=1e-6)
    assert outcome.tokens_per_second == pytest.approx(100 / (whole + 0.05), rel=0.01)


def test_a_prompt_longer_than_a_step_is_computed_in_several():
    outcome = simulate(replace(ROOMY, step_tokens=512.0), alike(1, 1600, 1))
    assert median(outcome.latencies) == pytest.approx(4 * 0.03 + 0.1, rel=1e-6)


def test_full_steps_of_a_long_prompt_taken_at_once_take_as_long_as_one_by_one():
    # Twelve steps of 1,000 tokens, and one for the rest; each pair of a token and one before it takes 0.1 microseconds.
    steps = StepSeconds(0.03, 0.0, 1e-4, prompt_pair=1e-7)
    outcome = simulate(Server(1e6, steps, step_tokens=1000.0), alike(1, 12_500, 1))
    assert median(outcome.latencies) == pytest.approx(13 * 0.03 + 1.25 + 1e-7 * 12_500**2 / 2, rel=1e-6)


def test_who_does_not_fit_waits_for_those_that_run():
    # Two of 1000 + 100 fit into 2500, three do not.
    outcome = simulate(Server(2500.0, STEPS), alike(6, 1000, 100))
    assert outcome.running == pytest.approx(2.0, abs=0.1)
    assert outcome.waiting == pytest.approx(4.0, abs=0.2)
    assert outcome.preempted_per_second == 0


def test_answers_that_outgrow_the_pool_throw_the_last_to_come_out():
    outcome = simulate(Server(2500.0, STEPS), alike(6, 200, 800))
    assert outcome.preempted_per_second > 0
    held = simulate(Server(2500.0, STEPS, max_num_seqs=2), alike(6, 200, 800))
    assert held.preempted_per_second == 0


def test_a_request_that_was_thrown_out_finds_what_nobody_has_taken_since():
    kept = simulate(Server(8176.0, STEPS), alike(32, 460, 830))
    lost = simulate(Server(8176.0, replace(STEPS, prompt_token=1e-3), reuses=False), alike(32, 460, 830))
    reused = simulate(Server(8176.0, replace(STEPS, prompt_token=1e-3)), alike(32, 460, 830))
    assert lost.tokens_per_second < reused.tokens_per_second < kept.tokens_per_second


def test_what_the_lab_showed_of_cutting_max_num_seqs():
    """The real scheduler at the same step times: 62.1 and 62.1 under the collapse, 262.8 and 211.8 under thrash."""
    collapse = Demand(tuple(RequestShape(p, p, 850 + p % 150) for p in range(2550, 3000, 3)), 12)
    thrash = Demand(tuple(RequestShape(p, p, 765 + 9 * p % 135) for p in range(425, 500)), 32)
    server = Server(8176.0, StepSeconds(0.0305, 0.0002, 1 / 16_000))
    for demand, most, before, after in ((collapse, 2, 62.1, 62.1), (thrash, 7, 262.8, 211.8)):
        now, cut = simulate(server, demand), simulate(replace(server, max_num_seqs=most), demand)
        assert now.tokens_per_second == pytest.approx(before, rel=0.05)
        assert cut.tokens_per_second == pytest.approx(after, rel=0.05)


def test_prompts_above_the_cap_are_refused_and_answers_above_it_end_early():
    demand = Demand((*[RequestShape(100, 100, 50)] * 9, RequestShape(900, 900, 400)), 10)
    outcome = simulate(replace(ROOMY, cap_prompt=500.0, cap_output=40.0), demand, limit_seconds=100.0)
    assert outcome.refused_ratio == pytest.approx(0.1)
    assert outcome.shortened_ratio == 1.0
    assert outcome.goodput == 0
    assert outcome.running <= 9


def test_requests_that_come_at_a_rate_do_not_wait_for_answers():
    demand = Demand((RequestShape(100, 100, 50),), rate=2.0)
    outcome = simulate(ROOMY, demand)
    assert outcome.tokens_per_second == pytest.approx(2.0 * 50, rel=0.1)
    slow = simulate(Server(200.0, STEPS), demand)
    assert slow.waiting > 50


@pytest.mark.parametrize("rate", [3.0, 5.0, 12.0])
def test_of_a_queue_that_grows_a_minute_says_what_all_of_its_time_does(rate: float):
    """Simulated whole, which takes five times as long, it comes to the same."""
    mixed = tuple(RequestShape(prompt, prompt, 20 + prompt % 80) for prompt in range(100, 500))
    whole = replace(Demand.at_rate(mixed, rate), seconds=400.0, counted_seconds=60.0, dispersion=0.0)
    minute = replace(whole, seconds=80.0, grown_seconds=400.0)
    expected, found = (simulate(Server(1500.0, STEPS), demand, 60.0) for demand in (whole, minute))
    assert found is not None
    assert expected.waiting > 20
    for name in ("tokens_per_second", "answers_per_second", "latency_p95", "waiting", "running"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=0.1), name


def test_nobody_is_answered_where_nothing_fits():
    assert simulate(Server(100.0, STEPS), alike(3, 1000, 10)) is None


def test_a_change_is_simulated_in_milliseconds():
    """All that advice tries must take less than two seconds of CPU: thirty runs of a large batch do."""
    demand = Demand(tuple(RequestShape(p, p, 200 + p % 300) for p in range(500, 1500)), 256)
    began = time.process_time()
    for number in range(30):
        simulate(Server(200_000.0 + number, StepSeconds(0.02, 1e-4, 1e-5)), demand)
    assert time.process_time() - began < 4.0


@settings(max_examples=40, deadline=None)
@given(
    pool=st.floats(2000.0, 50_000.0),
    clients=st.integers(1, 60),
    prompt=st.integers(1, 1500),
    output=st.integers(1, 400),
    most=st.integers(1, 64),
    budget=st.integers(64, 4096),
    fixed=st.floats(0.001, 0.1),
)
def test_what_holds_of_any_server(pool, clients, prompt, output, most, budget, fixed):
    server = Server(pool, StepSeconds(fixed, 0.0, 1e-5), max_num_seqs=most, step_tokens=budget)
    outcome = simulate(server, alike(clients, prompt, output), limit_seconds=30.0)
    if outcome is None:
        assert prompt + 8 > pool
        return
    assert outcome == simulate(server, alike(clients, prompt, output), limit_seconds=30.0)
    assert 0 < outcome.running <= min(most, clients) + 1e-6
    assert outcome.running + outcome.waiting <= clients + 1e-6
    assert median(outcome.latencies) <= outcome.latency_p95 < math.inf
    assert outcome.goodput <= outcome.weighted_goodput + 1e-9
    # A sequence gets at most a token a step.
    assert outcome.tokens_per_second <= min(most, clients) / fixed * 1.001
    assert median(outcome.latencies) >= output * fixed * 0.999


@pytest.mark.parametrize("rate", [2.0, 100.0, 100_000.0])
def test_a_flood_costs_no_more_than_a_queue_and_everything_tried_on_it_covers_the_same_time(monkeypatch, rate):
    drawn = []
    plain = Clients._drawn
    monkeypatch.setattr(Clients, "_drawn", lambda self, at, client: drawn.append(client) or plain(self, at, client))
    flood = Demand.at_rate((RequestShape(100, 100, 50),), rate)
    simulate(ROOMY, flood)
    assert len(drawn) <= 1.1 * MAX_ARRIVALS
    assert flood.divided(2).seconds == flood.times(3).seconds == flood.seconds

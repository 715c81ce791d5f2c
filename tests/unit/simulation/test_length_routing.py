from dataclasses import replace

import pytest

from kvpressure.config.thresholds import load_thresholds
from kvpressure.simulation.calibrate import Known, Measured
from kvpressure.simulation.config_changes import replicas, route_by_length
from kvpressure.simulation.consequences import Model
from kvpressure.simulation.greedy_search import choose
from kvpressure.simulation.length_routing import parts, simulated
from kvpressure.simulation.lengths import Bucket, LengthDistribution
from kvpressure.simulation.scheduler import simulate
from kvpressure.simulation.server import Demand, LengthRouting, RequestShape, Server, StepSeconds

STEPS = StepSeconds(0.03, 0.0, 1 / 16_000)
SERVER = Server(16_368.0, STEPS)
CHAT, DOCUMENT = RequestShape(200, 200, 140), RequestShape(5700, 5700, 280)
MIXED = Demand(tuple([CHAT] * 360 + [DOCUMENT] * 152), clients=50)


def model(demand: Demand = MIXED, limit_seconds: float = 20.0) -> Model:
    outcome = simulate(SERVER, demand)
    measured = Measured(outcome.tokens_per_second, outcome.running, outcome.waiting, outcome.preempted_per_second)
    prompts = LengthDistribution((Bucket(0.7, 100, 200, 200, 200), Bucket(0.3, 5000, 10_000, 5700, 5700)))
    answers = LengthDistribution((Bucket(1.0, 100, 500, 140, 280),))
    return Model(Known(SERVER, demand, prompts, answers, measured), limit_seconds, load_thresholds())


def test_requests_are_parted_by_the_length_of_their_prompts_and_clients_with_them():
    (short, two), (long, one) = parts(MIXED, LengthRouting(5000, 2, 1))
    assert (two, one) == (2, 1)
    assert {a.prompt for a in short.requests} == {200}
    assert {a.prompt for a in long.requests} == {5700}
    assert 2 * short.clients + long.clients == pytest.approx(MIXED.clients, abs=1)
    open_ones = dict.fromkeys((True, False), 0.0)
    for part, servers in parts(Demand.at_rate(MIXED.requests, 3.0), LengthRouting(5000, 2, 1)):
        open_ones[part.requests[0] == CHAT] = servers * part.rate
    assert open_ones[True] == pytest.approx(3.0 * 360 / 512)
    assert sum(open_ones.values()) == pytest.approx(3.0)


def test_what_is_told_is_the_mean_of_one_server_and_the_latencies_of_all():
    kept = replace(MIXED, length_routing=LengthRouting(5000, 1, 1))
    both = simulated(SERVER, kept, 20.0)
    alone = [simulate(SERVER, part, 20.0) for part, _ in parts(kept, LengthRouting(5000, 1, 1))]
    found = [one for one in alone if one is not None]
    assert both.tokens_per_second == pytest.approx(sum(one.tokens_per_second for one in found) / 2)
    assert both.goodput == pytest.approx(sum(one.goodput for one in found) / 2)
    assert min(one.latency_p95 for one in found) <= both.latency_p95 <= max(one.latency_p95 for one in found)


def test_with_all_on_one_side_it_is_what_so_many_servers_do():
    chats = Demand((CHAT,), clients=50)
    kept = simulated(SERVER, replace(chats, length_routing=LengthRouting(5000, 2, 1)))
    usual = simulate(SERVER, chats.divided(2))
    assert kept.tokens_per_second == pytest.approx(usual.tokens_per_second)


def test_kept_apart_is_advised_only_where_it_does_more_than_as_many_servers_for_all():
    choice = choose(model(), (), (), 3)
    kept, plain = choice.step("route_by_length"), choice.step("add_replica")
    assert (kept is None) != (plain is None)
    found = model()
    if kept is not None:
        same = found.expected([], [replicas(kept.change.by)])
        assert kept.expected.goodput.after >= 1.04 * same.goodput.after or kept.expected.waiting.after < 0.5
    else:
        (told,) = (step for step in choice.declined if step.change.key == "route_by_length")
        assert "no more than as many servers" in told.against


def test_requests_that_are_all_alike_are_not_parted():
    alike = Demand((CHAT,), clients=150)
    choice = choose(model(alike), (), (), 3)
    assert choice.step("route_by_length") is None
    assert choice.step("add_replica") is not None


def test_two_kinds_on_two_servers_answer_chats_in_time_that_documents_would_hold_up():
    found = model()
    parted, plain = (found.outcome(change.apply(found.state)) for change in (route_by_length(5000, 1, 1), replicas(2)))
    assert parted.goodput > plain.goodput

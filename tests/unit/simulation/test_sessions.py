import itertools
import math
import random
from dataclasses import replace

import pytest

from kvpressure.simulation.outcome import Outcome
from kvpressure.simulation.scheduler import simulate
from kvpressure.simulation.server import Demand, RequestShape, Server
from kvpressure.simulation.sessions import Session, Sessions, begun
from tests.support.lab_sessions import AGENTS, STEPS

LAB = {
    160_000: (0.002, 72.7, 48.8),
    320_000: (0.003, 84.2, 24.2),
    480_000: (0.006, 89.5, 8.08),
    640_000: (0.299, 110.3, 2.46),
    800_000: (0.884, 194.3, 0.29),
    960_000: (0.905, 199.3, 0.241),
}
"""Of AGENTS by pool: hits, tokens/s and mean TTFT. In the middle of the cliff chance decides much."""


SERVER = Server(0.0, STEPS)


def run(pool: float, sessions: Sessions = AGENTS, clients: int = 40, server: Server = SERVER) -> Outcome:
    requests = (RequestShape(19_000, 19_000, 150),)
    return simulate(replace(server, pool_tokens=pool), Demand(requests, clients, sessions=sessions))


def hits(outcome: Outcome) -> float:
    return outcome.hit_ratio


@pytest.mark.parametrize(("pool", "lab"), LAB.items())
def test_the_simulated_cache_does_what_vllms_own_did_in_the_lab(pool, lab):
    outcome = run(pool)
    found, tokens_per_second, first_token_seconds = lab
    assert outcome.hit_ratio == pytest.approx(found, abs=0.1)
    assert outcome.tokens_per_second == pytest.approx(tokens_per_second, rel=0.1)
    assert outcome.first_token_seconds == pytest.approx(first_token_seconds, rel=0.2, abs=0.25)


def test_a_session_says_all_that_was_said_before_until_it_is_too_long():
    rng = random.Random(1)
    session = Session(AGENTS, 0, rng)
    lengths, over = [], False
    while not over:
        lengths.append(session.turn(rng.random)[0])
        over = session.ended_with(lengths[-1], 150)
    grown = [after - before for before, after in itertools.pairwise(lengths)]
    assert lengths[0] == 8_000
    assert all(1_400 <= one <= 1_600 for one in grown)
    assert len(lengths) == 15
    assert lengths[-1] <= 30_000


def test_clients_are_found_in_the_middle_of_their_sessions():
    said = [begun(AGENTS, number, random.Random(number)).said for number in range(400)]
    assert said.count(0) == pytest.approx(400 / 15, rel=0.5)
    said = [tokens for tokens in said if tokens]
    assert sum(said) / len(said) == pytest.approx(AGENTS.kept_tokens, rel=0.1)


def test_means_of_sessions_are_those_of_their_bounds():
    assert AGENTS.think_seconds == pytest.approx(33 / math.log(40 / 7))
    assert AGENTS.mean_turns == 15
    assert AGENTS.thinking(2.0).think == (14.0, 80.0)


def test_a_tier_finds_what_the_pool_evicted_and_its_loading_takes_time():
    without = run(480_000)
    tier = run(480_000, server=replace(SERVER, tier_tokens=2e6))
    slow = run(480_000, server=replace(SERVER, tier_tokens=2e6, tier_token_seconds=STEPS.prompt_token / 2))
    assert hits(without) < 0.05
    assert hits(tier) > 0.85
    assert hits(slow) > 0.8
    assert without.tokens_per_second < slow.tokens_per_second < tier.tokens_per_second
    assert hits(run(480_000, server=replace(SERVER, tier_tokens=1e5))) < 0.1


def test_a_few_sessions_less_find_most_of_their_contexts_again():
    assert hits(run(640_000, clients=40)) < 0.5
    assert hits(run(640_000, clients=26)) > 0.8


def test_a_router_that_scatters_sessions_over_replicas_loses_their_contexts():
    scattered = run(800_000, replace(AGENTS, replicas=4), clients=160)
    sticky = run(800_000, AGENTS, clients=40)
    assert hits(scattered) < hits(sticky) - 0.3


def test_a_common_beginning_is_found_by_new_sessions_too():
    assert hits(run(160_000, replace(AGENTS, shared=4_000))) > 0.15


def test_without_prefix_caching_nothing_is_found():
    assert hits(run(2e6, replace(AGENTS, shared=1_000), server=replace(SERVER, reuses=False))) == 0


def test_a_cap_at_the_edge_that_refuses_a_turn_ends_its_session():
    capped = run(2e6, server=replace(SERVER, cap_prompt=12_000.0))
    assert capped.tokens_per_second > 0
    assert capped.latencies

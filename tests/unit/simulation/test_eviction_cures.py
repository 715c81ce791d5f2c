from dataclasses import replace

import pytest

from kvpressure.config.thresholds import load_thresholds
from kvpressure.model.limits import KV_DTYPE
from kvpressure.simulation import config_changes, eviction_cures
from kvpressure.simulation.calibrate import Known, Measured
from kvpressure.simulation.consequences import Model
from kvpressure.simulation.lengths import Bucket, LengthDistribution
from kvpressure.simulation.models import modelled
from kvpressure.simulation.scheduler import simulate
from kvpressure.simulation.server import Demand, RequestShape, Server
from tests.support.lab_sessions import AGENTS, STEPS

THRESHOLDS = load_thresholds()
BYTES = 100_000.0


def model(pool: float = 480_000, clients: int = 40) -> Model:
    """The lab's table: below its cliff on 480,000 tokens."""
    server = Server(pool, STEPS)
    demand = Demand((RequestShape(19_000, 19_000, 150),), clients, sessions=AGENTS)
    outcome = simulate(server, demand)
    measured = Measured(outcome.tokens_per_second, outcome.running, outcome.waiting, 0.0)
    prompts, outputs = (
        LengthDistribution((Bucket(1.0, low, high, low, high),)) for low, high in ((8e3, 3e4), (1e2, 2e2))
    )
    return modelled(Known(server, demand, prompts, outputs, measured, BYTES), (), THRESHOLDS, limit_seconds=30.0)


def test_the_cliff_is_where_it_is_in_the_lab():
    """Half of .905 is passed between 640,000 (.299) and 800,000 tokens (.884), at 687,000 on a straight line."""
    cliff = eviction_cures.cliff_tokens(model().state)
    assert cliff == pytest.approx(687_000, rel=0.15)
    assert eviction_cures.working_set_tokens(model().state) == pytest.approx(40 * 18_650)


def test_cures_are_told_with_hits_and_time_to_first_token_the_most_helpful_first():
    found = model()
    tier = eviction_cures.tier(found, BYTES)
    fewer = eviction_cures.fewer_sessions(found)
    assert tier is not None
    assert fewer is not None
    useless = config_changes.context_tier(1, BYTES)
    choice = eviction_cures.choose(found, [useless, fewer, tier, config_changes.kv_in_8_bits()])
    keys = [step.change.key for step in choice.steps]
    assert keys[0] in (KV_DTYPE, config_changes.OFFLOAD)
    assert config_changes.SESSIONS in keys
    assert [step.change.value for step in choice.declined] == [1]
    for step in choice.steps:
        assert step.expected.hit_ratio.after > 0.5
        assert "prefix hits" in step.expected.text
        assert "TTFT" in step.expected.text


def test_as_few_servers_as_find_most():
    found = eviction_cures.replicas(model())
    assert found.value == 2
    three = eviction_cures.replicas(model(pool=270_000))
    assert three.value == 3


def test_sticky_sessions_undo_a_router_that_scatters_them():
    """Each of four replicas sees every fourth turn of 160 sessions; sticky, every turn of 40."""
    seen = AGENTS.thinking(4.0)
    words = 4 * 1_500 - 150.0
    demand = Demand((), 160, sessions=replace(seen, words=(words, words), turns=(4, 4)))
    _, sticky = config_changes.sticky(4).apply((Server(8e5, STEPS), demand))
    assert sticky.clients == 40
    assert sticky.sessions.think == pytest.approx(AGENTS.think)
    assert sum(sticky.sessions.words) / 2 == pytest.approx(1_350)
    assert sticky.sessions.turns == (16, 16)
    assert config_changes.sticky(4).apply((Server(8e5, STEPS), Demand((), 160)))[1].clients == 160

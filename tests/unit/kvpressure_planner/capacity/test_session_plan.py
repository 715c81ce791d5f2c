from dataclasses import replace

import pytest

from kvpressure_planner.capacity.session_plan import OnPool, SessionLoad, SessionPlan, plan_sessions

AGENTS = SessionLoad(count=40, context_tokens=19_000, think_seconds=19.0, answer_tokens=150)
"""Those of the lab's table, whose contexts grow from 8,000 to 30,000 tokens."""


def planned(pool: int, load: SessionLoad = AGENTS, each: float | None = 100_000.0) -> SessionPlan:
    return plan_sessions(load, pool, each)


def beside(pool: int, load: SessionLoad = AGENTS, each: float | None = 100_000.0) -> OnPool:
    found = planned(pool, load, each).on_pool
    assert found is not None
    return found


def test_the_cliff_is_where_the_lab_has_it():
    """687,000 tokens: tests/lab/README.md, on a straight line between two pools."""
    plan = planned(480_000)
    assert plan.working_set_tokens == pytest.approx(40 * 19_000, rel=0.05)
    assert plan.working_set_bytes == pytest.approx(plan.working_set_tokens * 1e5, rel=1e-3)
    assert plan.cliff_tokens == pytest.approx(687_000, rel=0.15)
    assert beside(480_000).hit_ratio < 0.1
    assert plan.best_hit_ratio == pytest.approx(0.905, abs=0.03)


@pytest.mark.exhaustive
def test_what_serves_them_serves_them():
    plan, found = planned(480_000), beside(480_000)
    assert not found.serves
    enough = 0.85 * plan.best_hit_ratio
    assert beside(plan.pool_tokens_needed).hit_ratio >= enough
    assert beside(960_000).hit_ratio == pytest.approx(found.hit_ratio_in_8_bits, abs=0.02)
    assert found.sessions_per_replica is not None
    assert beside(480_000, replace(AGENTS, count=found.sessions_per_replica)).hit_ratio >= enough
    assert found.replicas == 2
    assert 0 < found.offload_tokens < 1.5 * plan.working_set_tokens
    assert found.offload_bytes == pytest.approx(found.offload_tokens * 1e5, rel=1e-3)


def test_a_pool_for_all_needs_nothing_more():
    found = beside(1_200_000)
    assert found.hit_ratio == pytest.approx(planned(1_200_000).best_hit_ratio, abs=0.02)
    assert found.serves
    assert found.replicas == 1
    assert found.sessions_per_replica == 40


@pytest.mark.exhaustive
def test_many_sessions_are_planned_by_their_share_of_the_pool():
    few, many = planned(480_000), planned(4_800_000, replace(AGENTS, count=400))
    assert many.working_set_tokens == pytest.approx(10 * few.working_set_tokens, rel=0.02)
    assert many.cliff_tokens == pytest.approx(10 * few.cliff_tokens, rel=0.15)


@pytest.mark.parametrize("pool", [None, 20_000])
def test_without_a_pool_and_with_one_that_holds_no_context_the_pool_that_serves_is_known(pool):
    plan = plan_sessions(AGENTS, pool, None)
    assert plan.on_pool is None
    assert plan.pool_tokens_needed == pytest.approx(planned(480_000).pool_tokens_needed, rel=0.05)


def test_without_the_bytes_of_a_token_sizes_are_in_tokens_alone():
    assert planned(480_000, each=None).working_set_bytes is None
    assert beside(480_000, each=None).offload_bytes is None

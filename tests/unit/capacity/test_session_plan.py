from __future__ import annotations

from dataclasses import replace

import pytest

from kvpressure.capacity.session_plan import SessionPlan, SessionsAsked, plan_sessions

AGENTS = SessionsAsked(count=40, context_tokens=19_000, think_seconds=19.0, answer_tokens=150)
"""Those of the lab's table, whose contexts grow from 8,000 to 30,000 tokens."""


def planned(pool: int, asked: SessionsAsked = AGENTS, each: float | None = 100_000.0) -> SessionPlan:
    plan = plan_sessions(asked, pool, each)
    assert plan is not None
    return plan


def test_the_cliff_is_where_the_lab_has_it():
    """687,000 tokens: tests/lab/README.md, on a straight line between two pools."""
    plan = planned(480_000)
    assert plan.working_set_tokens == pytest.approx(40 * 19_000, rel=0.05)
    assert plan.working_set_bytes == pytest.approx(plan.working_set_tokens * 1e5, rel=1e-3)
    assert plan.cliff_tokens == pytest.approx(687_000, rel=0.15)
    assert plan.hit_ratio < 0.1
    assert plan.best_hit_ratio == pytest.approx(0.905, abs=0.03)


def test_what_serves_them_serves_them():
    plan = planned(480_000)
    enough = 0.85 * plan.best_hit_ratio
    assert planned(plan.pool_tokens_needed).hit_ratio >= enough
    assert planned(960_000).hit_ratio == pytest.approx(plan.hit_ratio_in_8_bits, abs=0.02)
    assert plan.sessions_per_replica is not None
    assert planned(480_000, replace(AGENTS, count=plan.sessions_per_replica)).hit_ratio >= enough
    assert plan.replicas == 2
    assert 0 < plan.offload_tokens < 1.5 * plan.working_set_tokens
    assert plan.offload_bytes == pytest.approx(plan.offload_tokens * 1e5, rel=1e-3)


def test_a_pool_for_all_needs_nothing_more():
    plan = planned(1_200_000)
    assert plan.hit_ratio == pytest.approx(plan.best_hit_ratio, abs=0.02)
    assert plan.replicas == 1
    assert plan.sessions_per_replica == 40


def test_many_sessions_are_planned_by_their_share_of_the_pool():
    few, many = planned(480_000), planned(4_800_000, replace(AGENTS, count=400))
    assert many.working_set_tokens == pytest.approx(10 * few.working_set_tokens, rel=0.02)
    assert many.cliff_tokens == pytest.approx(10 * few.cliff_tokens, rel=0.15)


def test_a_pool_that_holds_no_context_has_no_plan():
    assert plan_sessions(AGENTS, 20_000, None) is None


def test_without_the_bytes_of_a_token_sizes_are_in_tokens_alone():
    plan = planned(480_000, each=None)
    assert plan.working_set_bytes is None
    assert plan.offload_bytes is None

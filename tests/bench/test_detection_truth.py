"""The simulator's own knowledge of why requests wait, which the detection benchmark takes as the truth."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from bench.detection.truth import accepted, accepted_series, observed
from bench.simulator.clients import ClosedLoop, Fault, Lengths, Phase, Traffic
from bench.simulator.config import TINY_CPU, EngineConfig
from bench.simulator.scenarios import CASES, CAUSES, case, engine_of
from bench.simulator.service import Scenario, SimulatedServer

NOTHING = dict.fromkeys(("kv", "cap", "both", "budget", "paused", "work", "behind"), 0.0) | {"present": 1.0}
AROUND = {"present": 1.0, "preempted": 0.0, "started": 10.0}


def shares(
    clients: int, prompt: float, output: float, engine: EngineConfig = TINY_CPU, fault: Fault = ""
) -> Counter[str]:
    """Mean shares of the ten seconds after the first ten of a constant load."""
    loop = ClosedLoop(Traffic(Lengths(prompt), Lengths(output)), clients)
    server = observed(Scenario("test", engine, (Phase("healthy", 60.0, (loop,), fault),)), 1)
    server.observe(server.start + 10.0)
    return Counter(server.observe(server.start + 20.0)[0])


def test_long_prompts_wait_for_blocks() -> None:
    share = shares(12, 3000, 1000)
    assert share["kv"] > 0.9
    assert share["cap"] == share["both"] == 0


def test_answers_that_outgrow_the_pool_wait_for_blocks() -> None:
    assert shares(28, 500, 900)["kv"] > 0.7


def test_many_short_requests_wait_for_the_cap() -> None:
    share = shares(64, 30, 60)
    assert share["cap"] > 0.9
    assert share["kv"] == 0


def test_behind_the_cap_a_request_that_would_not_fit_either_is_told_apart() -> None:
    share = shares(20, 3000, 1000, replace(TINY_CPU, max_num_seqs=2))
    assert share["both"] > 0.5
    assert share["kv"] < 0.2


def test_a_full_pool_without_a_queue_blocks_nobody() -> None:
    share = shares(8, 500, 490)
    assert share["present"] == pytest.approx(1.0, abs=0.05)
    assert share["kv"] + share["cap"] + share["both"] == 0


def test_a_stuck_engine_is_paused_while_someone_waits() -> None:
    assert shares(4, 50, 50, fault="stuck")["paused"] == pytest.approx(1.0)


def test_time_is_booked_once() -> None:
    share = shares(12, 3000, 1000)
    waits = sum(share[name] for name in ("", "kv", "cap", "both", "budget", "paused"))
    assert waits == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("share", "causes"),
    [
        ({}, {"healthy"}),
        ({"kv": 0.9}, {"kv_cache_pressure"}),
        ({"kv": 0.3}, {"healthy", "kv_cache_pressure"}),
        ({"kv": 0.05}, {"healthy"}),
        ({"cap": 0.9}, {"concurrency_bound"}),
        ({"cap": 0.9, "work": 0.9}, {"concurrency_bound", "compute_bound"}),
        ({"cap": 0.6, "both": 0.4}, {"concurrency_bound", "kv_cache_pressure"}),
        ({"both": 0.9}, {"concurrency_bound", "kv_cache_pressure", "healthy"}),
        ({"kv": 0.9, "work": 0.9}, {"kv_cache_pressure"}),
        ({"work": 0.8}, {"compute_bound"}),
        ({"work": 0.5}, {"healthy", "compute_bound"}),
        ({"behind": 1.0}, {"host_bound"}),
        ({"paused": 1.0}, {"stuck"}),
    ],
)
def test_shares_of_the_time_say_which_causes_are_true(share: dict[str, float], causes: set[str]) -> None:
    assert accepted(NOTHING | share, AROUND) == causes


def test_an_engine_is_idle_only_well_away_from_any_request() -> None:
    empty = NOTHING | {"present": 0.0}
    assert accepted(empty, AROUND | {"present": 0.0}) == {"idle"}
    assert accepted(empty, AROUND | {"present": 0.1}) == {"healthy", "idle"}


def test_preempting_one_request_in_a_hundred_may_be_called_pressure_and_fewer_may_not() -> None:
    assert accepted(NOTHING, AROUND | {"preempted": 0.3}) == {"healthy", "kv_cache_pressure"}
    assert accepted(NOTHING, AROUND | {"preempted": 0.05}) == {"healthy"}
    assert shares(28, 500, 900)["preempted"] > 0


def test_the_onset_of_a_clear_cause_is_not_moved_by_smoothing() -> None:
    series = accepted_series([{"present": 1.0}] * 60 + [{"present": 1.0, "kv": 1.0}] * 60)
    first = next(second for second, causes in enumerate(series) if causes == {"kv_cache_pressure"})
    assert abs(first - 60) <= 1


def test_watching_an_engine_changes_nothing_of_what_it_does() -> None:
    plan = case("kv_cache_pressure", 7)
    seen, unseen = observed(plan, 7), SimulatedServer(plan, 7)
    for second in range(0, 200, 20):
        seen.observe(seen.start + second)
        assert seen.page(seen.start + second) == unseen.page(unseen.start + second)


@pytest.mark.parametrize("cause", CAUSES)
def test_every_cause_has_hard_cases_and_a_seed_names_one_of_them(cause: str) -> None:
    for seed, name in enumerate(sorted(CASES[cause])):  # type: ignore[index]
        plan = case(cause, seed)  # type: ignore[arg-type]
        assert plan.name == f"{name}-{seed}"
        assert plan == case(cause, seed)  # type: ignore[arg-type]
        assert any(phase.label == cause for phase in plan.phases)


def test_the_engines_differ_in_what_a_diagnosis_might_lean_on() -> None:
    engines = [engine_of(random.Random(seed)) for seed in range(60)]
    assert {engine.model_name for engine in engines} == {"tiny", "llama-3.1-8b", "llama-3.1-70b"}
    for read in (
        lambda engine: engine.reserve_full_prompt,
        lambda engine: engine.gpu is None,
        lambda engine: engine.version,
        lambda engine: engine.ranks,
    ):
        assert len({read(engine) for engine in engines}) == 2

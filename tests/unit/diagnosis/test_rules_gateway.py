"""Verdicts on engines behind a gateway that holds requests back: by what holds its pool back, and never healthy."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from kvpressure.advice.advise import Place
from kvpressure.config.target import Target
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engine_state import Pipeline
from kvpressure.engine_state.state import EngineEnvironment, EngineState, PipelineSettings
from kvpressure.model.environment import Environment, GatewayReport
from kvpressure.model.samples import CacheConfig, EnginePage, EngineSample, HistogramSample
from kvpressure.model.values import at
from kvpressure.model.verdict import Cause
from kvpressure.model.view import EngineView, role_of
from kvpressure.signals.gateway import with_gateways
from tests.support.advised import advise

TARGET, SETTINGS, THRESHOLDS = Target("llama-0"), PipelineSettings(always_observed=True), load_thresholds()
ENGINES = frozenset({"llama-0", "llama-1", "llama-2", "llama-3"})
CACHE = CacheConfig(block_size=16, capacity_tokens=40_000)
BUSY = {"running": 32.0, "waiting": 0.0, "waiting_capacity": 0.0, "waiting_deferred": 0.0, "kv_usage": 0.8}
IDLE = {**BUSY, "running": 0.0, "kv_usage": 0.0}


def report(**other: Any) -> GatewayReport:
    shown = {"queue_requests": 46.0, "queue_seconds": 12.0, "kv_usage_ratio": 0.8, "engine_queue_requests": 0.0}
    limits = {"kv_usage_max_ratio": 0.8, "engine_queue_max_requests": 5.0}
    return GatewayReport("epp", ENGINES, "llama", 0.0, **{**limits, **shown, **other})


def view(gauges: Mapping[str, float], *gateways: GatewayReport, seconds: int = 90, frozen: bool = False) -> EngineView:
    """The view after so many polls of an engine that answers a request of 500 + 500 tokens every second."""
    state, last = EngineState(SETTINGS), None
    works = gauges["running"] > 0
    for t in range(1, seconds):
        done = float(0 if not works else 30 if frozen and t > 30 else t)
        counters = {
            "steps": 20 * done,
            "generation_tokens": 500 * done,
            "prompt_tokens": 500 * done,
            "computed_prompt_tokens": 500 * done,
            "started": done,
            "finished": done,
            "preemptions": 0.0,
        }
        lengths = HistogramSample((400.0, 600.0, float("inf")), (0.0, done, done), 500 * done)
        histograms = {"request_prompt_tokens": lengths, "request_output_tokens": lengths}
        sample = EngineSample("llama", "0", dict(gauges), counters, histograms, CACHE)
        now = tuple(replace(one, t=float(t), queue_requests=_moved(one, t, frozen)) for one in gateways)
        around = EngineEnvironment(TARGET, Environment(reports=now))
        last = state.step(EnginePage(float(t), (sample,), runtime="vllm"), sample, around, SETTINGS, THRESHOLDS)
    return last


def _moved(one: GatewayReport, t: int, frozen: bool) -> float | None:
    return one.queue_requests if one.queue_requests is None or not frozen else one.queue_requests + t % 7


def verdict(found: EngineView) -> tuple[Cause, str]:
    return found.diagnosis.cause, found.diagnosis.detail


def test_without_a_gateway_the_engine_is_healthy():
    assert verdict(view(BUSY))[0] is Cause.HEALTHY


def test_a_pool_held_back_at_what_the_gateway_lets_its_caches_come_to_is_kv_cache_pressure():
    found = view(BUSY, report())
    assert verdict(found) == (Cause.KV_CACHE_PRESSURE, "held_at_gateway")
    assert found.diagnosis.grounds.startswith("Queued at the gateway: 46, 12 s.")
    assert "held_at_gateway" in found.diagnosis.symptoms


def test_its_share_of_the_queue_counts_as_demand_everywhere():
    found, alone = view(BUSY, report()), view(BUSY)
    assert at(found.derived, "gateway_queue_requests") == 11.5
    assert at(found.derived, "gateway_queue_seconds") == 12.0
    assert at(found.derived, "requests_waiting") == 11.5
    more, before = (at(one.derived, "demand_replicas", "kv_tokens") for one in (found, alone))
    assert more > before + 0.1
    assert {one.waiting for one in found.observed.intervals} == {11.5}
    assert "gateway_queue_requests" not in alone.derived


@pytest.mark.parametrize("usage", [0.2, 0.5])
def test_a_gateway_that_holds_back_where_nothing_explains_it_keeps_to_a_limit_of_its_own(usage):
    found = view({**BUSY, "kv_usage": usage}, report(kv_usage_ratio=usage))
    assert verdict(found) == (Cause.CONCURRENCY_BOUND, "held_at_gateway")
    advice = advise(found.diagnosis, found.derived, found.limits, Place(), THRESHOLDS, observed=found.observed)
    assert "gateway" in advice[0].title


@pytest.mark.parametrize("queue", [None, 0.0])
def test_a_gateway_that_refuses_requests_for_which_the_engine_has_room_keeps_to_a_limit_of_its_own(queue):
    """Dynamo's frontend answers 529 while its workers are past thresholds of its own, with a queue or without."""
    dynamo = {"queue_requests": queue, "kv_usage_ratio": None, "engine_queue_requests": None, "queue_seconds": None}
    found = view({**BUSY, "kv_usage": 0.5}, report(**dynamo, kv_usage_max_ratio=None, refused_per_second=8.0))
    assert verdict(found) == (Cause.CONCURRENCY_BOUND, "held_at_gateway")
    assert found.diagnosis.grounds.startswith("Refused by the gateway: 2 a second for each engine. Nothing in the")
    few = view({**BUSY, "kv_usage": 0.5}, report(**dynamo, refused_per_second=0.04, failed_per_second=2.0))
    assert verdict(few)[0] is Cause.HEALTHY
    assert at(few.derived, "failed_requests_per_second", "gateway") == pytest.approx(0.5)


def test_an_engine_whose_cache_is_full_is_judged_by_that_whatever_the_gateway_refuses():
    full = {**BUSY, "kv_usage": 0.99, "waiting": 6.0, "waiting_capacity": 6.0}
    dynamo = {"queue_requests": None, "queue_seconds": None, "refused_per_second": 8.0}
    assert verdict(view(full, report(**dynamo))) == verdict(view(full))


@pytest.mark.parametrize("gauges", [{**BUSY, "kv_usage": 0.2}, IDLE])
def test_a_gateway_that_cannot_read_its_engines_is_blind(gauges):
    """llm-d-router#2165, #2408: engines with missing or old metrics count as full, and nothing is sent on."""
    found = view(gauges, report(stale_engines=4.0, kv_usage_ratio=0.8))
    assert verdict(found) == (Cause.CONCURRENCY_BOUND, "gateway_blind")
    assert "cannot read the metrics of 4 of its engines" in found.diagnosis.grounds
    advice = advise(found.diagnosis, found.derived, found.limits, Place(), THRESHOLDS, observed=found.observed)
    assert advice[0].key == "gateway_blind"
    assert not any("limit" in one.title or "replica" in one.title for one in advice)


def test_an_engine_that_is_as_full_as_a_gateway_allows_is_judged_by_that_whatever_the_gateway_cannot_read():
    assert verdict(view(BUSY, report(stale_engines=1.0, kv_usage_ratio=0.1))) == (
        Cause.KV_CACHE_PRESSURE,
        "held_at_gateway",
    )


def test_a_gateway_that_does_not_report_the_engines_queues_keeps_to_a_limit_of_its_own_too():
    found = view({**BUSY, "kv_usage": 0.2}, report(kv_usage_ratio=0.2, engine_queue_requests=None))
    assert verdict(found) == (Cause.CONCURRENCY_BOUND, "held_at_gateway")


def test_where_the_engines_own_queues_hold_it_back_they_are_judged_by_that_queue():
    gauges = {**BUSY, "kv_usage": 0.3, "waiting": 6.0, "waiting_capacity": 6.0}
    found = view(gauges, report(kv_usage_ratio=0.3, engine_queue_requests=6.0))
    assert verdict(found) == verdict(view(gauges))
    assert verdict(found)[0] is not Cause.HEALTHY


@pytest.mark.parametrize("depth", [3.0, 6.0])
def test_requests_that_wait_in_the_engine_too_are_what_it_is_judged_by(depth: float):
    """A queue of the engine below what the gateway lets it come to is one: it is what a limit of the engine keeps."""
    gauges = {**BUSY, "kv_usage": 0.3, "waiting": depth, "waiting_capacity": depth}
    found = view(gauges, report(kv_usage_ratio=0.3, engine_queue_requests=depth))
    assert verdict(found) == verdict(view(gauges))
    assert verdict(found)[0] is Cause.CONCURRENCY_BOUND
    other = view({**BUSY, "kv_usage": 0.3}, report(kv_usage_ratio=0.3, engine_queue_requests=depth))
    assert verdict(other) == (Cause.CONCURRENCY_BOUND, "held_at_gateway" if depth < 5 else "sequence_cap")


@pytest.mark.parametrize(("usage", "depth", "kept"), [(0.8, 0.0, 0.2), (0.7, 5.0, None), (0.8, None, 0.2)])
def test_what_a_gateway_keeps_free_counts_while_it_holds_back_by_the_use_of_caches(
    usage: float, depth: float | None, kept: float | None
):
    sample = EngineSample("llama", "0", {**BUSY, "kv_usage": usage}, {}, {}, CACHE)
    found = with_gateways(sample, TARGET, 1, [report(kv_usage_ratio=usage, engine_queue_requests=depth)])[1]
    assert found == (None if kept is None else pytest.approx(kept))


def test_a_gateway_that_does_not_report_the_use_of_caches_is_judged_by_the_engines():
    assert verdict(view(BUSY, report(kv_usage_ratio=None)))[0] is Cause.KV_CACHE_PRESSURE


@pytest.mark.parametrize("gauges", [BUSY, IDLE])
@pytest.mark.parametrize("usage", [0.1, 0.5, 0.8, 1.0, None])
@pytest.mark.parametrize("depth", [0.0, 5.0, 50.0, None])
@pytest.mark.parametrize("queue", [1.0, 46.0])
def test_no_engine_with_a_queue_in_front_is_healthy_or_idle(gauges, usage, depth, queue):
    gateway = report(kv_usage_ratio=usage, engine_queue_requests=depth, queue_requests=queue)
    for own in (0.0, 1.0):
        waiting = {**gauges, "waiting": own, "waiting_capacity": own}
        assert verdict(view(waiting, gateway, seconds=40))[0] not in {Cause.HEALTHY, Cause.IDLE}


@pytest.mark.parametrize(
    "other", [{"queue_requests": None}, {"queue_requests": 0.0}, {"engines": frozenset({"another"})}]
)
def test_a_gateway_that_holds_nothing_back_or_is_of_others_changes_nothing(other):
    found, alone = view(BUSY, replace(report(), **other)), view(BUSY)
    assert verdict(found) == verdict(alone)
    assert at(found.derived, "requests_waiting") == at(alone.derived, "requests_waiting")


def test_an_engine_that_hangs_is_stuck_whatever_comes_and_goes_at_the_gateway():
    assert verdict(view(BUSY, report(), frozen=True))[0] is Cause.STUCK


def test_two_gateways_of_one_pool_are_added():
    assert at(view(BUSY, report(), report(queue_requests=4.0)).derived, "gateway_queue_requests") == 12.5


def test_engines_that_do_not_answer_have_no_share():
    pipeline = Pipeline(SETTINGS, THRESHOLDS)
    shares = []
    for t in range(1, 100):
        for target in (TARGET, *((Target("llama-1"),) if t < 20 else ())):
            sample = EngineSample("llama", "0", BUSY, {"generation_tokens": 500.0 * t}, {}, CACHE)
            (found,) = pipeline.on_page(target, EnginePage(float(t), (sample,), runtime="vllm"))
            shares.append(at(found.derived, "gateway_queue_requests")) if target is TARGET else None
        pipeline.set_environment(float(t), Environment(reports=(report(),)))
    assert (shares[0], shares[5], shares[-1]) == (None, 23.0, 46.0)


def test_who_waits_at_the_gateway_waits_for_what_those_in_the_engine_wait_for():
    gauges = {**BUSY, "kv_usage": 0.3, "waiting": 5.0, "waiting_deferred": 5.0}
    found = view(gauges, report(kv_usage_ratio=0.3, engine_queue_requests=5.0))
    assert verdict(found) == verdict(view(gauges))


def test_its_share_is_divided_as_those_that_wait_in_the_engine_are():
    gauges = {**BUSY, "waiting": 4.0, "waiting_capacity": 1.0, "waiting_deferred": 3.0}
    sample = EngineSample("llama", "0", gauges, {}, {}, CACHE)
    behind, kept_ratio = with_gateways(sample, TARGET, 1, [report(queue_requests=16.0)])
    assert behind.gauges["waiting"] == 8.0
    assert (behind.gauges["waiting_capacity"], behind.gauges["waiting_deferred"]) == (2.0, 6.0)
    assert kept_ratio == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("own", "worker", "role"), [("", "11", "prefill"), ("", "12", ""), ("decode", "11", "decode"), ("", "", "")]
)
def test_a_gateway_tells_the_role_of_an_engine_whose_page_does_not(own: str, worker: str, role: str):
    sample = EngineSample("llama", "0", BUSY, {}, {}, CACHE, own, worker)
    behind, kept_ratio = with_gateways(sample, TARGET, 1, [report(queue_requests=None, roles={"11": "prefill"})])
    assert (behind.role, kept_ratio) == (role, None)
    state = EngineState(SETTINGS)
    around = EngineEnvironment(TARGET, Environment(reports=(report(roles={"11": "prefill"}),)))
    found = state.step(EnginePage(1.0, (sample,), runtime="vllm"), sample, around, SETTINGS, THRESHOLDS)
    assert role_of(found.derived) == role


@pytest.mark.parametrize(("role", "waiting"), [("prefill", 7.0), ("decode", 1.0), ("", 11.5)])
def test_an_engine_has_its_share_of_those_that_wait_for_its_role(role: str, waiting: float):
    sample = EngineSample("llama", "0", BUSY, {}, {}, CACHE, role)
    apart = report(roles={"1": "prefill", "2": "prefill", "3": "decode"}, role_queues={"prefill": 14.0, "decode": 1.0})
    assert with_gateways(sample, TARGET, 1, [apart])[0].gauges["waiting"] == waiting

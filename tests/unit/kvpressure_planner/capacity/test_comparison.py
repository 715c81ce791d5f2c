from __future__ import annotations

from dataclasses import replace

import pytest

from kvpressure.config.thresholds import load_thresholds
from kvpressure.model.limits import Limit
from kvpressure.simulation import consequences
from kvpressure.simulation.config_changes import cap_total, kv_in_8_bits, pool, replicas, sequences
from kvpressure.simulation.consequences import Figures, Model
from kvpressure.simulation.models import model_of, modelled
from kvpressure.simulation.server import Server, StepSeconds
from kvpressure_planner.capacity.comparison import compared, over_load, row
from kvpressure_planner.capacity.described import MeanAndP95, Traffic, alternatives, model_under
from tests.support.observed import given, pressed_view

pytestmark = pytest.mark.recorded

THRESHOLDS = load_thresholds()
COLLAPSE = "lab/kv-collapse-0.33.0.jsonl.xz"
SERVER = Server(120_000.0, StepSeconds(0.03, 0.0, 1 / 16_000), max_num_seqs=64)


def collapse() -> Model:
    return model_of(given(COLLAPSE))


def described(server: Server = SERVER, **load: float) -> Model:
    traffic = Traffic(MeanAndP95(1400, 4000), MeanAndP95(300, 800), int(load.get("clients", 0)), load.get("rate", 0.0))
    first, *others = alternatives(server, traffic)
    return modelled(first, others, THRESHOLDS)


def figures(model: Model, *config_changes: object) -> Figures:
    return model.figures(config_changes)  # type: ignore[arg-type]


def test_rows_are_today_each_change_and_all_together():
    model = collapse()
    changes = (kv_in_8_bits(), replicas(2))
    assert [one.changes for one in compared(model, changes)] == [(), changes[:1], changes[1:], changes]
    assert [one.changes for one in compared(model, changes[:1])] == [(), changes[:1]]
    assert [one.changes for one in compared(model, ())] == [()]


def test_predicted_is_what_the_real_scheduler_then_did():
    """docs/internals/accuracy/advice.md: 139 tokens/s in 8 bits, 129 on two servers, 276 with both, from 64."""
    today, small, two, both = compared(collapse(), (kv_in_8_bits(), replicas(2)))
    for found, measured in ((today, 64), (small, 139), (two, 129), (both, 276)):
        span = found.figures.tokens_per_second
        assert span.value == pytest.approx(measured, rel=0.1)
        assert span.low <= span.value <= span.high


def test_a_comparison_is_a_handful_of_simulations_for_each_engine_that_it_may_be(monkeypatch: pytest.MonkeyPatch):
    model, made = collapse(), []
    monkeypatch.setattr(consequences, "simulated", lambda *given: made.append(given) or simulate(*given[:3]))
    from kvpressure.simulation.scheduler import simulate  # noqa: PLC0415 - the one that is counted

    changes = (kv_in_8_bits(), replicas(2), sequences(4))
    compared(model, changes)
    compared(model, changes)
    # Today, three changes and all of them, at most once for the likeliest engine and for each of the seven others.
    assert 5 <= len(made) <= 5 * 8


def test_a_request_is_no_longer_than_the_model_length_with_its_answer():
    model = described(clients=40)
    today, capped = figures(model), figures(model, cap_total(2048))
    assert today.refused_ratio.value == 0
    assert capped.refused_ratio.value == pytest.approx(
        sum(one.prompt >= 2048 for one in model.known.demand.requests) / 512
    )
    assert capped.shortened_ratio.value > 0


def test_who_falls_behind_is_told_and_who_is_idle_is_not():
    assert row(described(rate=12.0), ()).behind
    assert not row(described(rate=12.0), (replicas(6),)).behind
    assert not row(described(rate=0.02), ()).behind
    assert not row(described(clients=400), ()).behind


def test_nobody_is_answered_out_of_a_pool_that_holds_no_request():
    nothing = row(described(clients=4), (pool("kv_cache_tokens", 1e-5, 1),))
    assert nothing.figures is None


def test_over_load_the_curve_goes_through_the_point_of_the_table():
    model = described(clients=100)
    for changes in ((), (kv_in_8_bits(), replicas(2))):
        points = over_load(model, changes)
        loads = [point.load for point in points]
        assert loads == sorted(set(loads))
        assert (loads[0], loads[-1]) == (10, 300)
        (today,) = (point for point in points if point.load == 100)
        assert today.tokens_per_second == pytest.approx(figures(model, *changes).tokens_per_second.value)
        assert today.latency_p95 == pytest.approx(figures(model, *changes).latency_p95.value)
    rates = [point.load for point in over_load(described(rate=2.0), ())]
    assert rates[0] == pytest.approx(0.2)
    assert rates[-1] == pytest.approx(6.0)


@pytest.mark.parametrize(
    "recording",
    [
        COLLAPSE,
        "lab/kv-json-0.33.0.jsonl.xz",
        "lab/kv-watermark-long-0.33.0.jsonl.xz",
        "traces/preemption-thrash.jsonl.xz",
        "traces/v0.12-preemption.jsonl.xz",
        "traces/long-context-collapse.jsonl.xz",
    ],
)
def test_traffic_that_is_described_as_it_was_recorded_is_served_as_it_was(recording: str):
    """By four numbers and how many clients there are, against a real vLLM and its real scheduler."""
    known = model_of(given(recording)).known
    prompts, answers = (MeanAndP95(one.mean, max(one.mean, one.at(0.95))) for one in (known.prompts, known.outputs))
    traffic = Traffic(prompts, answers, clients=known.demand.clients)
    tokens = figures(model_under(given(recording), traffic)).tokens_per_second
    assert tokens.value == pytest.approx(known.measured.tokens_per_second, rel=0.1)


def test_other_traffic_is_served_with_the_pool_and_the_steps_of_the_page():
    traffic = Traffic(MeanAndP95(200, 400), MeanAndP95(50, 100), clients=12)
    own, other = model_of(given(COLLAPSE)), model_under(given(COLLAPSE), traffic)
    assert other.known.server.steps == own.known.server.steps
    assert other.known.server.pool_tokens == own.known.server.pool_tokens
    assert other.known.demand.clients == 12
    assert figures(other).latency_p95.value < figures(own).latency_p95.value / 5
    capped = given(COLLAPSE, limits=replace(pressed_view(COLLAPSE).limits, max_input_tokens=Limit(300.0)))
    assert figures(model_under(capped, traffic)).refused_ratio.value > 0

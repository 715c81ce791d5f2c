import itertools

import pytest

from kvpressure.config.thresholds import load_thresholds
from kvpressure.simulation.config_changes import (
    MAX_REPLICAS,
    ConfigChange,
    cap_prompt,
    kv_in_8_bits,
    sequences,
)
from kvpressure.simulation.consequences import Model
from kvpressure.simulation.models import modelled
from kvpressure.simulation.server import Server, StepSeconds
from kvpressure_planner.capacity.comparison import search
from kvpressure_planner.capacity.described import MeanAndP95, Traffic, alternatives

pytestmark = pytest.mark.exhaustive

THRESHOLDS = load_thresholds()


def engine(slo_seconds: float, *, clients: int = 60, most: float = 64, pool: float = 40_000.0) -> Model:
    server = Server(pool, StepSeconds(0.03, 0.0, 1 / 16_000), max_num_seqs=most)
    traffic = Traffic(MeanAndP95(1400, 4000), MeanAndP95(300, 800), clients=clients)
    first, *others = alternatives(server, traffic)
    return modelled(first, others, THRESHOLDS, slo_seconds)


def keys(changes: tuple[ConfigChange, ...]) -> set[str]:
    return {change.key for change in changes}


def test_where_todays_limits_keep_the_objective_as_well_as_any_nothing_is_changed():
    found = search(engine(100.0, clients=12), (), has_watermark=True)
    assert found.kept
    assert found.surely
    assert keys(found.best.changes) <= {"max_num_batched_tokens"}  # what hardly decides may gain by chance


def test_a_batch_limit_that_is_too_small_is_raised_and_hardly_anybody_refused():
    model = engine(60.0, clients=60, most=4, pool=400_000.0)
    assert not_kept(model)
    found = search(model, (), has_watermark=True)
    assert found.kept
    assert "max_num_seqs" in keys(found.best.changes)
    assert found.best.figures.refused_ratio.value <= THRESHOLDS.advice.goodput_loss_max_ratio


def test_no_set_that_surely_keeps_the_objective_refuses_fewer():
    """Against every set of some batch sizes and caps, at the worst that lengths in a bucket leave open."""
    model = engine(50.0)
    found = search(model, (), has_watermark=True)
    assert found.surely
    bounds = [round(one.low) for one in model.known.prompts.buckets[1:]]
    for most, cap in itertools.product((8, 16, 24, 32, 48), bounds):
        tried = model.figures((sequences(most), cap_prompt(cap)))
        if tried is None or tried.latency_p95.high > 50.0:
            continue
        spoilt = found.best.figures.refused_ratio.value + found.best.figures.shortened_ratio.value
        bearable = tried.refused_ratio.value + THRESHOLDS.advice.goodput_loss_max_ratio
        assert spoilt <= bearable + 1e-9, (most, cap)


def test_the_search_goes_on_from_what_was_changed_and_leaves_it():
    base = (kv_in_8_bits(), sequences(10))
    found = search(engine(45.0), base, has_watermark=True)
    assert found.best.changes[:2] == base
    assert sum(change.key == "max_num_seqs" for change in found.best.changes) == 1


def test_an_objective_that_no_limits_keep_is_told_with_the_replicas_that_would():
    found = search(engine(15.0, pool=20_000.0), (), has_watermark=True)
    assert not found.kept
    assert found.more.figures.latency_p95.value <= 15.0
    (more,) = (change for change in found.more.changes if change.key == "add_replica")
    assert 2 <= more.value <= MAX_REPLICAS
    never = search(engine(0.1), (), has_watermark=True)
    assert (never.kept, never.more) == (False, None)


def test_progress_is_told_to_the_end():
    told: list[tuple[int, int]] = []
    search(engine(45.0), (), has_watermark=False, progress=lambda done, total: told.append((done, total)))
    assert [done for done, _ in told] == list(range(1, len(told) + 1))
    assert told[-1][0] == told[-1][1]


def test_what_the_runtime_has_no_flag_for_is_not_tried(monkeypatch: pytest.MonkeyPatch):
    model, asked = engine(45.0), []
    outcome = model.outcome
    monkeypatch.setattr(model, "outcome", lambda state: asked.append(state) or outcome(state))
    search(model, (), has_watermark=False)
    assert asked
    assert all(server.watermark_tokens == 0 for server, _ in asked)


def not_kept(model: Model) -> bool:
    outcome = model.outcome(model.state)
    return outcome is None or outcome.latency_p95 > model.limit_seconds


@pytest.mark.parametrize("slo", [30.0, 60.0])
def test_surely_means_for_every_engine_that_this_one_may_be(slo: float):
    found = search(engine(slo), (), has_watermark=True)
    if found.surely:
        assert found.best.figures.latency_p95.high <= slo

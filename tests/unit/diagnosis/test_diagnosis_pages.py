from __future__ import annotations

import dataclasses
import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.simulator.scenarios import episode
from bench.simulator.service import SimulatedServer
from bench.simulator.trace import frames
from kvpressure.diagnosis.diagnose import Diagnostician
from kvpressure.diagnosis.facts import Inputs
from kvpressure.engine_state import Pipeline, PipelineSettings
from kvpressure.engines.reader import PageReader
from kvpressure.exposition.families import diagnosis_families
from kvpressure.model.samples import EnginePage, EngineSample
from kvpressure.model.verdict import Cause
from tests.support.calm import BLOCKED, QUEUE, inputs
from tests.support.engines import THRESHOLDS
from tests.support.snapshots import FakeTarget, lines
from tests.support.verdicts import made as polls_with

pytestmark = pytest.mark.recorded


def test_a_cause_must_hold_before_it_is_reported_and_then_stays():
    diagnostician = Diagnostician()
    causes = []
    for t in range(60):
        made = inputs(**BLOCKED) if t >= 30 else inputs()
        causes.append(diagnostician.diagnose(float(t), made).cause)
    assert causes[29] is Cause.HEALTHY
    assert causes.index(Cause.KV_CACHE_PRESSURE) == 30 + THRESHOLDS.verdict.cause_hold_seconds


@pytest.fixture(scope="module")
def each() -> dict[str, Inputs]:
    return {
        "calm": inputs(),
        "blocked": inputs(**BLOCKED),
        "cap": inputs(**QUEUE, at_cap=True, steadiness=1.0),
        "idle": inputs(busy=False, demand=0.0),
    }


@given(states=st.lists(st.sampled_from(["calm", "blocked", "cap", "idle"]), min_size=60, max_size=300))
def test_causes_never_flap_faster_than_the_dwell_time_allows(each, states):
    made = each
    diagnostician = Diagnostician()
    changes, last = [], None
    for t, state in enumerate(states):
        cause = diagnostician.diagnose(float(t), made[state]).cause
        if last is not None and cause is not last:
            changes.append(t)
        last = cause
    assert all(b - a >= THRESHOLDS.verdict.cause_dwell_seconds for a, b in itertools.pairwise(changes))


def test_a_vanished_page_is_unknown_at_once_and_exactly_one_cause_is_ever_one():
    diagnostician = Diagnostician()
    for t, made in enumerate((inputs(), polls_with({"polls": 0}), inputs(**BLOCKED))):
        diagnosis = diagnostician.diagnose(float(t), made)
        bottleneck = diagnosis_families(diagnosis)["bottleneck"]
        assert sorted(bottleneck.values())[-2:] == [0.0, 1.0]  # type: ignore[union-attr]
        assert sum(bottleneck.values()) == 1.0  # type: ignore[union-attr]
    assert diagnosis.cause is Cause.KV_CACHE_PRESSURE


# The whole way, from pages


def causes_of(name: str, *, keep=lambda index: True, change=lambda page, index: page) -> list[tuple[str, Cause]]:
    pipeline, reader = Pipeline(PipelineSettings(), THRESHOLDS), PageReader()
    causes = []
    for index, line in enumerate(lines(name)):
        if keep(index):
            page = change(reader.read(line.page, line.t), index)
            causes += [(line.label, view.diagnosis.cause) for view in pipeline.on_page(FakeTarget(), page)]
    return causes


STEADY = {
    "idle": Cause.IDLE,
    "light-load": Cause.HEALTHY,
    "full-batch": Cause.HEALTHY,
    "sequence-cap-queue": Cause.CONCURRENCY_BOUND,
    "preemption-thrash": Cause.KV_CACHE_PRESSURE,
    "long-context-collapse": Cause.KV_CACHE_PRESSURE,
    "v0.12-preemption": Cause.KV_CACHE_PRESSURE,
}


@pytest.mark.parametrize(("name", "expected"), STEADY.items())
def test_every_steady_recording_gets_its_cause_after_a_few_polls(name, expected):
    causes = [cause for _, cause in causes_of(name)]
    assert set(causes[8:]) == {expected}
    assert set(causes[:7]) <= {Cause.UNKNOWN, expected}


@pytest.mark.parametrize("name", STEADY)
@pytest.mark.parametrize("seed", range(3))
def test_losing_a_fifth_of_the_polls_changes_no_verdict(name, seed):
    rng = random.Random(seed)
    causes = [cause for _, cause in causes_of(name, keep=lambda index: rng.random() > 0.2)]
    assert set(causes[12:]) <= {STEADY[name]}


def shifted(page: EnginePage, by: float) -> EnginePage:
    engines = tuple(
        EngineSample(
            e.model_name, e.engine, e.gauges, {k: v + by for k, v in e.counters.items()}, e.histograms, e.cache
        )
        for e in page.engines
    )
    return dataclasses.replace(page, engines=engines)


def since(page: EnginePage, before: EnginePage) -> EnginePage:
    """What a server would show that started when `before` was read."""
    counted = {e.engine: e.counters for e in before.engines}
    engines = tuple(
        dataclasses.replace(e, counters={k: v - counted[e.engine].get(k, 0.0) for k, v in e.counters.items()})
        for e in page.engines
    )
    return dataclasses.replace(page, engines=engines)


@pytest.mark.parametrize("name", STEADY)
def test_counters_that_started_long_ago_change_no_verdict(name):
    assert causes_of(name, change=lambda page, _: shifted(page, 1e9)) == causes_of(name)


@pytest.mark.parametrize("name", STEADY)
def test_a_server_restart_in_the_middle_changes_no_verdict_wrongly(name):
    last = PageReader().read(lines(name)[14].page, 0.0)

    def restart(page: EnginePage, index: int) -> EnginePage:
        if index < 15:
            return page
        return dataclasses.replace(since(page, last), started=(page.started or 0) + 1000)

    causes = [cause for _, cause in causes_of(name, change=restart)]
    assert set(causes[8:]) <= {STEADY[name]}


@pytest.mark.parametrize("cause_name", ["kv_cache_pressure", "concurrency_bound", "host_bound", "stuck"])
def test_a_simulated_episode_is_reported_within_half_a_minute_and_ends_within_one(cause_name):
    pipeline, reader = Pipeline(PipelineSettings(), THRESHOLDS), PageReader()
    wrong = 0
    began, label = 0.0, ""
    for frame in frames(SimulatedServer(episode(cause_name, 3), 3)):
        if frame["label"] != label:
            began, label = frame["t"], frame["label"]
        for view in pipeline.on_page(FakeTarget(), reader.read(frame["page"].encode(), frame["t"])):
            wrong += frame["t"] - began > 45 and view.diagnosis.cause.value != label
    assert wrong <= 5

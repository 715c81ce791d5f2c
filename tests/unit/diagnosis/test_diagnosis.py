from __future__ import annotations

import dataclasses
import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.simulator.scenarios import episode
from bench.simulator.trace import frames
from kvpressure.diagnosis import score as scoring
from kvpressure.diagnosis.diagnose import Diagnostician
from kvpressure.diagnosis.facts import Inputs
from kvpressure.diagnosis.symptoms import NAMES, judge_all
from kvpressure.engine_state import Pipeline, PipelineSettings
from kvpressure.engines.reader import PageReader
from kvpressure.engines.recordings import TraceLine, read_trace
from kvpressure.exposition.families import diagnosis_families
from kvpressure.model.samples import EnginePage, EngineSample
from kvpressure.model.verdict import Cause, Stage
from kvpressure.signals.evidence import OutsideEvidence
from kvpressure.signals.latency import TimeOutsideEngine
from kvpressure.signals.waiting import Deferral
from tests.support.engines import THRESHOLDS
from tests.support.snapshots import FakeTarget, lines
from tests.support.tools import FIXTURES
from tests.support.verdicts import made as polls_with
from tests.support.verdicts import rule

pytestmark = pytest.mark.recorded

CALM = {
    "demand": 10.0,
    "waiting": 0.0,
    "waiting_ratio": 0.0,
    "kv_usage_ratio": 0.4,
    "blocked_ratio": 0.0,
    "blocked_by_long_ratio": 0.0,
    "burst_count": 0,
    "request_ratio": 0.0,
    "busy": True,
}
QUEUE = {"demand": 30.0, "waiting": 20.0, "waiting_ratio": 1.0}
FIT_UNKNOWN = {"blocked_ratio": None, "blocked_by_long_ratio": None, "request_ratio": None}
BLOCKED = QUEUE | {"blocked_ratio": 0.9, "blocked_by_long_ratio": 0.9}


def inputs(derived=None, **recent) -> Inputs:
    return polls_with(CALM | recent, derived)


def cause(made: Inputs, current: Cause = Cause.HEALTHY) -> Cause:
    return rule(made, current).cause


def with_gpu(utilization: float, **recent) -> Inputs:
    derived = {"engine_gpu_utilization_ratio": utilization, "engine_gpu_memory_used_ratio": 0.93}
    return inputs(derived, gpu_utilization_ratio=utilization, **recent)


# Causes


def test_a_churning_batch_of_two_is_told_within_half_a_minute_of_a_cold_start():
    """A real vLLM: polls fall in step with it, and half of them see the room that a request has just left."""
    polls = [
        line for line in read_trace(FIXTURES / "cold" / "churning-collapse.jsonl.xz") if isinstance(line, TraceLine)
    ]
    for first in range(0, len(polls) - 30, 5):
        pipeline, reader = Pipeline(PipelineSettings(), THRESHOLDS), PageReader()
        for poll in polls[first : first + 30]:
            pipeline.on_page(FakeTarget(gpus=()), reader.read(poll.page, poll.t))
        (view,) = pipeline.engine_views(poll.t)
        assert view.diagnosis is not None
        assert view.diagnosis.cause is Cause.KV_CACHE_PRESSURE


def test_demand_without_any_obstacle_is_healthy():
    assert cause(inputs()) is Cause.HEALTHY


def test_no_demand_and_no_tokens_is_idle():
    assert cause(inputs(busy=False, demand=0.0, generated_tokens=0.0)) is Cause.IDLE


def test_waiting_with_nothing_running_and_no_token_is_stuck():
    assert cause(inputs(**QUEUE, still_seconds=15.0)) is Cause.STUCK
    assert cause(inputs(**QUEUE, still_seconds=5.0)) is not Cause.STUCK


@pytest.mark.parametrize("recent", [{"polls": 3, "seconds": 2.0}, {"demand": None}])
def test_what_cannot_be_judged_is_unknown(recent):
    assert cause(inputs(**recent)) is Cause.UNKNOWN
    assert cause(polls_with({"busy": None})) is Cause.UNKNOWN


def test_a_few_polls_over_a_whole_verdict_window_are_enough_for_slow_polling():
    assert cause(inputs(polls=5, seconds=40.0)) is Cause.HEALTHY


@pytest.mark.parametrize(
    "recent",
    [
        BLOCKED,
        QUEUE | {"burst_count": 3, "request_ratio": 0.2, "kv_usage_ratio": 0.6},
        QUEUE | {"kv_usage_ratio": 0.95},
        QUEUE | {"kv_usage_ratio": 0.95, "at_cap": True} | FIT_UNKNOWN,
    ],
    ids=["blocked", "preempting", "saturated", "saturated, fit test unknown"],
)
def test_each_way_in_which_kv_stops_demand_is_kv_pressure(recent):
    assert cause(inputs(**recent)) is Cause.KV_CACHE_PRESSURE


@pytest.mark.parametrize(
    "recent",
    [
        {"kv_usage_ratio": 0.99},
        QUEUE | {"kv_usage_ratio": 0.95, "at_cap": True},
        QUEUE | {"kv_usage_ratio": 0.7, "blocked_by_long_ratio": 0.8, "at_cap": True},
        {"burst_count": 1, "request_ratio": 0.1, "kv_usage_ratio": 0.6},
        QUEUE | {"kv_usage_ratio": 0.5},
    ],
    ids=[
        "full, nobody waits",
        "full at a cap, prompts fit",
        "long prompts at a cap",
        "one preemption",
        "queue, prompts fit",
    ],
)
def test_what_only_looks_like_kv_pressure_is_not(recent):
    assert cause(inputs(**recent)) is not Cause.KV_CACHE_PRESSURE


def test_a_queue_from_which_nothing_starts_is_kv_pressure_and_says_so():
    starved = inputs(**QUEUE, kv_usage_ratio=0.8, blocked_ratio=1.0, starved=True)
    assert cause(starved) is Cause.KV_CACHE_PRESSURE
    assert "none started" in judge_all(starved)["admission_blocked"].text


def test_a_queue_at_a_steady_batch_that_fits_is_the_sequence_cap():
    # Without the cap nobody could tell: the long ones among the prompts do not fit.
    queue = QUEUE | {"blocked_by_long_ratio": 0.4}
    assert cause(inputs(**queue, at_cap=True)) is Cause.CONCURRENCY_BOUND
    assert cause(inputs(**queue | {"blocked_ratio": 0.4})) is Cause.UNKNOWN


def test_a_busy_gpu_is_compute_bound_only_when_it_costs_something():
    assert cause(with_gpu(0.97)) is Cause.HEALTHY
    assert cause(with_gpu(0.97, slowdown_factor=3.0)) is Cause.COMPUTE_BOUND
    assert cause(with_gpu(0.97, **QUEUE)) is Cause.COMPUTE_BOUND


def test_without_gpu_data_fuller_and_slower_steps_are_compute_bound():
    made = dataclasses.replace(inputs(slowdown_factor=3.0, step_tokens=400.0), step_tokens_baseline=100.0)
    assert cause(made) is Cause.COMPUTE_BOUND
    assert cause(dataclasses.replace(made, step_tokens_baseline=390.0)) is Cause.HEALTHY


def test_time_lost_outside_the_engine_is_host_bound_whatever_the_gpu_claims():
    slow = {"outside": TimeOutsideEngine(5.0, 0.95, whole=True)}
    assert cause(inputs(**slow)) is Cause.HOST_BOUND
    assert cause(with_gpu(1.0, **slow)) is Cause.HOST_BOUND


def test_short_cpus_are_the_cause_only_where_the_engine_waits_for_them():
    short = {"cpu_pressed": OutsideEvidence(True, "tasks waiting for a CPU: 60%")}

    def pressed(made: Inputs) -> Cause:
        return cause(dataclasses.replace(made, external_evidence=short))

    assert pressed(with_gpu(0.2, demand=4.0)) is Cause.HOST_BOUND
    assert pressed(with_gpu(0.2, demand=0.3)) is Cause.HEALTHY  # one request now and then leaves any GPU idle
    assert pressed(with_gpu(0.9, demand=4.0)) is not Cause.HOST_BOUND
    assert pressed(inputs(demand=4.0)) is Cause.HEALTHY
    assert pressed(inputs(demand=4.0, slowdown_factor=3.0)) is Cause.HOST_BOUND
    after_an_incident = {"latency_inflation_factor": {"e2e": 3.0}}  # its requests are still in the window
    assert pressed(inputs(after_an_incident, demand=4.0)) is Cause.HEALTHY


def test_gpu_data_alone_never_yields_kv_pressure():
    for utilization in (0.0, 0.3, 1.0):
        assert cause(with_gpu(utilization)) is not Cause.KV_CACHE_PRESSURE


def test_misleadingly_high_utilization_does_not_hide_kv_pressure():
    assert cause(with_gpu(1.0, **BLOCKED)) is Cause.KV_CACHE_PRESSURE


def test_kv_pressure_that_was_told_outlasts_a_pool_that_empties_in_jumps():
    dip = inputs(**QUEUE | {"blocked_ratio": 0.3, "blocked_by_long_ratio": 0.3})
    assert cause(dip, Cause.KV_CACHE_PRESSURE) is Cause.KV_CACHE_PRESSURE
    assert cause(dip, Cause.HEALTHY) is Cause.UNKNOWN
    assert cause(inputs(), Cause.KV_CACHE_PRESSURE) is Cause.HEALTHY


# Symptoms


def test_every_symptom_is_always_judged_in_the_fixed_order():
    assert tuple(judge_all(inputs())) == NAMES
    assert len(set(NAMES)) == 15


def test_without_gpu_pods_and_logs_their_symptoms_are_unknown_not_false():
    found = judge_all(inputs())
    unknown = {name for name, evidence in found.items() if evidence.state is None}
    assert {"gpu_memory_high", "gpu_compute_low", "memory_rising", "host_oom", "device_oom", "cpu_pressed"} <= unknown
    families = diagnosis_families(Diagnostician().diagnose(0.0, inputs()))
    assert not unknown & set(families["symptom"])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("batch", "demand", "healthy", "expected"),
    [
        (2.3, 12.0, None, True),
        (2.3, 12.0, 20.0, True),
        (2.0, 2.0, 20.0, False),
        (5.0, 30.0, 20.0, True),
        (5.0, 30.0, None, None),
        (25.0, 30.0, 20.0, False),
        (14.0, 30.0, 10.0, False),
    ],
)
def test_a_batch_has_collapsed_when_demand_exceeds_it_and_it_is_tiny_or_half_of_what_is_normal(
    batch, demand, healthy, expected
):
    waiting = max(0.0, demand - batch)
    made = inputs(
        {"effective_batch_size_quantile": {"0.95": batch}},
        demand=demand,
        waiting=waiting,
        waiting_ratio=float(waiting > 0),
    )
    made = dataclasses.replace(made, batch_baseline=healthy)
    assert judge_all(made)["batch_collapse"].state is expected


def test_every_evidence_says_in_words_what_was_seen():
    for evidence in judge_all(with_gpu(0.2, **BLOCKED)).values():
        assert len(evidence.text) > 5
        assert (evidence.value is None) or (evidence.threshold is not None)


def test_device_oom_comes_from_a_log_and_makes_kv_pressure_failing():
    made = dataclasses.replace(
        inputs(**BLOCKED), external_evidence={"device_oom": OutsideEvidence(True, "torch.OutOfMemoryError")}
    )
    diagnosis = Diagnostician().diagnose(0.0, made)
    assert diagnosis.symptoms["device_oom"].state is True
    assert diagnosis.stage is Stage.FAILING


# Score, confidence, stage


def test_the_score_is_zero_when_calm_high_when_blocked_and_absent_when_nothing_is_known():
    assert scoring.score(inputs()) == 0.0
    assert scoring.score(inputs(**BLOCKED)) > 0.75
    nothing = dict.fromkeys(("demand", "waiting_ratio", "kv_usage_ratio", "blocked_ratio", "request_ratio"))
    for bursts in (0, 1):
        assert scoring.score(polls_with(nothing | {"burst_count": bursts})) is None


def test_a_queue_at_the_sequence_cap_scores_low():
    assert scoring.score(inputs({"latency_inflation_factor": {"e2e": 10.0}}, **QUEUE, at_cap=True)) < 0.05


EVIDENCE = {
    "blocked_ratio": (0.0, 0.3),
    "request_ratio": (0.02, 1.0),
    "kv_usage_ratio": (0.55, 0.95),
    "waiting_ratio": (0.3, 1.0),
}
"""Between which values polls can show them beside each other: requests that do not fit wait."""


@settings(deadline=None)
@given(
    values=st.fixed_dictionaries({name: st.floats(*ends) for name, ends in EVIDENCE.items()}),
    grown=st.sampled_from([*EVIDENCE]),
    by=st.floats(0, 1),
)
def test_the_score_is_monotone_in_each_piece_of_evidence(values, grown, by):
    more = values | {grown: min(EVIDENCE[grown][1], values[grown] + by)}
    low, high = (
        inputs(demand=10.0, waiting=5.0, burst_count=2, **one | {"blocked_by_long_ratio": one["blocked_ratio"]})
        for one in (values, more)
    )
    assert 0 <= scoring.score(low) <= scoring.score(high) + 1e-9 <= 1 + 1e-9


@settings(deadline=None)
@given(blocked=st.floats(0, 1), inflation=st.floats(0, 10), gpu=st.floats(0, 1), waiting=st.floats(0.1, 1))
def test_the_score_is_monotone_in_inflation_unserved_demand_and_the_gpu_score(blocked, inflation, gpu, waiting):
    def score(extra: float) -> float:
        derived = {
            "latency_inflation_factor": {"e2e": inflation + extra},
            "memory_high_compute_low_score": min(1, gpu + extra),
        }
        queue = {"demand": 10.0, "waiting": 10 * min(1, waiting + extra), "waiting_ratio": 1.0}
        return scoring.score(inputs(derived, **queue, blocked_ratio=blocked, blocked_by_long_ratio=blocked))

    assert score(0.0) <= score(0.3) <= 1


def test_without_gpu_data_the_same_verdict_is_less_sure():
    derived = {
        "engine_gpu_utilization_ratio": 0.2,
        "engine_gpu_memory_used_ratio": 0.93,
        "effective_batch_size_quantile": {"0.95": 2.0},
        "throughput_plateau": 1.0,
        "latency_inflation_factor": {"e2e": 8.0},
    }
    with_gpus = Diagnostician().diagnose(0.0, inputs(derived, **BLOCKED))
    engine_only = {k: v for k, v in derived.items() if "gpu" not in k}
    without = Diagnostician().diagnose(0.0, inputs(engine_only, **BLOCKED))
    assert with_gpus.cause is without.cause is Cause.KV_CACHE_PRESSURE
    assert with_gpus.confidence == 1.0
    assert 0.5 < without.confidence < 1.0


def test_growth_that_will_fill_the_pool_is_building_and_blocked_without_cost_is_too():
    growth = {"kv_exhaustion_seconds": 120.0}
    growing = Diagnostician().diagnose(0.0, inputs(growth | {"kv_cache_usage_ratio": 0.7}))
    assert (growing.cause, growing.stage) == (Cause.HEALTHY, Stage.BUILDING)
    begun = Diagnostician().diagnose(0.0, inputs(growth | {"kv_cache_usage_ratio": 0.2}))
    assert begun.stage is Stage.NONE  # traffic has only begun, and a straight line through that predicts nothing
    assert Diagnostician().diagnose(0.0, inputs({"throughput_plateau": 0.0}, **BLOCKED)).stage is Stage.BUILDING
    collapsed = inputs({"effective_batch_size_quantile": {"0.95": 2.0}}, **BLOCKED)
    assert Diagnostician().diagnose(0.0, collapsed).stage is Stage.COLLAPSED


# Hysteresis


def test_a_cause_must_hold_before_it_is_told_and_then_stays():
    diagnostician = Diagnostician()
    told = []
    for t in range(60):
        made = inputs(**BLOCKED) if t >= 30 else inputs()
        told.append(diagnostician.diagnose(float(t), made).cause)
    assert told[29] is Cause.HEALTHY
    assert told.index(Cause.KV_CACHE_PRESSURE) == 30 + THRESHOLDS.cause_hold_seconds


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
        told = diagnostician.diagnose(float(t), made[state]).cause
        if last is not None and told is not last:
            changes.append(t)
        last = told
    assert all(b - a >= THRESHOLDS.cause_dwell_seconds for a, b in itertools.pairwise(changes))


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
    told = []
    for index, line in enumerate(lines(name)):
        if keep(index):
            page = change(reader.read(line.page, line.t), index)
            told += [(line.label, view.diagnosis.cause) for view in pipeline.on_page(FakeTarget(), page)]
    return told


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
    told = [cause for _, cause in causes_of(name)]
    assert set(told[8:]) == {expected}
    assert set(told[:7]) <= {Cause.UNKNOWN, expected}


@pytest.mark.parametrize("name", STEADY)
@pytest.mark.parametrize("seed", range(3))
def test_losing_a_fifth_of_the_polls_changes_no_verdict(name, seed):
    rng = random.Random(seed)
    told = [cause for _, cause in causes_of(name, keep=lambda index: rng.random() > 0.2)]
    assert set(told[12:]) <= {STEADY[name]}


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

    told = [cause for _, cause in causes_of(name, change=restart)]
    assert set(told[8:]) <= {STEADY[name]}


@pytest.mark.parametrize("cause_name", ["kv_cache_pressure", "concurrency_bound", "host_bound", "stuck"])
def test_a_simulated_episode_is_told_within_half_a_minute_and_ends_within_one(cause_name):
    pipeline, reader = Pipeline(PipelineSettings(), THRESHOLDS), PageReader()
    wrong = 0
    began, label = 0.0, ""
    for frame in frames(episode(cause_name, 3), 3):
        if frame["label"] != label:
            began, label = frame["t"], frame["label"]
        for view in pipeline.on_page(FakeTarget(), reader.read(frame["page"].encode(), frame["t"])):
            wrong += frame["t"] - began > 45 and view.diagnosis.cause.value != label
    assert wrong <= 5


HELD = {
    "demand": 8.0,
    "waiting": 8.0,
    "waiting_ratio": 1.0,
    "generated_tokens": 0.0,
    "kv_usage_ratio": 0.1,
    "deferred_ratio": 1.0,
}
HELD |= {"all_deferred_ratio": 1.0, "unchanged": True, "steadiness": None}


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({}, Cause.IDLE),
        ({"fetching_ratio": 0.0, "deferral": Deferral(connector=True)}, Cause.IDLE),
        ({"fetching_ratio": 1.0}, Cause.DEFERRED),
        ({"deferral": Deferral(connector=True)}, Cause.DEFERRED),
    ],
    ids=["streams", "nothing is fetched", "all fetch", "they may fetch"],
)
def test_requests_that_are_held_are_idle_streams_only_where_they_fetch_nothing(told, expected):
    assert cause(inputs(**HELD | told)) is expected


FITS = {"blocked_ratio": 0.0, "blocked_by_long_ratio": 0.0, "blocked_by_longest_ratio": 0.0, "slowdown_factor": 1.0}


@pytest.mark.parametrize(
    ("recent", "expected"),
    [
        ({"steadiness": 0.5}, Cause.COMPUTE_BOUND),
        ({"steadiness": 1.0}, Cause.CONCURRENCY_BOUND),
        ({"steadiness": 1.0, "slowdown_factor": 2.5}, Cause.COMPUTE_BOUND),
        ({"steadiness": 0.5, "slowdown_factor": 2.5, "in_window": True}, Cause.KV_CACHE_PRESSURE),
        ({"steadiness": 0.5, "slowdown_factor": 2.5, "blocked_by_longest_ratio": 0.8}, Cause.KV_CACHE_PRESSURE),
    ],
)
def test_a_busy_gpu_does_not_outweigh_what_holds_the_queue(recent, expected):
    assert cause(with_gpu(0.95, **(QUEUE | FITS | recent))) is expected


@pytest.mark.parametrize(("free", "expected"), [(2900.0, Cause.KV_CACHE_PRESSURE), (3100.0, Cause.CONCURRENCY_BOUND)])
def test_who_was_preempted_does_not_wait_for_room_where_there_is_plenty(free, expected):
    """A minute ago, before the server was started anew."""
    lengths = {"prompt_tokens": {"0.95": 800.0}, "output_tokens": {"0.95": 200.0}}
    told = QUEUE | FITS | {"in_window": True, "in_long_window": True, "kv_usage_ratio": 0.3}
    assert cause(inputs({"kv_free_tokens": free, **lengths}, **told)) is expected
    assert cause(inputs({"kv_free_tokens": free}, **told)) is Cause.KV_CACHE_PRESSURE
    assert (
        cause(inputs({"kv_free_tokens": 1e6, **lengths}, **told | {"kv_usage_ratio": 0.5})) is Cause.KV_CACHE_PRESSURE
    )


ASKED = {"reasons_known": False, "blocked_ratio": 0.0, "blocked_by_long_ratio": 0.0, "blocked_by_longest_ratio": 0.0}
NOTHING_FITS = {"blocked_ratio": 0.9, "blocked_by_long_ratio": 0.9, "blocked_by_longest_ratio": 0.9}
CROWDED = Deferral(slots=1.0, adapters_oversubscribed=True, slots_taken=True)


@pytest.mark.parametrize(
    ("recent", "expected"),
    [
        ({"deferral": CROWDED}, Cause.DEFERRED),
        ({"deferral": CROWDED, "waiting_ratio": 0.8}, Cause.DEFERRED),
        ({"deferral": Deferral(connector=True, brought_ratio=0.7)}, Cause.DEFERRED),
        ({"deferral": Deferral(connector=True, brought_ratio=0.2)}, Cause.UNKNOWN),
        ({"deferral": Deferral(slots=1.0, adapters_oversubscribed=False, slots_taken=True)}, Cause.UNKNOWN),
        ({"waited_steps": 400.0, "prefilling": 0.02}, Cause.DEFERRED),
        ({"waited_steps": 400.0, "prefilling": 1.3}, Cause.UNKNOWN),
        ({"waited_steps": 400.0, "prefilling": None}, Cause.UNKNOWN),
        ({"waited_steps": 8.0, "prefilling": 0.02}, Cause.UNKNOWN),
        ({"waited_steps": 400.0, "prefilling": 0.02, "waiting_ratio": 0.8}, Cause.UNKNOWN),
        ({"waited_steps": 400.0, "prefilling": 0.02, "blocked_by_longest_ratio": 0.3}, Cause.UNKNOWN),
        ({"waited_steps": 400.0, "prefilling": 0.02, "reasons_known": True}, Cause.CONCURRENCY_BOUND),
        ({"deferral": CROWDED, "blocked_by_longest_ratio": 0.3}, Cause.UNKNOWN),
        ({"deferral": CROWDED, "in_long_window": True}, Cause.UNKNOWN),
        ({"deferral": CROWDED, "at_cap": True}, Cause.CONCURRENCY_BOUND),
        ({"deferral": CROWDED} | NOTHING_FITS, Cause.KV_CACHE_PRESSURE),
        ({}, Cause.UNKNOWN),
    ],
)
def test_where_no_page_says_what_requests_wait_for_it_is_what_there_is_to_wait_for(recent, expected):
    made = inputs({"kv_capacity_tokens": 50_000.0}, **(QUEUE | ASKED | recent))
    assert cause(made) is expected


def test_a_stall_of_what_brings_kv_is_not_a_hang_while_it_still_brought_something():
    still = QUEUE | ASKED | {"still_seconds": 60.0, "generated_tokens": 0.0}
    stalled = inputs(deferral=Deferral(connector=True, brought_ratio=1.0), **still)
    assert cause(stalled) is Cause.DEFERRED
    assert cause(inputs(deferral=Deferral(connector=True), **still)) is Cause.STUCK


@pytest.mark.parametrize(
    ("deferred_ratio", "expected"), [(0.1, Cause.KV_CACHE_PRESSURE), (0.9, Cause.DEFERRED), (None, Cause.DEFERRED)]
)
def test_requests_that_fetch_are_deferred_where_the_engine_says_so(deferred_ratio, expected):
    assert cause(inputs(**BLOCKED, fetching_ratio=0.9, deferred_ratio=deferred_ratio)) is expected


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"step_tokens": 3000.0, "prefill_ratio": 1.0, "prefilling": 2.8}, Cause.COMPUTE_BOUND),
        ({"step_tokens": 3000.0, "prefill_ratio": 1.0, "prefilling": 0.3}, Cause.HEALTHY),
        ({"step_tokens": 3000.0, "prefill_ratio": 1.0}, Cause.HEALTHY),
        ({"step_tokens": 80.0, "prefill_ratio": 0.9, "prefilling": 2.8}, Cause.HEALTHY),
        ({"step_tokens": 3000.0, "prefill_ratio": 0.4, "prefilling": 2.8}, Cause.HEALTHY),
    ],
)
def test_a_pod_that_prefills_without_a_pause_is_at_its_limit_though_no_poll_sees_a_request(told, expected):
    assert cause(inputs(demand=0.0, **told)) is expected


def test_an_estimate_of_the_work_is_told_and_judges_nothing():
    work = {"estimated_flops_per_second": 4.2e13, "estimated_memory_bytes_per_second": 1.9e12}
    told, plain = (judge_all(inputs(derived, **QUEUE)) for derived in (work, {}))
    assert "42 TFLOP/s and moves 1,900 GB/s" in told["gpu_compute_low"].text
    assert {name: one.state for name, one in told.items()} == {name: one.state for name, one in plain.items()}
    assert cause(inputs(work, **QUEUE)) is cause(inputs({}, **QUEUE))

import dataclasses
import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.simulator.scenarios import episode
from bench.simulator.service import SimulatedServer, frames
from kvpressure.diagnosis.diagnose import Diagnostician
from kvpressure.diagnosis.facts import Inputs
from kvpressure.diagnosis.symptoms import judge_all
from kvpressure.engine_state import Pipeline, PipelineSettings
from kvpressure.engines.reader import PageReader
from kvpressure.engines.recordings import TraceLine, read_trace
from kvpressure.exposition.families import diagnosis_families
from kvpressure.model.samples import EnginePage, EngineSample
from kvpressure.model.verdict import Cause
from kvpressure.signals.evidence import OutsideEvidence
from kvpressure.signals.latency import TimeOutsideEngine
from kvpressure.signals.waiting import Deferral
from tests.support.calm import BLOCKED, FIT_UNKNOWN, QUEUE, cause, inputs, with_gpu
from tests.support.engines import THRESHOLDS
from tests.support.snapshots import FakeTarget, lines
from tests.support.tools import FIXTURES
from tests.support.verdicts import made as polls_with

pytestmark = pytest.mark.recorded


def test_a_churning_batch_of_two_is_reported_within_half_a_minute_of_a_cold_start():
    """A real vLLM: polls fall in step with it, and half of them see the room that a request has just left."""
    polls = [
        line for line in read_trace(FIXTURES / "cold" / "churning-collapse.jsonl.xz") if isinstance(line, TraceLine)
    ]
    for first in range(0, len(polls) - 30, 5):
        pipeline, reader = Pipeline(PipelineSettings(), THRESHOLDS), PageReader()
        for poll in polls[first : first + 30]:
            pipeline.on_page(FakeTarget(gpus=()), reader.read(poll.page, poll.t))
        (view,) = pipeline.engine_views(poll.t)
        assert view.diagnosis.cause is Cause.KV_CACHE_PRESSURE


STREAMS = {"demand": 8.0, "waiting": 8.0, "waiting_ratio": 1.0, "generated_tokens": 0.0, "kv_usage_ratio": 0.1}
STREAMS |= {"deferred_ratio": 1.0, "all_deferred_ratio": 1.0, "unchanged": True, "steadiness": None}
FETCHES = {"deferral": Deferral(connector=True)}
FETCHING = BLOCKED | {"fetching_ratio": 0.9}
HELD_UP = {"prefill_ratio": 0.99, "held_up_ratio": 0.6}
SITUATIONS = {
    "demand without any obstacle": ({}, Cause.HEALTHY),
    "no demand and no tokens": ({"busy": False, "demand": 0.0, "generated_tokens": 0.0}, Cause.IDLE),
    "requests wait, nothing runs, no token": (QUEUE | {"still_seconds": 15.0}, Cause.STUCK),
    "too few polls": ({"polls": 3, "seconds": 2.0}, Cause.UNKNOWN),
    "no gauges": ({"demand": None}, Cause.UNKNOWN),
    "a few polls over a whole window, at slow polling": ({"polls": 5, "seconds": 40.0}, Cause.HEALTHY),
    "blocked": (BLOCKED, Cause.KV_CACHE_PRESSURE),
    "preempting": (QUEUE | {"burst_count": 3, "request_ratio": 0.2, "kv_usage_ratio": 0.6}, Cause.KV_CACHE_PRESSURE),
    "saturated": (QUEUE | {"kv_usage_ratio": 0.95}, Cause.KV_CACHE_PRESSURE),
    "saturated, fit test unknown": (QUEUE | {"kv_usage_ratio": 0.95} | FIT_UNKNOWN, Cause.KV_CACHE_PRESSURE),
    "some prompts fit, others do not": (QUEUE | {"blocked_ratio": 0.4, "blocked_by_long_ratio": 0.4}, Cause.UNKNOWN),
    "the same at a steady batch": (QUEUE | {"blocked_by_long_ratio": 0.4, "at_cap": True}, Cause.CONCURRENCY_BOUND),
    "prompts hold up decoding": (HELD_UP | {"demand": 3.0}, Cause.COMPUTE_BOUND),
    "prompts hold up decoding in an engine that is often empty": (HELD_UP | {"demand": 0.4}, Cause.HEALTHY),
    "waiting streams": (STREAMS, Cause.IDLE),
    "waiting streams, nothing is fetched": (STREAMS | FETCHES | {"fetching_ratio": 0.0}, Cause.IDLE),
    "all that wait fetch": (STREAMS | {"fetching_ratio": 1.0}, Cause.DEFERRED),
    "all that wait may fetch": (STREAMS | FETCHES, Cause.DEFERRED),
    "those that fetch do not hold up the others": (FETCHING | {"deferred_ratio": 0.1}, Cause.KV_CACHE_PRESSURE),
    "those that fetch are nearly all": (FETCHING | {"deferred_ratio": 0.9}, Cause.DEFERRED),
    "those that fetch are nobody knows how many": (FETCHING | {"deferred_ratio": None}, Cause.DEFERRED),
}


@pytest.mark.parametrize(("recent", "expected"), SITUATIONS.values(), ids=SITUATIONS)
def test_a_situation_has_its_cause(recent, expected):
    assert cause(inputs(**recent)) is expected


def test_a_queue_that_stands_for_a_few_seconds_is_not_stuck_and_without_a_gauge_of_work_nothing_is_known():
    assert cause(inputs(**QUEUE, still_seconds=5.0)) is not Cause.STUCK
    assert cause(polls_with({"busy": None})) is Cause.UNKNOWN


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


def test_a_busy_gpu_is_compute_bound_only_when_it_costs_something():
    assert cause(with_gpu(0.97)) is Cause.HEALTHY
    assert cause(with_gpu(0.97, slowdown_factor=3.0)) is Cause.COMPUTE_BOUND
    assert cause(with_gpu(0.97, **QUEUE)) is Cause.COMPUTE_BOUND


def test_without_gpu_data_fuller_and_slower_steps_are_compute_bound():
    made = dataclasses.replace(inputs(slowdown_factor=3.0, step_tokens=400.0), baseline={"step_tokens": 100.0})
    assert cause(made) is Cause.COMPUTE_BOUND
    assert cause(dataclasses.replace(made, baseline={"step_tokens": 390.0})) is Cause.HEALTHY


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
    after_an_incident = {"latency_inflation_ratio": {"e2e": 3.0}}  # its requests are still in the window
    assert pressed(inputs(after_an_incident, demand=4.0)) is Cause.HEALTHY


def test_gpu_data_alone_never_yields_kv_pressure():
    for utilization in (0.0, 0.3, 1.0):
        assert cause(with_gpu(utilization)) is not Cause.KV_CACHE_PRESSURE


def test_misleadingly_high_utilization_does_not_hide_kv_pressure():
    assert cause(with_gpu(1.0, **BLOCKED)) is Cause.KV_CACHE_PRESSURE


def test_kv_pressure_that_was_named_outlasts_a_pool_that_empties_in_jumps():
    dip = inputs(**QUEUE | {"blocked_ratio": 0.3, "blocked_by_long_ratio": 0.3})
    assert cause(dip, Cause.KV_CACHE_PRESSURE) is Cause.KV_CACHE_PRESSURE
    assert cause(dip, Cause.HEALTHY) is Cause.UNKNOWN
    assert cause(inputs(), Cause.KV_CACHE_PRESSURE) is Cause.HEALTHY


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
    given = QUEUE | FITS | {"in_window": True, "in_long_window": True, "kv_usage_ratio": 0.3}
    assert cause(inputs({"kv_free_tokens": free, **lengths}, **given)) is expected
    assert cause(inputs({"kv_free_tokens": free}, **given)) is Cause.KV_CACHE_PRESSURE
    assert (
        cause(inputs({"kv_free_tokens": 1e6, **lengths}, **given | {"kv_usage_ratio": 0.5})) is Cause.KV_CACHE_PRESSURE
    )


NO_REASONS = {
    "reasons_known": False,
    "blocked_ratio": 0.0,
    "blocked_by_long_ratio": 0.0,
    "blocked_by_longest_ratio": 0.0,
}
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
    made = inputs({"kv_capacity_tokens": 50_000.0}, **(QUEUE | NO_REASONS | recent))
    assert cause(made) is expected


def test_a_stall_of_what_brings_kv_is_not_a_hang_while_it_still_brought_something():
    still = QUEUE | NO_REASONS | {"still_seconds": 60.0, "generated_tokens": 0.0}
    stalled = inputs(deferral=Deferral(connector=True, brought_ratio=1.0), **still)
    assert cause(stalled) is Cause.DEFERRED
    assert cause(inputs(deferral=Deferral(connector=True), **still)) is Cause.STUCK


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"step_tokens": 3000.0, "prefill_ratio": 1.0, "prefilling": 2.8}, Cause.COMPUTE_BOUND),
        ({"step_tokens": 3000.0, "prefill_ratio": 1.0, "prefilling": 0.3}, Cause.HEALTHY),
        ({"step_tokens": 3000.0, "prefill_ratio": 1.0}, Cause.HEALTHY),
        ({"step_tokens": 80.0, "prefill_ratio": 0.9, "prefilling": 2.8}, Cause.HEALTHY),
        ({"step_tokens": 3000.0, "prefill_ratio": 0.4, "prefilling": 2.8}, Cause.HEALTHY),
    ],
)
def test_a_pod_that_prefills_without_a_pause_is_at_its_limit_though_no_poll_sees_a_request(given, expected):
    assert cause(inputs(demand=0.0, **given)) is expected


def test_an_estimate_of_the_work_is_reported_and_judges_nothing():
    work = {"estimated_flops_per_second": 4.2e13, "estimated_memory_bytes_per_second": 1.9e12}
    given, plain = (judge_all(inputs(derived, **QUEUE)) for derived in (work, {}))
    assert "42 TFLOP/s and moves 1,900 GB/s" in given["gpu_compute_low"].text
    assert {name: one.state for name, one in given.items()} == {name: one.state for name, one in plain.items()}
    assert cause(inputs(work, **QUEUE)) is cause(inputs({}, **QUEUE))


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

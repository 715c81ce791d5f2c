"""What containers, logs and the host tell the diagnosis."""

import dataclasses

import pytest

from kvpressure.engine_state import Pipeline, PipelineSettings
from kvpressure.engines.reader import PageReader
from kvpressure.model.environment import (
    LOG_KINDS,
    Assignment,
    ContainerId,
    ContainerState,
    DeclaredLimit,
    Environment,
    EventReport,
    HostReport,
    LogReport,
    Termination,
)
from kvpressure.model.verdict import Cause, Stage
from kvpressure.signals.evidence import Restarts, outside_evidence
from tests.support.engines import THRESHOLDS
from tests.support.snapshots import FakeTarget, gpu_report, lines

pytestmark = pytest.mark.recorded

KEY = ContainerId("chat", "vllm-0", "vllm")
NOW = 10_000.0
RECENT = THRESHOLDS.symptoms.failure_recent_max_seconds


def state(**changes: object) -> ContainerState:
    return dataclasses.replace(ContainerState(KEY, NOW), **changes)  # type: ignore[arg-type]


def around(container: ContainerState | None = None, log: LogReport | None = None, host: HostReport | None = None):
    return Environment(
        containers={} if container is None else {KEY: container},
        logs={} if log is None else {KEY: log},
        host=host,
    )


def states(workload: Environment, restarts: int = 0) -> dict[str, bool]:
    return {name: one.state for name, one in outside_evidence(NOW, KEY, workload, restarts, THRESHOLDS).items()}


def test_nothing_known_tells_nothing():
    assert states(Environment()) == {}
    assert states(around(host=HostReport(NOW))) == {}


@pytest.mark.parametrize(
    ("reason", "code", "ago", "killed"),
    [
        ("OOMKilled", 137, 60.0, True),
        ("OOMKilled", 137, RECENT + 60.0, False),
        ("Error", 137, 60.0, False),
        ("Error", 1, 60.0, False),
        ("Completed", 0, 60.0, False),
    ],
)
def test_only_a_recent_oomkilled_is_host_memory(reason: str, code: int, ago: float, killed: bool):
    found = outside_evidence(NOW, KEY, around(state(termination=Termination(reason, code, NOW - ago))), 0, THRESHOLDS)
    assert found["host_oom"].state is killed
    assert reason in found["host_oom"].text
    assert str(code) in found["host_oom"].text


def test_the_node_and_its_events_are_reported_beside_the_last_end():
    events = EventReport(
        ContainerId("", "", ""), {"SystemOOM": 1, "BackOff": 4}, {"SystemOOM": NOW - 9, "BackOff": NOW}
    )
    workload = dataclasses.replace(around(state()), memory_pressure=True, events={events.id: events})
    text = outside_evidence(NOW, KEY, workload, 0, THRESHOLDS)["host_oom"].text
    assert text == "container's last end: none; the node has MemoryPressure; event SystemOOM"


def test_one_restart_is_a_rollout_and_two_or_a_crash_loop_are_restarting():
    assert states(around(state()), 1)["restarting"] is False
    assert states(around(state()), 2)["restarting"] is True
    assert states(around(state(waiting_reason="CrashLoopBackOff")))["restarting"] is True
    assert states(around(state(waiting_reason="ImagePullBackOff")))["restarting"] is False


def test_restarts_are_counted_from_the_first_look_and_forgotten_with_their_container():
    restarts = Restarts()
    restarts.update(0.0, {KEY: state(restarts=7)})
    assert restarts.lately(KEY) == 0
    restarts.update(60.0, {KEY: state(restarts=9)})
    assert restarts.lately(KEY) == 2
    restarts.update(661.0, {KEY: state(restarts=9)})
    assert restarts.lately(KEY) == 0
    restarts.update(662.0, {KEY: state(restarts=10)})
    restarts.update(663.0, {})
    assert restarts.lately(KEY) == 0


def test_a_pod_made_anew_under_its_name_does_not_answer_for_the_one_before():
    restarts = Restarts()
    for t, uid, count in ((0.0, "u1", 0), (10.0, "u1", 3), (20.0, "u2", 0), (30.0, "u2", 1)):
        restarts.update(t, {KEY: state(pod_uid=uid, restarts=count)})
    assert restarts.lately(KEY) == 1


def test_a_state_that_nobody_has_confirmed_for_long_is_no_evidence():
    looping = state(waiting_reason="CrashLoopBackOff", t=NOW - RECENT)
    assert states(around(looping))["restarting"] is True
    assert states(around(dataclasses.replace(looping, t=NOW - RECENT - 1.0))) == {}


def test_a_log_without_bad_lines_is_evidence_of_none_and_an_old_line_is_history():
    counts = dict.fromkeys(LOG_KINDS, 0)
    quiet = LogReport(KEY, NOW, counts)
    assert states(around(log=quiet)) == {"device_oom": False, "allocation_errors": False}
    killed = dataclasses.replace(quiet, latest={"host_oom": NOW - 60.0})
    assert states(around(log=killed))["host_oom"] is True
    bad = dataclasses.replace(quiet, latest={"device_oom": NOW - 60.0, "kv_exhausted": NOW - RECENT - 1.0})
    assert states(around(log=bad)) == {"device_oom": True, "allocation_errors": False}


@pytest.mark.parametrize(
    ("pressure", "throttled", "pressed"),
    [(0.1, None, False), (0.5, None, True), (None, 0.5, True), (0.1, 0.1, False), (0.1, 0.5, True)],
)
def test_cpus_are_short_where_tasks_wait_or_the_container_is_cut_short(pressure, throttled, pressed):
    host = HostReport(NOW, pressure, {} if throttled is None else {KEY: throttled})
    assert states(around(host=host)) == {"cpu_pressed": pressed}


def play(pipeline: Pipeline, target: FakeTarget, workload: Environment, count: int = 120):
    reader, views = PageReader(), []
    for line in lines("long-context-collapse")[:count]:
        pipeline.set_environment(line.t, workload)
        pipeline.on_gpus("nvml", gpu_report(line.t))
        views = pipeline.on_page(target, reader.read(line.page, line.t))
    return views[-1]


def test_an_out_of_memory_in_the_log_makes_pressure_failing_and_advice_treats_it():
    first = lines("long-context-collapse")[0].t
    log = LogReport(
        KEY,
        first,
        dict.fromkeys(LOG_KINDS, 0) | {"device_oom": 1},
        {"device_oom": first},
        {"device_oom": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB."},
    )
    view = play(Pipeline(PipelineSettings(), THRESHOLDS), FakeTarget(), Environment(logs={KEY: log}))
    assert view.diagnosis.cause is Cause.KV_CACHE_PRESSURE
    assert view.diagnosis.stage is Stage.FAILING
    assert "Tried to allocate" in view.diagnosis.symptoms["device_oom"].text


def test_gpus_of_a_container_are_joined_only_where_it_holds_them_alone():
    def joined(devices: dict[ContainerId, Assignment]) -> object:
        target = FakeTarget(gpus=None)
        view = play(Pipeline(PipelineSettings(), THRESHOLDS), target, Environment(devices=devices), 10)
        return view.derived.get("engine_gpu_info")

    card = gpu_report(0.0).gpus[0].uuid
    assert joined({}) is None
    assert joined({KEY: Assignment((card,))}) == {card: 1.0}
    assert joined({KEY: Assignment((card,), exclusive=False, why="shared")}) is None
    assert joined({KEY: Assignment((card, "GPU-elsewhere"))}) is None


def test_limits_say_what_is_declared_in_force_and_recommended():
    declared = (DeclaredLimit("max_num_seqs", 256.0, "args"), DeclaredLimit("max_model_len", 4096.0, "args"))
    known = play(Pipeline(PipelineSettings(), THRESHOLDS), FakeTarget(limits=declared), Environment()).derived
    assert known["limit_declared"] == {
        "max_input_tokens": 1.0,
        "max_output_tokens": 0.0,
        "max_num_seqs": 1.0,
        "max_num_batched_tokens": 0.0,
        "gpu_memory_utilization": 0.0,
    }
    assert known["limit_value"] == {
        "max_input_tokens": 4096.0,
        "max_num_seqs": 256.0,
        "gpu_memory_utilization": pytest.approx(0.92),
    }
    assert 1.0 <= known["limit_recommended"]["max_num_seqs"] <= 4.0  # two to three of these long requests fit
    unread = play(Pipeline(PipelineSettings(), THRESHOLDS), FakeTarget(), Environment()).derived
    assert "limit_declared" not in unread

"""What `triage` prints and says of a workload of several replicas."""

from dataclasses import replace
from typing import Any

import pytest

from kvpressure.cli.findings import Finding
from kvpressure.cli.fleet import workloads, workloads_json
from kvpressure.cli.report import brief_report
from kvpressure.model.action import Action
from kvpressure.model.target_status import STATUSES, ReplicaState, replica_state
from kvpressure.model.verdict import Cause, Diagnosis, Evidence, Stage
from kvpressure.model.view import EngineKey, EngineView, Unreachable
from tests.support.printed import printed

DO = Action("max_num_seqs", "Set max_num_seqs", "Because.", current="64", new="32")


def replica(number: int, cause: Cause, demand: float, waiting: float = 0.0, **more: Any) -> Finding:
    key = EngineKey(f"chat/llama-70b-instruct-7c9d8b5f6-{'abcdefgh'[number] * 5}:8000", "llama", "0")
    derived: dict[str, Any] = {
        "demand_replicas": {"kv_tokens": demand},
        "requests_running": 100.0,
        "requests_waiting": waiting,
        "queue_drain_seconds": waiting,
        "kv_cache_usage_ratio": min(0.99, demand),
        "kv_capacity_tokens": 1e6,
        "tokens_per_second": {"generation": 12_345.0},
    }
    diagnosis = Diagnosis(0.0, 0.0, cause, 1.0, None, Stage.NONE, {})
    view = EngineView(key, key, 0.0, derived, diagnosis, "chat", key.target.removeprefix("chat/").removesuffix(":8000"))
    return Finding(key.target, view, actions=(DO,), **more)


def silent(finding: Finding) -> Finding:
    assert finding.view is not None
    return replace(finding, view=replace(finding.view, silence=Unreachable(30.0, 5.0)))


def test_eight_replicas_are_a_line_each_in_a_hundred_columns_the_hottest_first() -> None:
    pressed = [replica(at, Cause.KV_CACHE_PRESSURE, 1.1 + at / 10, 30) for at in range(6)]
    calm = [replica(at, Cause.HEALTHY, 0.95) for at in range(6, 8)]
    lines = printed(brief_report([*calm, *pressed], 0.0)).splitlines()
    rows = [line for line in lines if line.startswith("llama-70b-instruct-")]
    assert [row.split()[0][-1] for row in rows] == ["f", "e", "d", "c", "b", "a", "g", "h"]
    assert max(map(len, lines)) <= 100
    assert all(row.split()[-4:-1] == ["100", "30", "99%"] for row in rows[:6])
    verdict = next(line for line in lines if line.startswith("workload: "))
    assert verdict == "workload: KV cache pressure on 6 of 8 replicas; the demand fills 10.0"
    assert any(line.startswith("Do: Set max_num_seqs") for line in lines)


def test_room_at_siblings_comes_before_what_a_hot_replica_alone_would_need() -> None:
    found = [replica(0, Cause.KV_CACHE_PRESSURE, 1.6, 30), replica(1, Cause.HEALTHY, 0.2), replica(2, Cause.IDLE, 0.1)]
    (workload,) = workloads(found)
    assert workload.word == "uneven"
    text = " ".join(printed(brief_report(found, 0.0)).split())
    assert "uneven: 100% of what waits on 1 replica would fit on the 2 of 3 that have room" in text
    assert "Do: Route by load" in text
    assert "max_num_seqs" not in text
    documents: Any = workloads_json(found)["workloads"]
    (document,) = documents
    assert document["verdict"] == "uneven"
    assert document["states"] == {"serves": 2, "waits": 1, "stuck": 0, "unreadable": 0, "gone": 0}
    assert document["first"].startswith("Route by load")
    assert document["replicas"][0] == found[0].target


def test_a_replica_that_serves_nothing_comes_before_all_else() -> None:
    hot, free = replica(0, Cause.KV_CACHE_PRESSURE, 1.6, 30), replica(1, Cause.HEALTHY, 0.2)
    stuck, gone = replica(2, Cause.STUCK, 0.4, 3), silent(replica(3, Cause.HEALTHY, 0.4))
    (workload,) = workloads([hot, free, stuck, gone])
    others = "uneven: 100% of what waits on 1 replica would fit on the 1 of 2 that have room (longer requests)"
    assert (workload.word, workload.text) == ("lost", f"1 gone, 1 stuck of 4 replicas; of the others: {others}")
    assert workload.worst.state in ("gone", "stuck")
    assert {finding.target for finding in workload.replicas[:2]} == {stuck.target, gone.target}
    (calm,) = workloads([free, replica(4, Cause.IDLE, 0.0)])
    assert (calm.word, calm.worst) == ("served", None)


def test_what_is_the_matter_beside_a_verdict_stands_below_the_lines() -> None:
    failing, looping = replica(0, Cause.STUCK, 0.0), replica(1, Cause.HEALTHY, 0.2)
    assert looping.diagnosis is not None
    derived = {**failing.view.derived, "failed_requests_per_second": {"server_error": 2.0}}
    failing = replace(failing, view=replace(failing.view, derived=derived))
    restarts = Evidence("restarting", True, "4 server starts in ten minutes", 4.0, 3.0, "count")
    diagnosis = replace(looping.diagnosis, symptoms={"restarting": restarts})
    looping = replace(looping, view=replace(looping.view, diagnosis=diagnosis))  # type: ignore[type-var]
    lines = printed(brief_report([looping, failing], 0.0)).splitlines()
    assert f"{failing.target}: 2 requests/s answered with an error (5xx)" in lines
    assert f"{looping.target}: 4 server starts in ten minutes" in lines
    assert any(
        line.startswith("workload: 1 stuck of 2 replicas; of the others: all demand is served by 1 replica")
        for line in lines
    )
    assert (failing.exit_code, looping.exit_code) == (1, 0)


def test_workloads_of_several_models_are_apart_and_what_was_never_read_is_of_none() -> None:
    one, two = replica(0, Cause.HEALTHY, 0.2), replica(1, Cause.HEALTHY, 0.2)
    other = replace(two, view=replace(two.view, key=two.view.key._replace(model_name="qwen")))
    unread = Finding("other:8000", problem="connection refused")
    assert [len(found.replicas) for found in workloads([one, other, unread])] == [1, 1, 1]
    (together,) = workloads([one, two, unread])
    assert [finding.state for finding in together.replicas] == ["gone", "serves", "serves"]
    text = printed(brief_report([one, two, unread], 0.0))
    assert "other:8000: connection refused" in text
    assert "Do: See whether the server of other:8000 runs, and its log" in text


@pytest.mark.parametrize(
    ("cause", "waiting", "tokens", "state"),
    [
        (Cause.HEALTHY, 0, 5.0, ReplicaState.SERVES),
        (Cause.IDLE, 0, 0.0, ReplicaState.SERVES),
        (Cause.HOST_BOUND, 0, 5.0, ReplicaState.WAITS),
        (Cause.PAUSED, 0, 0.0, ReplicaState.WAITS),
        (Cause.STUCK, 2, 0.0, ReplicaState.STUCK),
        (Cause.UNKNOWN, 2, 5.0, ReplicaState.WAITS),
        (Cause.UNKNOWN, 0, 5.0, ReplicaState.SERVES),
        (Cause.UNKNOWN, 0, 0.0, None),
    ],
)
def test_what_a_replica_does(cause: Cause, waiting: float, tokens: float, state: ReplicaState | None) -> None:
    view = replica(0, cause, 0.1, waiting).view
    known = replace(view, derived={**view.derived, "tokens_per_second": {"generation": tokens}})
    assert replica_state(known, STATUSES["read"]) is state
    for word, lost in (("refused", ReplicaState.GONE), ("http_503", ReplicaState.UNREADABLE)):
        assert replica_state(replace(known, silence=Unreachable(9.0)), STATUSES[word]) is lost
        assert replica_state(None, STATUSES[word]) is lost
    assert replica_state(None, STATUSES["pending"]) is None

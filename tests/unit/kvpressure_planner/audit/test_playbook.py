from __future__ import annotations

from kvpressure.config.thresholds import load_thresholds
from kvpressure_planner.audit import audit, read

POD = "kind: Pod\nmetadata: {name: p, annotations: {kvpressure.io/traffic: %s}}\n"
POD += "spec: {containers: [{image: vllm/vllm-openai, args: [%s]}]}\n"


def statuses(args: str, traffic: str = "short", *, by_playbook: bool = True) -> dict[str, tuple[str, str]]:
    (engine,) = audit(read(POD % (traffic, args), "f"), load_thresholds(), by_playbook=by_playbook).engines
    return {one.check: (one.status, one.reason) for one in engine.findings}


def test_the_playbook_wants_limits_written_and_a_small_share_and_says_where_it_differs() -> None:
    found = statuses("--model=m, --max-num-seqs=64")
    assert found["max-num-batched-tokens"][0] == "fail"
    assert found["max-num-seqs"][0] == "pass"
    assert "a smaller share makes the KV cache smaller" in found["memory-target"][1]
    assert "memory-target" not in statuses("--model=m", by_playbook=False)
    assert statuses("--gpu-memory-utilization=0.7")["memory-target"][0] == "pass"
    assert statuses("--gpu-memory-utilization=0.7", "bursty")["memory-target"][0] == "fail"


def test_the_playbook_wants_streams_bounded_and_a_load_test_that_says_what_it_tried() -> None:
    found = statuses("--model=m")
    assert found["streams"][0] == "fail"
    assert "queues without a bound" in found["streams"][1]
    assert statuses("--model=m", 'short, kvpressure.io/max-streams: "64"')["streams"] == (
        "pass",
        "64 streams, enforced by the gateway",
    )
    assert statuses("--model=m", "short, kvpressure.io/max-streams: many")["streams"][0] == "fail"
    tested = "short, kvpressure.io/load-test: %s"
    assert statuses("--model=m", tested % '"2025-06-30"')["load-test"][0] == "fail"
    for what in ("https://wiki.example.com/1 long prompts and bursts", "2025-06-30 long prompts, bursty"):
        assert statuses("--model=m", tested % f'"{what}"')["load-test"] == ("pass", what)
    assert statuses("--model=m", tested % '"2025-06-30"', by_playbook=False)["load-test"][0] == "pass"
    assert "streams" not in statuses("--model=m", by_playbook=False)

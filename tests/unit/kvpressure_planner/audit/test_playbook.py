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
    assert statuses("--model=m", by_playbook=False)["memory-target"][0] == "pass"
    assert statuses("--gpu-memory-utilization=0.7")["memory-target"][0] == "pass"
    assert statuses("--gpu-memory-utilization=0.7", "bursty")["memory-target"][0] == "fail"

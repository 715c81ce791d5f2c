from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from kvpressure.audit import audit, from_objects, read
from kvpressure.audit.checks import CHECKS
from kvpressure.audit.checks.evidence import selects
from kvpressure.audit.model import Finding
from kvpressure.config.thresholds import load_thresholds
from tests.support.starts import read_limits
from tests.support.tools import ROOT

DOCS = ROOT / "docs"
THRESHOLDS = load_thresholds()


def deployment(*args: str, name: str = "d", **more: Any) -> dict[str, Any]:
    container = {"name": "vllm", "image": "vllm/vllm-openai:1", "args": list(args)} | more.pop("container", {})
    meta = {"labels": {"app": name}, "annotations": more.pop("annotations", {})}
    template = {"metadata": meta, "spec": {"containers": [container]}}
    return {
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "prod"},
        "spec": {"template": template, **more},
    }


def found(check: str, *objects: dict[str, Any], engine: int = 0, complete: bool = False) -> Finding:
    given = from_objects(objects, "cluster") if complete else read(yaml.safe_dump_all(objects), "f.yaml")
    return next(one for one in audit(given, THRESHOLDS).engines[engine].findings if one.check == check)


def status(check: str, *args: str, **more: Any) -> str:
    return found(check, deployment(*args, **more)).status


def kind(name: str, spec: dict[str, Any], namespace: str = "prod", **meta: Any) -> dict[str, Any]:
    return {"kind": name, "metadata": {"name": name.lower(), "namespace": namespace, **meta}, "spec": spec}


@pytest.mark.parametrize(
    ("target", "length", "traffic", "expected"),
    [
        ("0.7", "4096", "", "pass"),
        ("0.71", "4096", "", "fail"),
        ("0.65", "8192", "", "pass"),  # the prompt is shorter than the whole
        ("0.65", "8193", "", "fail"),
        ("0.6", "131072", "", "pass"),
        ("0.65", "4096", "bursty", "fail"),
        ("0.6", "4096", "bursty", "pass"),
        ("0.65", "131072", "short", "pass"),
        ("0.65", "", "", "unknown"),
        ("0.6", "", "", "pass"),
        ("0.9", "", "", "fail"),
        ("$(TARGET)", "4096", "", "unknown"),
    ],
)
def test_the_memory_target_depends_on_length_and_bursts(target: str, length: str, traffic: str, expected: str) -> None:
    args = [f"--gpu-memory-utilization={target}", *([f"--max-model-len={length}"] if length else [])]
    assert status("memory-target", *args, annotations={"kvpressure.io/traffic": traffic}) == expected


def test_the_memory_target_says_what_it_is_against_whenever_it_fails() -> None:
    for args in (["--gpu-memory-utilization=0.95"], []):
        finding = found("memory-target", deployment(*args))
        assert finding.status == "fail"
        assert "against a device OOM; if the KV cache is what runs out, do not lower it" in finding.reason
        assert "against a device OOM" in finding.fix


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--max-num-seqs=1024"], "pass"),
        (["--max-num-seqs=1025"], "fail"),
        (["--max-num-seqs=2"], "fail"),
        (["--max-num-seqs=3"], "pass"),
        (["--max-num-seqs=64", "--max-num-batched-tokens=63"], "fail"),
        (["--max-num-seqs=64", "--max-num-batched-tokens=64"], "pass"),
        (["--max-num-seqs=64", "--num-gpu-blocks-override=3", "--block-size=16"], "fail"),
        (["--max-num-seqs=$(N)"], "unknown"),
        ([], "unknown"),
    ],
)
def test_max_num_seqs_is_plausible_between_a_batch_and_what_vllm_and_its_cache_take(
    args: list[str], expected: str
) -> None:
    assert status("max-num-seqs-plausible", *args) == expected


@pytest.mark.parametrize(
    ("spec", "expected"),
    [({"replicas": 2}, "pass"), ({"replicas": 1}, "fail"), ({}, "fail"), ({"replicas": "x"}, "unknown")],
)
def test_two_replicas_are_headroom(spec: dict[str, Any], expected: str) -> None:
    assert status("replicas", **spec) == expected


@pytest.mark.parametrize(("low", "expected"), [(2, "pass"), (1, "fail"), (None, "fail")])
def test_an_autoscaler_has_the_last_word_on_replicas(low: int | None, expected: str) -> None:
    target = {"scaleTargetRef": {"name": "d", "kind": "Deployment"}, "maxReplicas": 5}
    scaler = kind("HorizontalPodAutoscaler", target | ({} if low is None else {"minReplicas": low}))
    assert found("replicas", deployment(replicas=7), scaler).status == expected
    other = kind("HorizontalPodAutoscaler", target | {"scaleTargetRef": {"name": "other", "kind": "Deployment"}})
    assert found("replicas", deployment(replicas=7), other).status == "pass"


def test_keda_scales_deployments_unless_it_names_another_kind() -> None:
    scaler = kind("ScaledObject", {"scaleTargetRef": {"name": "d"}, "minReplicaCount": 2})
    assert found("replicas", deployment(), scaler).reason == "ScaledObject scaledobject keeps 2 to ? pods"


def test_host_memory_may_be_requested_by_a_limit() -> None:
    for kind_of in ("requests", "limits"):
        assert status("memory-request", container={"resources": {kind_of: {"memory": "8Gi"}}}) == "pass"
    assert status("memory-request", container={"resources": {"limits": {"cpu": 1}}}) == "fail"


def test_long_and_short_requests_may_share_a_model_but_not_a_deployment() -> None:
    long = deployment("--model=m", "--max-model-len=64K", name="long")
    short = deployment("--model=m", "--max-model-len=4K", name="short")
    stranger = deployment("--model=x", "--max-model-len=4K", name="other")
    assert found("separate-long-requests", long, short).status == "pass"
    assert found("separate-long-requests", long, short, engine=1).status == "pass"
    assert found("separate-long-requests", long, stranger).status == "fail"
    assert status("separate-long-requests", annotations={"kvpressure.io/traffic": "long"}) == "pass"
    assert status("separate-long-requests") == "unknown"


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2025-06-30", "pass"), ("https://x/y", "pass"), ("2025-06-30 by team a", "pass"), ("soon", "fail"), ("", "fail")],
)
def test_a_load_test_is_an_address_or_a_day(text: str, expected: str) -> None:
    assert status("load-test", annotations={"kvpressure.io/load-test": text}) == expected


MONITOR = {"selector": {"matchLabels": {"app": "d"}}}


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ([kind("PodMonitor", MONITOR)], "pass"),
        ([kind("PodMonitor", {})], "pass"),
        ([kind("PodMonitor", MONITOR, "monitoring")], "fail"),
        ([kind("PodMonitor", MONITOR | {"namespaceSelector": {"any": True}}, "monitoring")], "pass"),
        ([kind("PodMonitor", MONITOR | {"namespaceSelector": {"matchNames": ["prod"]}}, "monitoring")], "pass"),
        ([kind("PodMonitor", MONITOR | {"namespaceSelector": {"matchNames": ["dev"]}}, "monitoring")], "fail"),
        ([kind("PodMonitor", {"selector": {"matchLabels": {"app": "e"}}})], "fail"),
        ([kind("ServiceMonitor", {"selector": {"matchLabels": {"s": "1"}}})], "fail"),
        (
            [
                kind("ServiceMonitor", {"selector": {"matchLabels": {"s": "1"}}}),
                kind("Service", {"selector": {"app": "d"}}, labels={"s": "1"}),
            ],
            "pass",
        ),
        (
            [
                kind(
                    "DaemonSet",
                    {"template": {"spec": {"containers": [{"image": "example.com/kv-pressure-exporter:1"}]}}},
                )
            ],
            "pass",
        ),
        ([], "unknown"),
    ],
)
def test_monitoring_counts_where_it_reaches_the_engine(others: list[dict[str, Any]], expected: str) -> None:
    assert found("monitoring", deployment(), *others).status == expected


def test_a_whole_cluster_without_monitoring_fails_where_a_file_leaves_it_open() -> None:
    assert found("monitoring", deployment(), complete=True).status == "fail"
    assert found("alerts", deployment(), complete=True).status == "fail"
    assert found("alerts", deployment()).status == "unknown"


def test_alerts_have_to_use_series_of_engines() -> None:
    for expression, expected in (("vllm:num_requests_waiting > 5", "pass"), ("up == 0", "fail")):
        rule = kind("PrometheusRule", {"groups": [{"rules": [{"alert": "A", "expr": expression}]}]})
        assert found("alerts", deployment(), rule).status == expected


@pytest.mark.parametrize(
    ("expression", "matches"),
    [
        ({"key": "app", "operator": "In", "values": ["d"]}, True),
        ({"key": "app", "operator": "NotIn", "values": ["d"]}, False),
        ({"key": "app", "operator": "Exists"}, True),
        ({"key": "app", "operator": "DoesNotExist"}, False),
        ({"key": "app", "operator": "Odd"}, False),
    ],
)
def test_selectors_match_as_kubernetes_says(expression: dict[str, Any], matches: bool) -> None:
    assert selects({"matchExpressions": [expression]}, {"app": "d"}) is matches


@pytest.mark.parametrize(
    "name", ["input-tokens", "output-tokens", "max-num-seqs", "max-num-batched-tokens", "memory-target"]
)
def test_a_fix_pasted_into_the_arguments_mends_its_check(name: str) -> None:
    finding = found(name, deployment(replicas=2))
    pasted = yaml.safe_load("\n".join(line for line in finding.fix.splitlines() if line.startswith("- ")))
    assert status(name, *pasted, "--max-model-len=4096") == "pass"


def test_a_fix_for_a_script_survives_the_shell() -> None:
    script = {"command": ["sh", "-c"], "args": ["vllm serve m"]}
    fix = found("output-tokens", deployment(container=script)).fix.splitlines()[-1]
    reading = read_limits(["sh", "-c", f"vllm serve m {fix}"], [], {}, {})
    assert reading.limits["max_output_tokens"].value == 1024


def test_every_check_has_its_own_name_and_words_that_help() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    assert all(check.title and check.help.endswith(".") for check in CHECKS)


def test_the_page_describes_every_check_with_its_level_and_order() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (error|warning|note) \|", (DOCS / "audit.md").read_text(), re.MULTILINE)
    assert rows == [(check.name, check.level) for check in CHECKS]


def test_what_fails_has_something_to_paste() -> None:
    for one in audit(read(yaml.safe_dump(deployment()), "f.yaml"), THRESHOLDS).engines[0].findings:
        assert (one.status != "fail") or one.fix, one.check

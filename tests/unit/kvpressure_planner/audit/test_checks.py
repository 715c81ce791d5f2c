from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from kvpressure.capacity.gpus import GPUS
from kvpressure.cli import main
from kvpressure.config.thresholds import load_thresholds
from kvpressure_planner.audit import Knowledge, audit, from_objects, read
from kvpressure_planner.audit.checks import CHECKS
from kvpressure_planner.audit.checks.evidence import selects
from kvpressure_planner.audit.model import Finding, Place, Problem
from kvpressure_planner.cli.model_file import known_model
from tests.support.audits import findings_of, only
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
    report = audit(given, THRESHOLDS)
    return findings_of(report, report.engines[engine])[check]


def status(check: str, *args: str, **more: Any) -> str:
    return found(check, deployment(*args, **more)).status


def kind(name: str, spec: dict[str, Any], namespace: str = "prod", **meta: Any) -> dict[str, Any]:
    return {"kind": name, "metadata": {"name": name.lower(), "namespace": namespace, **meta}, "spec": spec}


H100 = Knowledge(known_model, GPUS["H100"])
QWEN = "--model=Qwen/Qwen3-30B-A3B"
LENGTHS = {"kvpressure.io/prompt-p95": "4000", "kvpressure.io/output-p95": "800"}


def sized(check: str, *args: str, knowledge: Knowledge = H100, **more: Any) -> Finding:
    given = read(yaml.safe_dump(deployment(*args, **more)), "f.yaml")
    return only(audit(given, THRESHOLDS, knowledge=knowledge))[check]


@pytest.mark.parametrize(
    ("target", "expected"),
    [("0.6", "pass"), ("0.9", "pass"), ("0.92", "pass"), ("0.95", "pass"), ("0.96", "fail"), ("$(TARGET)", "unknown")],
)
def test_a_share_of_the_gpu_is_judged_by_itself_where_the_model_is_not_known(target: str, expected: str) -> None:
    finding = found("memory-target", deployment(f"--gpu-memory-utilization={target}"))
    # What is not known to start is not printed.
    assert (finding.status, finding.fix) == (expected, "")


def test_a_share_is_raised_where_the_weights_do_not_fit_and_never_to_one_that_does_not_start() -> None:
    low = sized("memory-target", QWEN, "--gpu-memory-utilization=0.6")
    assert low.status == "fail"
    assert "would not start, weights take 56.87 GiB of 47.46 GiB on the H100" in low.reason
    assert low.fix.startswith('- "--gpu-memory-utilization=0.9"')
    assert sized("memory-target", QWEN, "--gpu-memory-utilization=0.9").status == "pass"
    high = sized("memory-target", QWEN, "--gpu-memory-utilization=0.97")
    assert (high.status, high.fix.split()[1]) == ("fail", '"--gpu-memory-utilization=0.9"')
    none = sized("memory-target", "--model=meta-llama/Llama-3.3-70B-Instruct", "--gpu-memory-utilization=0.97")
    assert (none.status, none.fix) == ("fail", "")


def test_more_gpus_are_asked_for_where_no_share_is_enough() -> None:
    finding = sized("memory-target", "--model=meta-llama/Llama-3.3-70B-Instruct", "-tp", "2")
    assert finding.fix.startswith('- "--tensor-parallel-size=4"  # 4 H100 for each replica')
    pasted = sized("memory-target", "--model=meta-llama/Llama-3.3-70B-Instruct", "--tensor-parallel-size=4")
    assert pasted.status == "pass"


def test_a_part_of_a_gpu_is_not_judged_as_the_whole() -> None:
    part: dict[str, Any] = {"container": {"resources": {"limits": {"nvidia.com/mig-3g.40gb": 1}}}}
    assert sized("memory-target", QWEN, "--gpu-memory-utilization=0.6").status == "fail"
    assert "would not start" not in sized("memory-target", QWEN, "--gpu-memory-utilization=0.6", **part).reason
    assert "nvidia.com/mig-3g.40gb" in sized("max-num-seqs", QWEN, annotations=LENGTHS, **part).reason
    assert sized("gpus", QWEN, **part).reason == "1, as the command needs"


def test_a_length_beyond_the_models_own_is_refused_unless_an_option_stretches_it() -> None:
    long = ("--model=Qwen/Qwen3-8B", "--max-model-len=131072")
    assert "above the model's own" in sized("memory-target", *long).reason
    assert sized("memory-target", *long, '--rope-scaling={"rope_type":"yarn","factor":4.0}').status == "pass"


def test_a_declared_length_bounds_the_lengths_that_are_planned_for() -> None:
    finding = sized("max-num-seqs", "--model=Qwen/Qwen3-8B", "--max-model-len=2048", annotations=LENGTHS)
    assert "of 2,048 tokens fit" in finding.reason
    assert "--max-model-len 2048" in finding.fix


def test_kserve_makes_options_of_its_parallelism() -> None:
    resources = {"limits": {"nvidia.com/gpu": "4"}}
    spec = {
        "model": {"uri": "hf://meta-llama/Llama-3.3-70B-Instruct"},
        "parallelism": {"tensor": 4},
        "template": {"containers": [{"name": "main", "resources": resources}]},
    }
    assert found("gpus", kind("LLMInferenceService", spec)).status == "pass"
    apart = {**spec, "parallelism": {"tensor": 2, "pipeline": 2}}
    assert found("gpus", kind("LLMInferenceService", apart)).status == "pass"
    assert found("gpus", kind("LLMInferenceService", {**spec, "parallelism": {"tensor": 8}})).status == "fail"


def test_what_the_server_refuses_fails() -> None:
    finding = sized("memory-target", QWEN, "-tp=3")
    assert (finding.status, "vLLM refuses it; use one of 1, 2, 4, 8, 16" in finding.reason) == ("fail", True)


@pytest.mark.parametrize(
    ("check", "written"),
    [
        ("memory-target", "--gpu-memory-utilization=0.9"),
        ("max-num-seqs", "--max-num-seqs=1024"),
        ("max-num-batched-tokens", "--max-num-batched-tokens=8192"),
        ("input-tokens", "--max-model-len=40960"),
        ("separate-long-requests", "--max-model-len=40960"),
    ],
)
@pytest.mark.parametrize("annotations", [{}, LENGTHS])
@pytest.mark.parametrize("knowledge", [H100, Knowledge()])
def test_writing_a_default_down_changes_nothing(
    check: str, written: str, annotations: dict[str, str], knowledge: Knowledge
) -> None:
    left_out, given = (
        sized(check, QWEN, *args, annotations=annotations, knowledge=knowledge).status for args in ([], [written])
    )
    is_known = knowledge == H100 and (annotations or check != "max-num-seqs")
    if not is_known and check != "max-num-batched-tokens":
        assert left_out == "unknown"  # nobody can tell that this is what the server would take
    else:
        assert left_out == given


def test_values_are_those_of_the_plan() -> None:
    command = ["plan", "--model", "Qwen/Qwen3-30B-A3B", "--gpu", "H100", "--prompt-p95", "4000", "--output-p95", "800"]
    flags = json.loads(CliRunner().invoke(main, [*command, "--json"]).stdout)["flags"]
    for check, flag in (("max-num-seqs", "--max-num-seqs"), ("input-tokens", "--max-model-len")):
        fix = sized(check, QWEN, annotations=LENGTHS).fix
        assert fix == f'- "{flag}={flags[flag]}"  # {shlex.join(["kvpressure", *command])}'


@pytest.mark.parametrize(
    "name", ["input-tokens", "output-tokens", "max-num-seqs", "max-num-batched-tokens", "memory-target"]
)
def test_a_fix_pasted_into_the_arguments_fixes_its_check(name: str) -> None:
    bad = ["--gpu-memory-utilization=0.6"] if name == "memory-target" else []
    bad += ["--max-num-batched-tokens=32768"] if name == "max-num-batched-tokens" else []
    finding = sized(name, QWEN, *bad, annotations=LENGTHS)
    assert finding.status == "fail"
    pasted = yaml.safe_load("\n".join(line for line in finding.fix.splitlines() if line.startswith("- ")))
    assert sized(name, QWEN, *bad, *pasted, annotations=LENGTHS).status == "pass"


def test_host_memory_is_computed_or_not_printed() -> None:
    assert found("memory-request", deployment()).fix == ""
    assert "memory: 65Gi  # weights of 56.87 GiB" in sized("memory-request", QWEN).fix


@pytest.mark.parametrize(
    ("asked", "args", "expected"),
    [
        (2, ["-tp", "2"], "pass"),
        (1, ["-tp", "2"], "fail"),
        (8, ["--tensor-parallel-size=4", "--pipeline-parallel-size=2"], "pass"),
        (4, ["--tensor-parallel-size=2"], "fail"),
        (8, ["--data-parallel-size=16"], "unknown"),  # may be on several machines
        (2, ["--tensor-parallel-size=$(TP)"], "unknown"),
    ],
)
def test_a_server_gets_as_many_gpus_as_it_divides_its_model_among(asked: int, args: list[str], expected: str) -> None:
    resources = {"resources": {"limits": {"nvidia.com/gpu": asked}}}
    finding = found("gpus", deployment(*args, container=resources))
    assert finding.status == expected
    if expected == "fail":
        assert finding.fix.startswith("nvidia.com/gpu: ")


def test_several_gpus_share_memory_and_one_does_not() -> None:
    assert status("shared-memory") == "pass"
    assert status("shared-memory", "-tp", "2") == "fail"
    mounts = {"volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}]}
    given = deployment("-tp", "2", container=mounts)
    given["spec"]["template"]["spec"]["volumes"] = [{"name": "shm", "emptyDir": {"medium": "Memory"}}]
    assert found("shared-memory", given).status == "pass"


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--max-num-seqs=256"], "pass"),
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
    assert status("max-num-seqs", *args) == expected


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
    assert (
        found("replicas", deployment(), scaler).reason
        == "ScaledObject scaledobject keeps 2 to an unknown number of pods"
    )


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
                    {"template": {"spec": {"containers": [{"image": "example.com/kvpressure:1"}]}}},
                )
            ],
            "pass",
        ),
    ],
)
def test_monitoring_counts_where_it_reaches_the_engine(others: list[dict[str, Any]], expected: str) -> None:
    assert found("monitoring", deployment(), *others).status == expected


def test_a_whole_cluster_without_monitoring_fails_where_files_without_any_say_nothing_of_it() -> None:
    assert found("monitoring", deployment(), complete=True).status == "fail"
    assert found("alerts", deployment(), complete=True).status == "fail"
    report = audit(from_objects([deployment()], "cluster", [Problem("left out", Place("cluster", None))]), THRESHOLDS)
    assert not {"monitoring", "alerts"} & only(report).keys()


def test_alerts_have_to_use_series_of_engines() -> None:
    for expression, expected in (("vllm:num_requests_waiting > 5", "pass"), ("up == 0", "fail")):
        rule = kind("PrometheusRule", {"groups": [{"rules": [{"alert": "A", "expr": expression}]}]})
        assert found("alerts", deployment(), rule).status == expected
        assert found("alerts", deployment(), rule["spec"]).status == expected  # a file as Prometheus reads it


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


def test_a_fix_for_a_script_survives_the_shell() -> None:
    script = {"command": ["sh", "-c"], "args": ["vllm serve m"]}
    fix = found("output-tokens", deployment(container=script, annotations=LENGTHS)).fix.splitlines()[-1]
    reading = read_limits(["sh", "-c", f"vllm serve m {fix}"], [], {}, {})
    assert reading.limits["max_output_tokens"].value == 800


def test_every_check_has_its_own_name_and_words_that_help() -> None:
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    assert all(check.title and check.help.endswith(".") for check in CHECKS)


def test_the_page_describes_every_check_with_its_level_and_order() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (error|warning|note) \|", (DOCS / "audit.md").read_text(), re.MULTILINE)
    assert rows == [(check.name, check.level) for check in CHECKS]


def test_what_fails_has_something_to_paste_where_its_value_is_known() -> None:
    given = read(yaml.safe_dump(deployment(QWEN, annotations=LENGTHS)), "f.yaml")
    for one in audit(given, THRESHOLDS, knowledge=H100).engines[0].findings:
        assert (one.status != "fail") or one.fix, one.check


def test_a_variable_from_a_secret_is_set_and_no_default_stands_in_for_it() -> None:
    env = [{"name": "SEQS", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}]
    script = {"command": ["sh", "-c", "vllm serve m --max-num-seqs ${SEQS:-8}"], "env": env}
    assert status("max-num-seqs", container=script) == "unknown"


def test_gpus_that_depend_on_a_condition_are_not_counted() -> None:
    script = "TP=1\n[ $BIG ] && TP=4\nvllm serve Qwen/Qwen3-30B-A3B --tensor-parallel-size $TP --max-model-len 8192"
    more = {"container": {"command": ["sh", "-c", script], "resources": {"limits": {"nvidia.com/gpu": 4}}}}
    assert [sized(check, **more).status for check in ("gpus", "shared-memory")] == ["unknown", "unknown"]


def test_engines_of_two_branches_are_two_with_their_condition() -> None:
    script = "if [ $BIG = hunter2 ]; then exec vllm serve m -tp 4; fi; vllm serve m"
    given = from_objects([kind("Pod", {"containers": [{"command": ["sh", "-c", script]}]})], "cluster")
    big, small = audit(given, load_thresholds()).engines
    assert big.reading.notes == ("only if the condition in line 1 of its script ($BIG) says so",)
    assert ("tensor-parallel-size" in big.reading.options, small.reading.notes) == (True, ())


QWEN_SMALL = "--model=Qwen/Qwen3-8B"


def test_a_request_that_takes_little_passes_whatever_a_plan_would_set() -> None:
    of = sized("input-tokens", QWEN_SMALL, annotations=LENGTHS)
    assert (of.status, of.reason) == ("pass", "40,960 tokens, the model's own length: at most 11% of the KV cache each")


def test_long_requests_pass_where_all_that_may_run_fit_together() -> None:
    model = "--model=Qwen/Qwen3-30B-A3B"
    share = "--gpu-memory-utilization=0.85"
    assert sized("input-tokens", model, share).status == "fail"
    assert sized("input-tokens", model, share, "--max-num-seqs=64").status == "fail"
    few = sized("input-tokens", model, share, "--max-num-seqs=1")
    assert (few.status, few.reason.rpartition(": ")[2]) == ("pass", "all 1 sequences fit the KV cache at their longest")


def test_a_cap_far_above_what_fits_fails_without_annotated_lengths_too() -> None:
    model, share = "--model=Qwen/Qwen3-30B-A3B", "--gpu-memory-utilization=0.9"
    fails = sized("max-num-seqs", model, share, "--max-num-seqs=512")
    assert fails.status == "fail"
    assert "only 2 fit the KV cache at their longest" in fails.reason
    assert sized("max-num-seqs", model, share, "--max-num-seqs=8").status == "pass"
    assert sized("max-num-seqs", model, share, "--max-num-seqs=256").status == "fail", "as any other number"


def test_more_sequences_than_tokens_in_a_step_have_one_reason_and_one_fix() -> None:
    args = (QWEN_SMALL, "--max-num-batched-tokens=64", "--max-num-seqs=128")
    found = sized("max-num-seqs", *args, annotations=LENGTHS)
    assert (found.status, found.reason.partition(":")[0]) == ("fail", "128 is above max_num_batched_tokens (64)")
    assert "--max-num-seqs=64" in found.fix
    undeclared = sized("max-num-seqs", *args[:2], annotations=LENGTHS)
    assert undeclared.status == "pass", "vLLM takes no more by itself than a step has tokens"
    assert undeclared.reason.startswith("not declared, so 64: ")


@pytest.mark.parametrize(
    ("annotations", "says"),
    [
        (
            {"prompt-p95": "4000 tokens", "output-p95": "800"},
            "'4000 tokens' is no number of tokens, such as 4096 or 4k",
        ),
        ({"prompt-p95": "-1", "output-p95": "800"}, "prompt-p95 of Deployment/d: '-1' is no number of tokens"),
        ({"prompt-p95": "4000"}, "'4000' says nothing without kvpressure.io/output-p95"),
        ({"max-input-tokens": "many"}, "max-input-tokens of Deployment/d: 'many' is no number of tokens"),
        ({"gpu": "H1000"}, "'H1000' is no GPU that is known (did you mean H100"),
        ({"traffic": "lonng"}, "'lonng' has lonng, and the words are bursty, long, short"),
    ],
)
def test_an_annotation_that_cannot_be_read_is_told(annotations: dict[str, str], says: str) -> None:
    given = {f"kvpressure.io/{name}": text for name, text in annotations.items()}
    report = audit(read(yaml.safe_dump(deployment(annotations=given)), "f.yaml"), THRESHOLDS)
    (problem,) = report.problems
    assert says in problem.message
    assert problem.message.endswith("; it counts as not given")
    assert problem.place.line is not None


@pytest.mark.parametrize(
    ("args", "expected"),
    [((), "not declared, so 1,024"), (("--max-num-seqs=1024",), "1,024"), (("--max-num-seqs=900",), "900")],
)
def test_more_sequences_than_blocks_of_state_are_refused_also_by_default(args: tuple[str, ...], expected: str) -> None:
    """vllm#49064: a hybrid model with vLLM's own 1,024 sequences does not start; fewer of them do."""
    hybrid = ("--model=Qwen/Qwen3.6-27B-FP8", "--gpu-memory-utilization=0.95")
    judged = sized("max-num-seqs", *hybrid, *args)
    assert judged.status == "fail"
    assert judged.reason.startswith(f"{expected}: layers with a state (Mamba) have blocks for ")
    most = int(re.findall(r"--max-num-seqs=(\d+)", judged.fix)[0])
    assert sized("max-num-seqs", *hybrid, f"--max-num-seqs={most}").reason.find("Mamba") < 0


def test_a_draft_model_takes_room_where_its_size_is_known() -> None:
    def fits(draft: str) -> str:
        drafts = () if not draft else (f'--speculative-config={{"model": "{draft}", "num_speculative_tokens": 3}}',)
        return sized(
            "max-num-seqs", "--model=Qwen/Qwen3-32B", "--max-num-seqs=900", *drafts, annotations=LENGTHS
        ).reason

    assert "only 3 of 4,800 tokens fit" in fits("")
    assert "only 1 of 4,800 tokens fit" in fits("Qwen/Qwen3-0.6B")
    assert (
        "the draft model are not known here"
        in sized("input-tokens", "--model=Qwen/Qwen3-32B", '--speculative-config={"model": "a/draft"}').reason
    )


def test_the_command_of_a_fix_has_the_file_that_a_configuration_was_given_in() -> None:
    given = Knowledge(
        lambda _: known_model("Qwen/Qwen3.6-27B-FP8"), GPUS["H100"], {"corp/hybrid": "hybrid/config.json"}
    )
    fix = sized("max-num-seqs", "--model=corp/hybrid", knowledge=given).fix
    assert "kvpressure plan --model-config hybrid/config.json --gpu H100" in fix

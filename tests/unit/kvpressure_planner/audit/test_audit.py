"""Every kind of manifest with what is found in it: one letter a check (p, f, u) and the lines of some."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvpressure.capacity.gpus import GPUS
from kvpressure.config.thresholds import load_thresholds
from kvpressure_planner.audit import Knowledge, Report, audit, read
from kvpressure_planner.audit.checks import CHECKS
from kvpressure_planner.audit.model import Finding
from kvpressure_planner.cli.model_file import known_model
from tests.support.audits import findings_of
from tests.support.tools import FIXTURES


def reviewed(file: str, knowledge: Knowledge | None = None) -> Report:
    given = read((FIXTURES / "manifests" / file).read_text(), file)
    return audit(given, load_thresholds(), knowledge=knowledge or Knowledge())


def finding(file: str, title: str, check: str, knowledge: Knowledge | None = None) -> Finding:
    report = reviewed(file, knowledge)
    engine = next(engine for engine in report.engines if engine.title == title)
    return findings_of(report, engine)[check]


# Letters are in the order of CHECKS: input, output, sequences, batched, options, memory, GPUs, shared memory,
# separate, replicas, request, probes, documented, monitored, alerts, load test; "-" where nothing is said.
@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("deployment-bare.yaml", {"Deployment/llama": "ufuppuppuffff--f"}),
        ("deployment-good.yaml", {"Deployment/llama": "pppppppppppppppp"}),
        ("shell-and-configmap.yaml", {"StatefulSet/qwen": "upppppfpppfff--f"}),
        ("leaderworkerset.yaml", {"LeaderWorkerSet/deepseek": "uffppufpuppff--f"}),
        (
            "kserve.yaml",
            {
                "InferenceService/mistral": "ufpppufpuffpf--f",
                "InferenceService/elsewhere": "uuuuupuuufuuf--f",
                "LLMInferenceService/qwen-pd": "uppppufpufppf--f",
                "LLMInferenceService/qwen-pd prefill": "ufuppufpupfpf--f",
                "LLMInferenceService/based": "uuuuuuupufuuf--f",
            },
        ),
        (
            "production-stack-values.yaml",
            {"values/llama-long": "pfppppfpppppfp-f", "values/llama-short": "pfpppufpppfpfp-f"},
        ),
        ("list-and-pods.json", {"Pod/bare": "uffpppfpuffffp-f", "DaemonSet/edge": "uffppufpu-fff--f"}),
        ("broken-and-good.yaml", {"Pod/survivor": "ufuppufpuffff--f"}),
        ("compose.yaml", {"compose/llama": "ufpppuffufppf--f", "compose/qwen": "pfuppuppfpfpf--f"}),
        ("ray-serve.yaml", {"ray/Qwen/Qwen3-8B": "ufpppuppuf-pf--f", "ray/gpt-oss": "ppuppuppff-pf--f"}),
        ("no-engine.yaml", {}),
    ],
)
def test_every_kind_of_manifest_gets_its_findings(file: str, expected: dict[str, str]) -> None:
    report = reviewed(file)
    letters = {}
    for engine in report.engines:
        found = findings_of(report, engine)
        names = (check.name for check in CHECKS)
        letters[engine.title] = "".join(found[name].status[0] if name in found else "-" for name in names)
    assert letters == expected


@pytest.mark.parametrize(
    ("file", "title", "check", "line"),
    [
        ("deployment-good.yaml", "Deployment/llama", "max-num-seqs", 28),  # not the comment above it
        ("deployment-good.yaml", "Deployment/llama", "input-tokens", 29),
        ("deployment-good.yaml", "Deployment/llama", "memory-target", 32),
        ("deployment-good.yaml", "Deployment/llama", "output-tokens", 20),
        ("deployment-good.yaml", "Deployment/llama", "limits-documented", 8),
        ("kserve.yaml", "InferenceService/mistral", "max-num-seqs", 15),
        ("kserve.yaml", "InferenceService/mistral", "max-num-batched-tokens", 27),  # in the ServingRuntime
        ("kserve.yaml", "LLMInferenceService/qwen-pd", "max-num-seqs", 63),
        ("list-and-pods.json", "Pod/bare", "max-num-seqs", 14),
    ],
)
def test_findings_point_at_the_line_that_decides(file: str, title: str, check: str, line: int) -> None:
    assert finding(file, title, check).place.line == line


@pytest.mark.parametrize(
    ("file", "title", "check", "fix"),
    [
        (
            "production-stack-values.yaml",
            "values/llama-long",
            "memory-target",
            "tensorParallelSize: 4  # in vllmConfig; 4 L4 for each replica",
        ),
        (
            "production-stack-values.yaml",
            "values/llama-short",
            "memory-request",
            "requestMemory: 23Gi  # weights of 14.96 GiB in the page cache",
        ),
        (
            "kserve.yaml",
            "LLMInferenceService/qwen-pd",
            "input-tokens",
            "--max-model-len=22144  # append to VLLM_ADDITIONAL",
        ),
        (
            "kserve.yaml",
            "LLMInferenceService/qwen-pd prefill",
            "input-tokens",
            "- name: VLLM_ADDITIONAL_ARGS  # one value",
        ),
        ("kserve.yaml", "InferenceService/elsewhere", "replicas", "minReplicas: 2"),
    ],
)
def test_fixes_are_written_the_way_the_manifest_is_and_where_they_win(
    file: str, title: str, check: str, fix: str
) -> None:
    assert finding(file, title, check, Knowledge(known_model, GPUS["L4"])).fix.startswith(fix)


def test_what_makes_something_unknown_is_said() -> None:
    assert "${MAX_LEN}" in finding("shell-and-configmap.yaml", "StatefulSet/qwen", "input-tokens").reason
    elsewhere = finding("kserve.yaml", "InferenceService/elsewhere", "max-num-seqs")
    assert (
        "but the ServingRuntime that KServe picks is not among the manifests, which leaves open: " in elsewhere.reason
    )
    assert "team-defaults" in finding("kserve.yaml", "LLMInferenceService/based", "max-num-seqs").reason


def test_problems_of_a_file_stand_beside_its_findings() -> None:
    assert [str(one.place) for one in reviewed("broken-and-good.yaml").problems] == [
        "broken-and-good.yaml:4",
        "broken-and-good.yaml:18",
    ]


def test_notes_never_change_the_exit_code() -> None:
    report = reviewed("deployment-good.yaml")
    engine = report.engines[0]
    turned = [replace(one, status="fail") if one.level == "note" else one for one in engine.findings]
    assert replace(report, engines=(replace(engine, findings=turned),)).exit_code() == 0
    turned = [replace(one, status="fail") if one.level == "warning" else one for one in engine.findings]
    assert replace(report, engines=(replace(engine, findings=turned),)).exit_code() == 1


ONCE = ("input-tokens", "separate-long-requests", "max-num-seqs", "memory-target")


def test_what_is_unknown_of_all_engines_is_said_once() -> None:
    report = reviewed("compose.yaml")
    assert len(report.engines) == 2
    said = [(finding.check, finding.reason.rpartition(": ")[2]) for finding in report.of_all]
    assert {check for check, _ in said} == {*ONCE}
    assert {whose for _, whose in said} == {"compose/llama", "compose/qwen"}
    assert report.count("unknown") == sum(finding.status == "unknown" for finding in report.findings())


def test_exit_codes_tell_passed_failed_and_nothing_found_apart() -> None:
    codes = [reviewed(file).exit_code() for file in ("deployment-good.yaml", "deployment-bare.yaml", "no-engine.yaml")]
    assert codes == [0, 1, 2]


POD = "{kind: Pod, metadata: {name: p}, spec: {containers: [{name: v, image: %s, %s}]}}"
OWN, VLLM = "own", "vllm/vllm-openai:v0.11.0"


@pytest.mark.parametrize(
    ("image", "malformed", "says"),
    [
        (VLLM, "args: 8", "spec.containers.0.args of Pod p is a number and should be a list of strings"),
        (VLLM, "args: {max-num-seqs: 8}", "args of Pod p is a mapping"),
        (VLLM, "args: --max-num-seqs 8", "args of Pod p is text"),
        (VLLM, "args: [[--max-num-seqs, 8]]", "args of Pod p is a list with a list in it"),
        (VLLM, "args: [--max-num-seqs: 8]", "args of Pod p is a list with a mapping in it"),
        (VLLM, "args: [--max-num-seqs, null]", "args of Pod p is a list with nothing in it"),
        (OWN, "command: vllm serve m", "command of Pod p is text"),
        (OWN, "command: {vllm: serve}", "command of Pod p is a mapping"),
        (OWN, "command: [[vllm, serve, m]]", "command of Pod p is a list with a list in it"),
        (VLLM, "env: {SEQS: 8}", "env of Pod p is a mapping and should be a list of mappings with name and value"),
    ],
)
def test_a_malformed_start_is_told_and_nothing_is_claimed_of_its_flags(image: str, malformed: str, says: str) -> None:
    report = audit(read(POD % (image, malformed), "f.yaml"), load_thresholds())
    ((engine,), (problem,)) = report.engines, report.problems
    assert says in str(problem)
    assert str(problem).startswith("f.yaml:1: ")
    assert str(problem).endswith("; what it says is not judged")
    found = findings_of(report, engine)
    assert [found[check].status for check in FLAG_CHECKS] == ["unknown"] * len(FLAG_CHECKS)
    assert engine.reading.limits == {}


FLAG_CHECKS = (
    *("input-tokens", "output-tokens", "max-num-seqs", "max-num-batched-tokens"),
    *("memory-target", "gpus", "shared-memory"),
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "{kind: Pod, metadata: {name: p}, spec: {containers: {image: vllm/vllm-openai:v1}}}",
            "spec.containers of Pod p",
        ),
        ("{kind: Pod, metadata: {name: p}, spec: {containers: [vllm]}}", "a list with text in it"),
        ("{kind: Deployment, metadata: {name: p}, spec: {template: 3}}", "spec.template of Deployment p is a number"),
        ("{services: [{image: vllm/vllm-openai:v1}]}", "services is a list and should be a mapping"),
        ("{services: {a: vllm}}", "services.a is text and should be a mapping"),
        ("{services: {a: {image: vllm/vllm-openai:v1, command: {a: b}}}}", "services.a.command is a mapping"),
        ("{services: {a: {image: vllm/vllm-openai:v1, environment: 3}}}", "services.a.environment is a number"),
        ("{kind: RayService, metadata: {name: r}, spec: {serveConfigV2: {a: b}}}", "serveConfigV2 of RayService r"),
        ("{applications: [{args: {llm_configs: {a: b}}}]}", "llm_configs is a mapping"),
        ("{model_loading_config: {model_id: m}, engine_kwargs: [a]}", "engine_kwargs is a list"),
        ("{servingEngineSpec: {modelSpec: {name: a}}}", "servingEngineSpec.modelSpec is a mapping"),
        ("{servingEngineSpec: {modelSpec: [{name: a, vllmConfig: [b]}]}}", "vllmConfig is a list"),
        ("{servingEngineSpec: {modelSpec: [{name: a, vllmConfig: {extraArgs: --x 8}}]}}", "extraArgs is text"),
        (
            "{kind: InferenceService, metadata: {name: i}, spec: {predictor: {containers: {image: vllm/vllm-openai}}}}",
            "spec.predictor.containers of InferenceService i is a mapping",
        ),
    ],
)
def test_what_may_hold_an_engine_and_cannot_be_read_is_told(text: str, says: str) -> None:
    report = audit(read(text, "f.yaml"), load_thresholds())
    (problem,) = report.problems
    assert says in problem.message
    for engine in report.engines:
        found = findings_of(report, engine)
        assert {found[check].status for check in FLAG_CHECKS} == {"unknown"}

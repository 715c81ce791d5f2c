"""Engines in kinds of which the audit knows nothing but that a pod spec is somewhere in them."""

from __future__ import annotations

from functools import cache

import pytest

from kvpressure.config.thresholds import load_thresholds
from kvpressure_planner.audit import Report, audit, from_objects, read
from kvpressure_planner.audit.model import Finding
from tests.support.audits import findings_of, only
from tests.support.tools import FIXTURES

FILE = "operators.yaml"
PREFILL = "DisaggregatedSet/pd prefill"
DECODE = "DisaggregatedSet/pd decode"
DYNAMO = "DynamoGraphDeployment/dynamo Decode"


@cache
def reviewed() -> Report:
    return audit(read((FIXTURES / "manifests" / FILE).read_text(), FILE), load_thresholds())


def finding(title: str, check: str) -> Finding:
    engine = next(engine for engine in reviewed().engines if engine.title == title)
    return findings_of(reviewed(), engine)[check]


def test_engines_are_found_wherever_a_pod_spec_is_and_their_frontends_and_workers_are_not() -> None:
    found = [(engine.title, engine.container, engine.runtime.name) for engine in reviewed().engines]
    assert found == [
        (PREFILL, "server", "vllm"),
        (DECODE, "server", "vllm"),
        (DYNAMO, "mainContainer", "vllm"),
        ("DynamoGraphDeployment/dynamo Prefill", "mainContainer", "sglang"),
        ("ServingRuntime/alone", "kserve-container", "vllm"),
        ("Service/knative", "0", "vllm"),
    ]


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        (PREFILL, ("pass", "replicas: 3, slices: 2")),
        # Its own number is left out, and what that means is its operator's to say.
        (DECODE, ("pass", "slices: 2")),
        (DYNAMO, ("pass", "replicas: 2")),
        ("Service/knative", ("fail", "Knative keeps 0 to any number of pods")),
    ],
)
def test_pods_are_all_those_around_them_multiplied(title: str, expected: tuple[str, str]) -> None:
    found = finding(title, "replicas")
    assert (found.status, found.reason) == expected


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        (PREFILL, "1, as the command needs"),
        (DECODE, "4 in each of 2 pods, as the command needs"),
        (DYNAMO, "1 in each of 2 pods, as the command needs"),
    ],
)
def test_gpus_are_those_of_all_pods_of_a_group(title: str, expected: str) -> None:
    assert finding(title, "gpus").reason == expected


def test_resources_beside_the_pod_spec_are_those_of_its_container() -> None:
    found = finding(DYNAMO, "memory-request")
    assert (found.status, found.reason, found.place.line) == ("pass", "limits 64Gi", 50)


def test_what_a_controller_adds_is_known_by_its_kind() -> None:
    assert finding(DECODE, "shared-memory").reason == "4 GPUs exchange data in /dev/shm, which has 64 MiB here"
    assert "has not answered for 7,200 s" in finding(DYNAMO, "probes").reason
    assert finding("DynamoGraphDeployment/dynamo Prefill", "replicas").status == "fail"


def test_a_runtime_alone_is_judged_by_what_it_sets_itself() -> None:
    assert finding("ServingRuntime/alone", "max-num-seqs").status == "fail"
    hidden = finding("ServingRuntime/alone", "output-tokens").reason
    assert "the InferenceService that uses this runtime may give more" in hidden
    assert finding("ServingRuntime/alone", "memory-request").status == "unknown"


@pytest.mark.parametrize("live", [True, False])
def test_runtimes_that_nothing_uses_are_no_engines_of_a_cluster(live: bool) -> None:
    container = {"image": "vllm/vllm-openai:v0.28.0", "args": ["--model=/mnt/models"]}
    runtime = {"kind": "ServingRuntime", "metadata": {"name": "r"}, "spec": {"containers": [container]}}
    given = from_objects([runtime], "cluster", () if live else read("a: [", "f").problems)
    assert len(audit(given, load_thresholds()).engines) == (0 if live else 1)


def found(container: str) -> dict[str, Finding]:
    pod = f"kind: Pod\nmetadata: {{name: p}}\nspec:\n  containers:\n    - {container}\n"
    return only(audit(read(pod, "f"), load_thresholds()))


def checked(container: str, check: str) -> Finding:
    return found(container)[check]


@pytest.mark.parametrize("check", ["input-tokens", "separate-long-requests"])
def test_no_request_is_longer_than_the_given_kv_cache(check: str) -> None:
    found = checked(
        "{image: x, command: [python3, -m, sglang.launch_server, --model-path, m, --max-total-tokens, '2048']}", check
    )
    assert found.status == "pass"
    assert "2,048 tokens" in found.reason


@pytest.mark.parametrize(
    "device", ["habana.ai/gaudi", "google.com/tpu", "gpu.intel.com/xe", "aws.amazon.com/neuron", "huawei.com/Ascend910"]
)
def test_other_accelerators_than_gpus_are_counted(device: str) -> None:
    args = f"args: [--model=x, --tensor-parallel-size=4], resources: {{limits: {{{device}: 4}}}}"
    found = checked(f"{{image: vllm/vllm-openai, {args}}}", "gpus")
    assert (found.status, found.reason) == ("pass", "4, as the command needs")


PREFILLS = "it computes prompts for others, and answers with one token"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("vllm, serve, x, --task, embed", "a pooling model generates nothing"),
        ("vllm, serve, x, --runner=pooling", "a pooling model generates nothing"),
        ("python3, -m, sglang.launch_server, --model-path, x, --is-embedding", "a pooling model generates nothing"),
        ("vllm, serve, x, --task=generate", "no limit: an output may run to the end of the context"),
        ("python3, -m, dynamo.vllm, --is-prefill-worker", f"--is-prefill-worker: {PREFILLS}"),
        ("python3, -m, dynamo.vllm, --disaggregation-mode=prefill", f"--disaggregation-mode=prefill: {PREFILLS}"),
    ],
)
def test_a_server_that_generates_nothing_needs_no_limit_of_outputs(command: str, reason: str) -> None:
    assert checked(f"{{image: x, command: [{command}]}}", "output-tokens").reason == reason


@pytest.mark.parametrize(
    ("image", "status"),
    [
        ("public.ecr.aws/x/vllm-cpu-release-repo:v1", "pass"),
        ("vllm/vllm-openai-cpu:v1", "pass"),
        ("x/cpuish", "fail"),
        ("x', resources: {limits: {nvidia.com/gpu: 0}}, args: [--device=cpu], name: 'y", "pass"),
    ],
)
def test_an_image_for_cpus_needs_no_gpu(image: str, status: str) -> None:
    engine = f"{{image: '{image}', command: [vllm, serve, x]}}"
    assert checked(engine, "gpus").status == status
    assert ("memory-target" in found(engine)) == (status == "fail"), "a share of a GPU's memory"


def test_an_option_that_bounds_a_step_too_is_named() -> None:
    step = checked("{image: x, command: [sglang, serve, --max-prefill-tokens, 4096]}", "max-num-batched-tokens")
    assert step.reason.startswith("--max-prefill-tokens 4096 bounds it too, and no chunk is declared: SGLang takes")


def test_gpus_of_a_kind_that_is_not_known_may_stand_elsewhere() -> None:
    of_pod = checked("{image: vllm/vllm-openai, args: [--model=x]}", "gpus")
    unknown = "kind: X\nspec: {devices: [{name: gpu, count: 1}], containers: [{image: i, command: [vllm, serve, x]}]}"
    found = only(audit(read(unknown, "f"), load_thresholds()))["gpus"]
    assert (of_pod.status, found.status) == ("fail", "unknown")


def test_gpus_without_a_limit_are_refused() -> None:
    found = checked("{image: vllm/vllm-openai, args: [--model=x], resources: {requests: {nvidia.com/gpu: 1}}}", "gpus")
    assert (found.status, found.reason) == (
        "fail",
        "nvidia.com/gpu is requested without a limit, which Kubernetes refuses",
    )

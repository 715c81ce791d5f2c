"""Engines in objects and files that describe them by keys of their own."""

import pytest

from kvpressure.config.thresholds import load_thresholds
from kvpressure_planner.audit import Knowledge, Report, audit, read
from kvpressure_planner.audit.engine import Engine
from kvpressure_planner.cli.model_file import known_model
from tests.support.audits import findings_of, only

KUBEAI = """
kind: Model
metadata: {name: llama}
spec:
  engine: VLLM
  url: hf://meta-llama/Llama-3.1-8B-Instruct?pull=always
  args: [--max-model-len=8192, --tensor-parallel-size=2]
  env: {VLLM_USE_V1: "1"}
  minReplicas: 0
  resourceProfile: nvidia-gpu-l4:4
"""
RUNTIME = """
kind: VLLMRuntime
metadata: {name: llama}
spec:
  model: {modelURL: meta-llama/Llama-3.1-8B-Instruct, maxModelLen: 4096, maxNumSeqs: 2}
  vllmConfig: {tensorParallelSize: 2, gpuMemoryUtilization: "0.97", extraArgs: [--max-num-batched-tokens=32768]}
  deploymentConfig: {replicas: 2, resources: {memory: 32Gi, gpu: "1"}}
"""
CONFIG = """
model: meta-llama/Llama-3.1-8B-Instruct
uvicorn-log-level: info
max_num_seqs: 2
tensor-parallel-size: 2
"""
VALUES = """
image: {repository: vllm/vllm-openai, command: [vllm, serve, /data/, --max-num-seqs=64]}
replicaCount: 2
resources: {limits: {nvidia.com/gpu: 1, memory: 16Gi}}
job: {command: [/bin/bash], args: [-c, aws s3 sync]}
"""
MODELSERVICE = """
modelArtifacts: {name: Qwen/Qwen3-32B, uri: "hf://Qwen/Qwen3-32B"}
decode:
  parallelism: {tensor: 2, data: 1}
  replicas: 8
  containers:
    - {name: vllm, image: "ghcr.io/llm-d/llm-d-cuda:v0.5.0", modelCommand: vllmServe, args: [--max-num-seqs=64]}
"""


def report(manifest: str) -> Report:
    return audit(read(manifest, "dir/f.yaml"), load_thresholds())


def judged(manifest: str) -> tuple[Engine, dict[str, tuple[str, str]]]:
    found = report(manifest)
    (engine,) = found.engines
    return engine, {check: (one.status, one.fix or one.reason) for check, one in findings_of(found, engine).items()}


def test_kubeai_names_gpu_and_number_in_its_profile() -> None:
    engine, found = judged(KUBEAI)
    assert (engine.title, engine.model, engine.resources.gpu) == (
        "Model/llama",
        "meta-llama/Llama-3.1-8B-Instruct",
        "nvidia-gpu-l4",
    )
    assert found["gpus"] == ("fail", "4 GPUs are requested and the command uses 2")
    assert found["replicas"] == ("fail", "minReplicas: 2")
    assert "memory-request" not in found  # of the pods that KubeAI makes
    assert report(KUBEAI.replace("VLLM", "OLlama", 1)).engines == ()


def test_the_two_places_of_a_vllm_runtime_are_read_together() -> None:
    engine, found = judged(RUNTIME)
    limits = {name: limit.value for name, limit in engine.reading.limits.items()}
    assert limits == {
        "max_model_len": 4096,
        "max_num_seqs": 2,
        "gpu_memory_utilization": 0.97,
        "max_num_batched_tokens": 32768,
    }
    assert found["gpus"] == ("fail", "gpu: 2")
    assert found["max-num-batched-tokens"][1].startswith('- "--max-num-batched-tokens=16384"  # in extraArgs')
    assert (found["replicas"][0], found["memory-request"][0]) == ("pass", "pass")


def test_a_configuration_file_alone_is_a_servers() -> None:
    engine, found = judged(CONFIG)
    assert (engine.title, engine.model) == ("config/f.yaml", "meta-llama/Llama-3.1-8B-Instruct")
    assert found["max-num-seqs"] == ("fail", "2 leaves nothing to batch")
    assert engine.limit_place("max_num_seqs").line == 4


@pytest.mark.parametrize("other", ["model: x\nlr: 0.1\n", "max-model-len: 4096\n", "model: {max-model-len: 3}\n"])
def test_a_file_without_a_model_or_a_limit_is_no_servers(other: str) -> None:
    assert report(other).engines == ()


def test_a_command_anywhere_in_values_is_a_containers() -> None:
    engine, found = judged(VALUES)
    assert engine.title == "values/image"
    assert [found[check][0] for check in ("gpus", "replicas", "memory-request", "max-num-seqs")] == ["pass"] * 4


def test_ranks_and_model_of_a_model_service_are_beside_its_containers() -> None:
    engine, found = judged(MODELSERVICE)
    assert (engine.title, engine.model) == ("values/decode", "Qwen/Qwen3-32B")
    assert found["gpus"] == ("pass", "the chart requests 2, as the command needs")
    assert found["replicas"] == ("pass", "replicas: 8")


STACK = """
servingEngineSpec:
  modelSpec:
    - name: llama
      modelURL: meta-llama/Llama-3.1-8B-Instruct
      requestGPU: 2
      vllmConfig: {%s}
      %s
"""


def test_options_where_the_chart_reads_none_are_named() -> None:
    found = report(STACK % ("maxNumSeqs: 64", "extraArgs: [--max-model-len=4096]"))
    (problem,) = map(str, found.problems)
    assert problem.startswith("dir/f.yaml:8: servingEngineSpec.modelSpec.0.extraArgs is nothing that the chart reads: ")


@pytest.mark.parametrize(
    ("config", "more", "gpus", "shared"),
    [
        ("tensorParallelSize: 2", "", "2, as the command needs", "the chart mounts a larger /dev/shm"),
        ("extraArgs: [-tp=2]", "", "2, as the command needs", "ipc: host  # or shm_size"),
        (
            "tensorParallelSize: 2, pipelineParallelSize: 3",
            "raySpec: {enabled: true}",
            "2 in each of 3 pods, as the command needs",
            "the chart mounts a larger /dev/shm",
        ),
    ],
)
def test_the_chart_divides_and_shares_as_its_keys_say(config: str, more: str, gpus: str, shared: str) -> None:
    found = judged(STACK % (config, more))[1]
    assert (found["gpus"][1], found["shared-memory"][1]) == (gpus, shared)


def test_a_service_of_llm_inference_is_of_the_runtime_that_it_names() -> None:
    manifest = "kind: LLMInferenceService\nmetadata: {name: x}\nspec: {runtime: sglang, model: {uri: 'hf://a/b'}}\n"
    assert judged(manifest)[0].runtime.name == "sglang"


LOCAL = """
kind: LeaderWorkerSet
metadata: {name: wide}
spec:
  leaderWorkerTemplate:
    size: 2
    workerTemplate:
      spec:
        containers:
          - image: vllm/vllm-openai
            command: [sh, -c]
            args: ["vllm serve x -dp $((N * 8)) -dpl 8 --gpu-memory-utilization 0.9 --kv-cache-memory-bytes=${BYTES-}"]
            resources: {limits: {nvidia.com/gpu: 8}}
"""


def test_ranks_of_one_machine_are_compared_with_its_gpus() -> None:
    assert judged(LOCAL)[1]["gpus"] == ("pass", "8, as the command needs")


def test_an_option_without_a_value_sizes_no_pool() -> None:
    assert judged(LOCAL)[1]["memory-target"] == ("pass", "0.9, at most 0.95")


KAITO = """
kind: Workspace
metadata: {name: ds}
resource: {instanceType: Standard_NC40ads_H100_v5}
inference: {preset: {name: Qwen/Qwen3-8B}, config: params}
---
kind: ConfigMap
metadata: {name: params}
data:
  inference_config.yaml: |
    max_probe_steps: 6
    vllm:
      max-num-seqs: 2
      gpu-memory-utilization: 0.97
"""


def test_the_options_of_a_workspace_are_in_its_config_map() -> None:
    engine, found = judged(KAITO)
    assert (engine.title, engine.model, engine.limit_place("max_num_seqs").line) == (
        "Workspace/ds",
        "Qwen/Qwen3-8B",
        13,
    )
    assert found["max-num-seqs"] == ("fail", "2 leaves nothing to batch")
    assert found["memory-target"][0] == "fail"


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("{name: params}", "{name: other}", "the ConfigMap params is not among the manifests"),
        ("max-num-seqs: 2", "a: [", "inference_config.yaml of the ConfigMap params cannot be read"),
    ],
)
def test_a_workspace_without_a_config_map_that_can_be_read_is_not_known(old: str, new: str, why: str) -> None:
    status, said = judged(KAITO.replace(old, new))[1]["output-tokens"]
    assert status == "unknown"
    assert why in said


@pytest.mark.parametrize(("more", "needed"), [("", "16"), (", --enable-dp-attention", "4")])
def test_ranks_of_dp_attention_are_on_the_gpus_of_the_others(more: str, needed: str) -> None:
    command = f"[python3, -m, sglang.launch_server, --model-path, x, --tp, '4', --dp, '4'{more}]"
    pod = f"kind: Pod\nmetadata: {{name: p}}\nspec: {{containers: [{{image: x, command: {command}}}]}}\n"
    assert judged(pod)[1]["gpus"] == ("fail", f"nvidia.com/gpu: {needed}")


@pytest.mark.parametrize(
    ("given", "status"),
    [
        ("devices: [/dev/kfd, /dev/dri]", "pass"),
        ("devices: [nvidia.com/gpu=all]", "pass"),
        ("runtime: nvidia", "pass"),
        ("environment: {NVIDIA_VISIBLE_DEVICES: '0,1'}\n    runtime: nvidia", "fail"),
        ("environment: [CUDA_VISIBLE_DEVICES=3]\n    gpus: all", "pass"),
        ("extends: {service: gpu}", "unknown"),
        ("devices: [/dev/dri]", "fail"),
        ("runtime: runc", "fail"),
    ],
)
def test_the_gpus_of_a_service_may_be_those_of_its_driver(given: str, status: str) -> None:
    service = f"services:\n  vllm:\n    image: vllm/vllm-openai\n    command: [--model, x]\n    {given}\n"
    assert judged(service)[1]["gpus"][0] == status


@pytest.mark.parametrize(
    ("args", "status"),
    [
        ("", "fail"),
        (", --max-model-len=4096", "pass"),
        (", '--max-model-len=$(LENGTH)'", "unknown"),
        (", '--hf-overrides={}'", "unknown"),
    ],
)
def test_a_known_model_has_its_length_without_a_gpu(args: str, status: str) -> None:
    container = f"{{image: vllm/vllm-openai, args: [--model=Qwen/Qwen3-8B{args}]}}"
    given = read(f"kind: Pod\nmetadata: {{name: p}}\nspec: {{containers: [{container}]}}\n", "f")
    report = audit(given, load_thresholds(), knowledge=Knowledge(known_model))
    assert only(report)["separate-long-requests"].status == status


def test_values_of_a_chart_in_a_text_need_no_key_that_is_known_first() -> None:
    values = (
        "servingEngineSpec:\n  modelSpec:\n  - {name: m, modelURL: x, requestGPU: 1, vllmConfig: {maxModelLen: 4096}}\n"
    )
    text = "".join(f"    {line}\n" for line in values.splitlines())
    application = f"kind: Application\nmetadata: {{name: a}}\nspec:\n  values: |\n{text}"
    assert judged(application)[1]["gpus"] == ("pass", "1, as the command needs")

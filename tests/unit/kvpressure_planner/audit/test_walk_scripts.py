from __future__ import annotations

import pytest

from kvpressure.config.thresholds import load_thresholds
from kvpressure.launch import launch
from kvpressure_planner.audit import audit, read
from kvpressure_planner.audit.engine import Engine
from kvpressure_planner.audit.manifests import Manifests

SERVE = """#!/bin/bash
# kvpressure.io/gpu: H100
set -ex
TP=${TP:-2}
vllm serve Qwen/Qwen3-8B \\
  --tensor-parallel-size $TP \\
  --max-model-len 8192 2>&1 | tee server.log
"""
RUN = "docker run -d --name vllm-server-0 --gpus {gpus} -p 8000:8000 -v $(pwd):/w {more} vllm/vllm-openai:v0.9 {args}"
TASK = """
name: llama
envs: {MODEL: meta-llama/Llama-3.1-8B-Instruct}
service: {replicas: 3}
resources: {accelerators: "A100-80GB:4"}
setup: pip install vllm
run: |
  vllm serve $MODEL --tensor-parallel-size $SKYPILOT_NUM_GPUS_PER_NODE --max-num-seqs 64 &
  while ! curl -s localhost:8000/health; do sleep 5; done
"""


def judged(given: Manifests) -> tuple[Engine, dict[str, tuple[str, str, int | None]]]:
    (engine,) = audit(given, load_thresholds()).engines
    return engine, {one.check: (one.status, one.reason, one.place.line) for one in engine.findings}


def test_a_script_is_an_engine_of_its_machine_with_annotations_in_comments() -> None:
    engine, found = judged(read(SERVE, "deploy/serve.sh"))
    assert (engine.title, engine.model, engine.resources.gpu) == ("script/serve.sh", "Qwen/Qwen3-8B", "H100")
    assert found["input-tokens"][2] == 7
    assert found["gpus"] == ("pass", "the command needs 2, and gets all of the machine", 1)
    assert found["shared-memory"][:2] == ("pass", "the machine's own /dev/shm")
    assert [found[check][0] for check in ("replicas", "memory-request")] == ["fail", "pass"]


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        ("all", ("pass", "the command needs 2, and gets all of the machine")),
        ("2", ("pass", "2, as the command needs")),
        ("'\"device=0,3\"'", ("pass", "2, as the command needs")),
        ("device=0", ("fail", "the command needs 2 GPUs and gets 1: it does not start")),
        ("none --device=/dev/kfd", ("pass", "the command needs 2, and gets all of the machine")),
    ],
)
def test_the_gpus_of_a_container_are_those_passed_to_it(gpus: str, expected: tuple[str, str]) -> None:
    script = RUN.format(gpus=gpus, more="", args="--model x --tensor-parallel-size=2")
    assert judged(read(script, "run.sh"))[1]["gpus"][:2] == expected


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("CUDA_VISIBLE_DEVICES=0 vllm serve x -tp 2", "fail"),
        ("export HIP_VISIBLE_DEVICES=2,3\nvllm serve x -tp 2", "pass"),
        ("docker run --runtime=nvidia -e NVIDIA_VISIBLE_DEVICES=0 vllm/vllm-openai --model x -tp 2", "fail"),
        ("podman run --device nvidia.com/gpu=0 --device nvidia.com/gpu=1 vllm/vllm-openai --model x -tp 2", "pass"),
        ("docker run vllm/vllm-openai --model x", "fail"),
        ("docker run --privileged vllm/vllm-openai --model x", "unknown"),
        ("#!/bin/sh\n#SBATCH --gres=gpu:2\nTP=$(nvidia-smi -L | wc -l)\nvllm serve x -tp $TP", "pass"),
        ("#!/bin/sh\n#SBATCH --gres=gpu:2\nvllm serve x -tp $SLURM_GPUS_ON_NODE", "pass"),
        ("#!/bin/sh\n#SBATCH --gres=gpu:2\nvllm serve x -tp $(nvidia-smi --format=csv | wc -l)", "unknown"),
        ("vllm serve x -tp $(nvidia-smi -L | wc -l)", "unknown"),
    ],
)
def test_the_gpus_of_a_process_are_those_that_it_sees(script: str, status: str) -> None:
    assert judged(read(script, "run.sh"))[1]["gpus"][0] == status


@pytest.mark.parametrize(
    ("more", "status"), [("", "fail"), ("--ipc=private", "fail"), ("--ipc=host", "pass"), ("--shm-size 16g", "pass")]
)
def test_the_shared_memory_of_a_container_is_its_own(more: str, status: str) -> None:
    script = RUN.format(gpus="all", more=more, args="--model x --tensor-parallel-size=2")
    assert judged(read(script, "run.sh"))[1]["shared-memory"][0] == status


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("docker run vllm/vllm-openai --model x", ("--model", "x")),
        ("sudo podman run -it --rm -e A=B -v/a:/b vllm/vllm-openai --model x", ("--model", "x")),
        ("docker run --name vllm --network=host --init vllm/vllm-openai:v1 -tp 2", ("-tp", "2")),
        ("docker run --entrypoint python3 image -m vllm.entrypoints.openai.api_server --model x", ("--model", "x")),
        ("docker run --name vllm ubuntu", None),
        ("docker run vllm/vllm-openai bash", None),
        ("docker pull vllm/vllm-openai", None),
        ("docker run -v", None),
        ("sudo", None),
    ],
)
def test_the_server_of_a_container_is_that_of_its_image(command: str, arguments: tuple[str, ...] | None) -> None:
    found = launch(tuple(command.split()))
    assert (None if found is None else found[1].arguments) == arguments


def test_a_task_of_skypilot_has_its_variables_and_gpus() -> None:
    engine, found = judged(read(TASK, "task.yaml"))
    assert (engine.title, engine.model, engine.resources.gpu) == (
        "task/llama",
        "meta-llama/Llama-3.1-8B-Instruct",
        "A100-80GB",
    )
    assert found["gpus"] == ("pass", "4, as the command needs", 7)
    assert found["replicas"] == ("pass", "replicas: 3", 4)
    assert found["max-num-seqs"][2] == 8


@pytest.mark.parametrize("accelerators", ["{'L4:8': , 'A100:4': }", "3", ""])
def test_gpus_that_skypilot_may_choose_are_not_known(accelerators: str) -> None:
    engine, found = judged(read(TASK.replace('"A100-80GB:4"', accelerators), "task.yaml"))
    assert (engine.resources.gpu, engine.resources.gpus, found["gpus"][0]) == ("", None, "unknown")


@pytest.mark.parametrize("script", ["echo vllm serve x", "run: 3", "pip install vllm\n"])
def test_a_script_that_starts_nothing_is_no_engine(script: str) -> None:
    assert not audit(read(script, "x.sh") + read(f"run: {script!r}", "t.yaml"), load_thresholds()).engines

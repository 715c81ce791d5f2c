"""Formats beside Kubernetes', in the forms in which public repositories have them: limits, and the GPUs asked for."""

from __future__ import annotations

import textwrap

import pytest

from kvpressure.config.thresholds import load_thresholds
from kvpressure_planner.audit import audit, read

FULL = {"max_model_len": 16384.0, "max_num_seqs": 64.0, "gpu_memory_utilization": 0.92}
WHOLE = "the command needs 1, and gets all of the machine"
NOT_GIVEN = "the command needs 1; how many it gets is not given here"
ONE = "1, as the command needs"

FILES: dict[str, tuple[str, dict[str, float], str]] = {
    "llm.nomad.hcl": (
        """
        job "llm" {
          group "vllm" {
            count = 2
            task "server" {
              driver = "docker"
              config {
                image = "vllm/vllm-openai:v0.11.0"
                args = [
                  "--model", "Qwen/Qwen3-14B", "--max-model-len=16384",
                  "--gpu-memory-utilization", "0.92",
                  # "--max-num-seqs", "999",
                  "--max-num-seqs", "64",
                ]
              }
              resources {
                memory = 65536
                device "nvidia/gpu" { count = 1 }
              }
            }
          }
        }
        """,
        FULL,
        "1, as the command needs",
    ),
    "main.tf": (
        """
        resource "aws_instance" "gpu" {
          instance_type = "g5.2xlarge"
          user_data = <<-EOT
            #!/bin/bash
            docker run -d --gpus all --ipc=host -e HF_TOKEN=${var.hf_token} \\
              vllm/vllm-openai:v0.11.0 --model Qwen/Qwen3-14B --max-model-len 16384 \\
              --gpu-memory-utilization 0.92 --max-num-seqs 64
          EOT
        }
        """,
        FULL,
        WHOLE,
    ),
    "nim.sh": (
        """
        #!/bin/bash
        Repository=nim/meta/llama-3.1-8b-instruct
        export IMG_NAME="nvcr.io/${Repository}:1.3.0"
        docker run -d --runtime=nvidia --gpus all -e NIM_KVCACHE_PERCENT=0.2 -e NIM_MAX_MODEL_LEN=4096 \\
          -v "$LOCAL_NIM_CACHE:/opt/nim/.cache" -u $(id -u) -p 8021:8000 $IMG_NAME
        """,
        {"max_model_len": 4096.0, "gpu_memory_utilization": 0.2},
        WHOLE,
    ),
    "nim.yaml": (
        """
        apiVersion: apps.nvidia.com/v1alpha1
        kind: NIMService
        metadata: {name: llama3, namespace: nim}
        spec:
          image: {repository: nvcr.io/nim/meta/llama-3.1-8b-instruct, tag: "1.8.5"}
          replicas: 2
          env: [{name: NIM_MAX_MODEL_LEN, value: "16384"}]
          resources: {limits: {nvidia.com/gpu: 1}}
        """,
        {"max_model_len": 16384.0},
        "1, as the command needs",
    ),
    "runpod.tf": (
        """
        resource "runpod_template" "vllm" {
          image_name = "runpod/worker-v1-vllm:v2.7.0stable-cuda12.1.0"
          env = {
            MODEL_NAME             = "Qwen/Qwen3-14B"
            MAX_MODEL_LEN          = "16384"
            GPU_MEMORY_UTILIZATION = "0.92"
            MAX_NUM_SEQS           = "64"
          }
        }
        """,
        FULL,
        ONE,
    ),
    "template.json": (
        """
        {"input": {"name": "vLLM", "imageName": "runpod/worker-v1-vllm:v2.7.0stable-cuda12.1.0", "dockerArgs": "",
         "env": [{"key": "MODEL_NAME", "value": "Qwen/Qwen3-14B"}, {"key": "MAX_MODEL_LEN", "value": "16384"},
                 {"key": "MAX_NUM_SEQS", "value": "64"}, {"key": "GPU_MEMORY_UTILIZATION", "value": "0.92"}]}}
        """,
        FULL,
        ONE,
    ),
    "playbook.yaml": (
        """
        - hosts: gpu
          vars: {vllm_model: Qwen/Qwen3-14B, vllm_max_len: 16384}
          tasks:
            - name: Start vLLM
              community.docker.docker_container:
                name: vllm
                image: vllm/vllm-openai:v0.11.0
                restart_policy: unless-stopped
                device_requests: [{driver: nvidia, count: -1, capabilities: [["gpu"]]}]
                command:
                  - --model={{ vllm_model }}
                  - --max-model-len={{ vllm_max_len }}
                  - --gpu-memory-utilization=0.92
                  - --max-num-seqs=64
        """,
        FULL,
        WHOLE,
    ),
    "copied-unit.yaml": (
        """
        - hosts: all
          tasks:
            - ansible.builtin.copy:
                dest: /etc/systemd/system/vllm.service
                content: |
                  [Service]
                  ExecStart=/opt/vllm/bin/vllm serve Qwen/Qwen3-14B --max-num-seqs 48 --max-model-len 32768
        """,
        {"max_model_len": 32768.0, "max_num_seqs": 48.0},
        WHOLE,
    ),
    "server.sbatch": (
        """
        #!/bin/bash
        #SBATCH --gres gpu:nvidia_rtx_a6000:4
        #SBATCH --mem=128G
        . .venv/bin/activate
        python3 -m vllm.entrypoints.openai.api_server --model codellama/CodeLlama-13b-hf --tensor-parallel-size 4 \\
          --max-num-seqs 2000
        """,
        {"max_num_seqs": 2000.0},
        "4, as the command needs",
    ),
    "apptainer.sh": (
        """
        #!/bin/bash
        #SBATCH -G A100:4
        export MODEL=${MODEL:-meta-llama/Llama-3.3-70B-Instruct}
        apptainer exec --nv --cleanenv --bind $HF_HOME:/hf /scratch/vllm.sif \\
          vllm serve "$MODEL" --tensor-parallel-size 4 --max-model-len 32768 > logs/vllm.log 2>&1 &
        until curl -sf localhost:8080/health; do sleep 5; done
        """,
        {"max_model_len": 32768.0},
        "4, as the command needs",
    ),
    "srun.sh": (
        """
        #!/bin/bash
        srun -p gpu --gres=gpu:8 --cpus-per-task=1 -n1 --job-name=judge \\
        vllm serve /models/Qwen2.5-72B-Instruct --gpu-memory-utilization 0.8 --tensor-parallel-size 8
        """,
        {"gpu_memory_utilization": 0.8},
        "8, as the command needs",
    ),
    "vllm.container": (
        """
        [Container]
        Image=docker.io/vllm/vllm-openai:v0.11.0
        AddDevice=nvidia.com/gpu=all
        ShmSize=16g
        Exec=--model Qwen/Qwen3-14B \\
          --max-model-len 16384 --max-num-seqs 64
        """,
        {"max_model_len": 16384.0, "max_num_seqs": 64.0},
        WHOLE,
    ),
    "vllm.service": (
        """
        [Service]
        EnvironmentFile=-/etc/vllm.env
        ExecStartPre=-/usr/bin/docker rm -f vllm
        ExecStart=/usr/bin/docker run --rm --name vllm --gpus all --ipc=host -p 8000:8000 \\
            vllm/vllm-openai:v0.11.0 --model Qwen/Qwen3-14B --max-model-len 16384
        Restart=always
        """,
        {"max_model_len": 16384.0},
        WHOLE,
    ),
    "config.json": (
        """
        {"ociVersion": "1.0.2", "root": {"path": "rootfs"}, "process": {"cwd": "/", "env": ["PATH=/bin"],
         "args": ["vllm", "serve", "Qwen/Qwen3-14B", "--max-model-len", "16384", "--max-num-seqs", "64"]}}
        """,
        {"max_model_len": 16384.0, "max_num_seqs": 64.0},
        NOT_GIVEN,
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_what_is_written_in_a_file_of_another_format_is_known(name: str) -> None:
    written, limits, gpus = FILES[name]
    report = audit(read(textwrap.dedent(written).lstrip(), name), load_thresholds())
    (engine,) = report.engines
    assert {key: limit.value for key, limit in engine.reading.limits.items()} == limits
    assert next(one.reason for one in engine.findings if one.check == "gpus") == gpus
    assert not report.problems

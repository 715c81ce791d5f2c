from typing import Any

import pytest
import yaml

from kvpressure_planner.audit import find_engines, read
from kvpressure_planner.audit.checks.resources import replicas
from kvpressure_planner.audit.engine import Engine
from tests.support.tools import FIXTURES


def service(**spec: Any) -> list[Engine]:
    return find_engines(read(yaml.safe_dump({"services": {"s": {"image": "vllm/vllm-openai:v1", **spec}}}), "c.yaml"))[
        0
    ]


def test_services_with_a_server_are_engines_and_others_are_not() -> None:
    text = (FIXTURES / "manifests" / "compose.yaml").read_text()
    llama, qwen = find_engines(read(text, "compose.yaml"))[0]
    assert (llama.title, llama.model, llama.resources.gpu, llama.resources.gpus) == (
        "compose/llama",
        "meta-llama/Llama-3.3-70B-Instruct",
        "H100",
        1,
    )
    assert (llama.reading.limits["max_num_seqs"].value, llama.limit_place("max_num_seqs").line) == (64, 7)
    assert llama.resources.memory == {"requests": "32G"}
    assert (qwen.resources.gpus, qwen.resources.shared_memory, qwen.replicas.count) == (2, "shm_size: 16gb", 2)
    assert qwen.reading.limits["max_model_len"].value == 32_000


def test_what_services_share_by_a_merge_key_is_read() -> None:
    text = "x-vllm: &vllm {image: vllm/vllm-openai:v1, shm_size: 16gb}\n"
    text += "services:\n  chat:\n    <<: *vllm\n    command: [--model, m]\n"
    (engine,) = find_engines(read(text, "c.yaml"))[0]
    assert (engine.model, engine.resources.shared_memory) == ("m", "shm_size: 16gb")


@pytest.mark.parametrize("command", ["--model m --max-num-seqs 8", ["--model", "m", "--max-num-seqs", "8"]])
def test_a_command_may_be_a_text_or_a_list(command: object) -> None:
    (engine,) = service(command=command)
    assert (engine.model, engine.reading.limits["max_num_seqs"].value) == ("m", 8)


def test_an_entrypoint_and_variables_are_read_as_in_a_pod() -> None:
    (engine,) = service(
        image="mine", entrypoint="vllm serve m --max-num-seqs $N", environment=["N=9"], labels=["kvpressure.io/gpu=L4"]
    )
    assert (engine.model, engine.resources.gpu) == ("m", "L4")


@pytest.mark.parametrize(
    ("spec", "gpus"),
    [
        ({"gpus": "all"}, "all"),
        ({"gpus": [{"driver": "nvidia", "count": 2}]}, 2),
        ({"deploy": {"resources": {"reservations": {"devices": [{"capabilities": ["gpu"]}]}}}}, "all"),
        ({"deploy": {"resources": {"reservations": {"devices": [{"capabilities": ["tpu"], "count": 4}]}}}}, 0),
        ({}, 0),
        ({"extends": {"service": "gpu"}}, None),
    ],
)
def test_reserved_gpus_are_counted(spec: dict[str, Any], gpus: object) -> None:
    assert service(**spec)[0].resources.gpus == gpus


@pytest.mark.parametrize(
    ("spec", "shared"),
    [({"ipc": "host"}, "ipc: host"), ({"shm_size": "8gb"}, "shm_size: 8gb"), ({"ipc": "private"}, "")],
)
def test_what_makes_shared_memory_larger_is_found(spec: dict[str, Any], shared: str) -> None:
    assert service(**spec)[0].resources.shared_memory == shared


@pytest.mark.parametrize(
    "services", [None, [], {"a": None}, {"a": {"image": 3, "command": {"x": 1}}}, {"a": {"command": "'"}}]
)
def test_careless_files_hold_no_engine_and_break_nothing(services: object) -> None:
    assert find_engines(read(yaml.safe_dump({"services": services}), "c.yaml"))[0] == []


def test_a_second_server_is_no_number_where_it_needs_a_port_and_gpus_of_its_own() -> None:
    (engine,) = service(command="--model m", ports=["8000:8000"])
    verdict = replicas(engine, None)  # type: ignore[arg-type]
    assert (verdict.status, verdict.fix) == ("fail", "")
    assert "a port of its own" in verdict.reason


def test_defaults_of_variables_are_taken_and_others_stay_open() -> None:
    command = (
        "--model ${MODEL:-m} --max-num-seqs ${SEQS:-8} --max-model-len ${LEN} --gpu-memory-utilization ${SHARE:-0.8}"
    )
    services = {
        "s": {
            "image": "vllm/vllm-openai:${TAG:-v1}",
            "command": command,
            "scale": "${N:-2}",
            "environment": {"LEN": "4096"},
        }
    }
    text = yaml.safe_dump({"services": services})
    (engine,) = find_engines(read(text, "c.yaml"))[0]
    assert {name: one.value for name, one in engine.reading.limits.items()} == {
        "max_num_seqs": 8,
        "gpu_memory_utilization": 0.8,
    }
    assert engine.model == "m"
    assert list(engine.reading.unclear) == ["max_model_len"], "a variable of the container is not one of compose"
    assert engine.replicas.count == 2
    (engine,) = find_engines(read(text, "c.yaml", {"SEQS": "16"}))[0]
    assert engine.reading.limits["max_num_seqs"].value == 16

from typing import Any

import pytest
import yaml

from kvpressure_planner.audit import find_engines, read
from kvpressure_planner.audit.engine import Engine
from tests.support.tools import FIXTURES


def engines(file: str) -> list[Engine]:
    return find_engines(read((FIXTURES / "manifests" / file).read_text(), file))[0]


def test_the_configuration_in_a_ray_services_text_is_read_with_its_lines() -> None:
    first, second = engines("ray-service.yaml")
    assert (first.title, first.container, first.model) == ("RayService/chat", "qwen3-30b", "Qwen/Qwen3-30B-A3B")
    limits = {name: limit.value for name, limit in first.reading.limits.items()}
    assert limits == {"gpu_memory_utilization": 0.6, "max_model_len": 16_384, "max_num_seqs": 16}
    lines = (FIXTURES / "manifests" / "ray-service.yaml").read_text().split("\n")
    for name in limits:
        place = first.limit_place(name)
        assert name in lines[place.line - 1]
    assert (first.resources.gpu, second.resources.gpu, second.annotations["kvpressure.io/prompt-p95"]) == (
        "H100",
        "L40S",
        "3000",
    )
    assert (first.replicas.count, first.replicas.ceiling, second.replicas.count) == (1, 4, 2)


def test_a_serve_config_and_an_llm_config_by_itself_are_read() -> None:
    assert [(one.title, one.model, one.resources.gpu) for one in engines("ray-serve.yaml")] == [
        ("ray/Qwen/Qwen3-8B", "Qwen/Qwen3-8B", "A100-40G"),
        ("ray/gpt-oss", "openai/gpt-oss-120b", "H100"),
    ]
    assert engines("ray-serve.yaml")[1].reading.limits["max_output_tokens"].value == 2000


@pytest.mark.parametrize(
    "text", ["", "applications: 3", "[", "applications: [{args: {llm_configs: [x, 3, {}]}}]", "a: &b [*b]"]
)
def test_text_that_is_no_configuration_holds_no_engine(text: str) -> None:
    given = read(
        yaml.safe_dump({"kind": "RayService", "metadata": {"name": "x"}, "spec": {"serveConfigV2": text}}), "f"
    )
    assert find_engines(given)[0] == []


def config(**fields: Any) -> list[Engine]:
    llm = {"model_loading_config": {"model_id": "m"}, **fields}
    return find_engines(read(yaml.safe_dump(llm), "f.yaml"))[0]


def test_another_engine_is_not_taken_for_the_assumed_one() -> None:
    assert len(config(llm_engine="vLLM")) == 1
    assert config(llm_engine="other") == []


def test_keyword_arguments_are_options_and_what_is_false_is_none() -> None:
    (engine,) = config(
        engine_kwargs={"max_num_seqs": 8, "enable_expert_parallel": True, "dtype": None, "headless": False}
    )
    assert engine.reading.limits["max_num_seqs"].value == 8
    assert set(engine.reading.options) == {"max-num-seqs", "enable-expert-parallel"}


def test_a_ray_service_of_python_code_is_named_where_it_serves_with_the_engine() -> None:
    service = """
kind: RayService
metadata: {name: code}
spec:
  serveConfigV2: |
    applications:
      - {name: llm, import_path: "serve:model", runtime_env: {pip: ["vllm==0.5.4"]}}
"""
    (problem,) = map(str, find_engines(read(service, "f"))[1])
    assert problem.startswith(
        "f:5: the applications of RayService code are Python code, which sets its engine's options"
    )
    assert find_engines(read(service.replace("vllm", "torch"), "f")) == ([], [])

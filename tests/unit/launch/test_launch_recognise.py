import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.starts import is_engine, serving_port

OFFICIAL = "vllm/vllm-openai:v0.10.1"


@pytest.mark.parametrize(
    ("image", "command", "args"),
    [
        (OFFICIAL, [], []),
        (OFFICIAL, [], ["--model", "m"]),
        (OFFICIAL, [], ["meta-llama/Llama-3.1-8B"]),
        ("registry.example.com:5000/mirror/vllm-openai@sha256:00", [], ["--model=m"]),
        ("lmcache/vllm-openai:latest", [], ["--model=m"]),
        ("ghcr.io/llm-d/llm-d:v0.2.0", [], ["--model=m"]),
        ("ghcr.io/llm-d/llm-d-cuda:v0.4.0", [], []),
        ("ghcr.io/llm-d/llm-d-dev:v0.2.2", ["vllm", "serve", "/mnt/models"], []),
        ("rocm/vllm:latest", ["vllm", "serve", "m"], []),
        ("rocm/vllm:latest", [], ["vllm", "serve", "m"]),
        ("registry.redhat.io/rhaiis/vllm-cuda-rhel9:3", [], ["--model=m"]),
        ("anything", ["python3", "-m", "vllm.entrypoints.openai.api_server"], ["--model", "m"]),
        ("anything", ["python3", "-m", "vllm.entrypoints.cli.main", "serve", "m"], []),
        ("anything", ["/opt/venv/bin/vllm"], ["serve", "m"]),
        ("anything", ["sh", "-c", "vllm serve m"], []),
        ("anything", ["/bin/bash", "-c"], ["set -e\nexec /usr/local/bin/vllm serve m \\\n  --port 9000"]),
        ("anything", ["bash", "-lc", "ray start --head && vllm serve m --distributed-executor-backend ray"], []),
        ("anything", ["tini", "--", "vllm", "serve", "m"], []),
        ("anything", ["env", "A=1", "numactl", "-N", "0", "vllm", "serve", "m"], []),
        ("anything", ["bash", "-c", 'eval "vllm serve m ${VLLM_ADDITIONAL_ARGS}"'], []),
        ("anything", ["sh", "-c", 'exec vllm serve "$@"', "--"], ["m", "--port", "9"]),
        (OFFICIAL, ["/entrypoint/vllm-entrypoint.sh"], []),
        ("kserve/huggingfaceserver:v0.15.0-gpu", [], ["--model_name=m"]),
        ("huggingfaceserver:replace", [], ["--model_id={{.Name}}"]),
    ],
)
def test_servers_are_recognised(image: str, command: list[str], args: list[str]) -> None:
    assert is_engine(image, command, args)


@pytest.mark.parametrize(
    ("image", "command", "args"),
    [
        ("", [], []),
        ("nginx", ["nginx"], []),
        ("lmcache/lmstack-router:latest", [], []),
        ("example.com/vllm-router:1", [], ["--service-discovery=k8s"]),
        ("vllm/production-stack-router:1", [], []),
        ("example.com/vllm-openai-exporter:1", [], []),
        ("example.com/notvllm:1", [], []),
        ("example.com/vllm-dashboard:1", [], []),
        ("example.com/vllm/grafana:1", [], []),
        ("ghcr.io/llm-d/llm-d-inference-sim:v0.3", [], []),
        ("ghcr.io/llm-d/llm-d-inference-scheduler:v0.3", [], []),
        ("ghcr.io/llm-d/llm-d-routing-sidecar:v0.3", [], []),
        (OFFICIAL, ["sleep", "infinity"], []),
        (OFFICIAL, [], ["bench", "serve", "--model", "m"]),
        (OFFICIAL, ["vllm", "bench", "serve"], []),
        (OFFICIAL, ["python3", "benchmark_serving.py"], ["--model", "m"]),
        (OFFICIAL, ["bash", "-c", "echo vllm serve m; pip install vllm"], []),
        (OFFICIAL, ["bash", "-c", "ray start --address=$A --block"], []),
        (OFFICIAL, ["bash", "-c", "# vllm serve m\nsleep 9"], []),
        (OFFICIAL, ["vllm", "serve", "m", "--headless"], []),
        (OFFICIAL, ["/start/bench-client.sh"], []),
        ("rocm/vllm:latest", [], ["--model", "m"]),
        ("kserve/huggingfaceserver:v0.15.0-gpu", [], ["--backend=huggingface"]),
        ("kserve/huggingfaceserver:v0.15.0", [], ["--model_name=m"]),
    ],
)
def test_what_merely_looks_like_one_is_not(image: str, command: list[str], args: list[str]) -> None:
    assert not is_engine(image, command, args)


@pytest.mark.parametrize(
    ("command", "args", "env", "port"),
    [
        ([], ["--port", "9000"], {}, 9000),
        ([], ["--port=9000"], {}, 9000),
        ([], ["--port=9000", "--port", "9001"], {}, 9001),
        ([], ["--port=$(PORT)"], {"PORT": "9002"}, 9002),
        ([], ["--port=$(PORT)"], {}, None),
        (["vllm", "serve", "m"], ["--port", "9003"], {}, 9003),
        (["sh", "-c", "vllm serve m --port ${P:-9004}"], [], {}, 9004),
        (["sh", "-c", "ray start --port=6379; vllm serve m"], [], {}, None),
        (["sh", "-c", "vllm serve a --port 1 & vllm serve b --port 2"], [], {}, None),
        (["python3", "-m", "vllm.entrypoints.openai.api_server", "--port", "9005"], [], {}, 9005),
        (["python3", "-m", "huggingfaceserver"], ["--http_port=9006"], {}, 9006),
        (["python3", "-m", "huggingfaceserver"], [], {}, 8080),
        ([], ["--served-model-name", "m"], {}, None),
        ([], ["--port", "http"], {}, None),
        ([], ["--port", "70000"], {}, None),
        ([], [], {}, None),
    ],
)
def test_the_port_is_the_one_of_the_api(
    command: list[str], args: list[str], env: dict[str, str], port: int | None
) -> None:
    assert serving_port(command, args, env) == port


def test_the_variable_for_internal_use_is_not_the_port_of_the_api() -> None:
    assert serving_port(["vllm", "serve", "m"], [], {"VLLM_PORT": "5555"}) is None


def test_the_port_may_stand_in_a_configuration_file() -> None:
    assert serving_port([], ["--config", "/c.yaml"], {}, {"/c.yaml": "port: 9007\n"}) == 9007


def test_a_variable_may_name_the_server_or_make_a_worker_of_it() -> None:
    assert is_engine("anything", ["sh", "-c", "$RUN --port 1"], [], {"RUN": "vllm serve m"})
    assert not is_engine("anything", ["sh", "-c", "vllm serve m $ROLE"], [], {"ROLE": "--headless"})


def test_the_port_may_be_appended_by_the_entrypoint() -> None:
    assert serving_port([], ["--port", "1"], {"VLLM_ADDITIONAL_ARGS": "--port 9008"}) == 9008
    assert serving_port([], [], {"SM_VLLM_PORT": "9009"}) == 9009


@pytest.mark.parametrize("behind", ["; sleep 1 " * 20_000, " x" * 50_000, '; sh -c "$B"; eval "$B"'])
def test_a_server_counts_whatever_comes_behind_what_can_be_read(behind: str) -> None:
    script, env = f"vllm serve m --port 9000{behind}", {"B": 'sh -c "$B";' * 58}
    assert is_engine("anything", ["sh", "-c", script], [], env)
    assert serving_port(["sh", "-c", script], [], env) is None
    kserve = script.replace("vllm serve", "python -m huggingfaceserver")
    assert serving_port(["sh", "-c", kserve], [], env) is None


@given(st.text(max_size=40), st.lists(st.text(max_size=30), max_size=4), st.lists(st.text(max_size=30), max_size=4))
def test_no_container_raises(image: str, command: list[str], args: list[str]) -> None:
    is_engine(image, command, args)
    serving_port(command, args, {})

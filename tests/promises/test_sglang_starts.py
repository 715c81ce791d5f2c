"""SGLang's starts, pods, logs, audits and plans are read and written in its own names."""

from __future__ import annotations

import pytest
from click.testing import CliRunner, Result

from kvpressure.cli import main
from kvpressure.commandline.words import Budget
from kvpressure.engines.reader import PageReader
from kvpressure.kubernetes.objects.annotations import PodAnnotations
from kvpressure.kubernetes.objects.containers import engine_containers, limits_of, ports_of, read_containers
from kvpressure.launch import read_limits, read_start, runtime_of, serving_port
from kvpressure.runtimes.runtime import GIB
from kvpressure.sources.logs.classify import StartUp
from kvpressure_planner.cli.plan.engine import engine_on
from tests.support.log_kinds import classify
from tests.support.models import MODELS
from tests.support.sglang_pages import lines
from tests.support.tools import FIXTURES

SERVE = ("python3", "-m", "sglang.launch_server", "--model-path", "qwen")


def run(*args: object) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


@pytest.mark.parametrize(
    ("image", "command", "args", "name"),
    [
        ("lmsysorg/sglang:v0.5.5", ["python3", "-m", "sglang.launch_server"], ["--model-path", "m"], "sglang"),
        ("mine", ["sh", "-c", "exec python -m sglang.launch_server --model-path m --port 8000"], [], "sglang"),
        ("mine", ["sglang", "serve"], ["--model-path", "m"], "sglang"),
        ("lmsysorg/sglang:latest", ["bash", "/scripts/start_server.sh"], [], "sglang"),
        ("lmsysorg/sglang:latest", ["sleep", "infinity"], [], None),
        ("lmsysorg/sglang:latest", [], [], None),
        ("lmsysorg/sglang-router:latest", ["bash", "/start.sh"], [], None),
        ("mine", [*SERVE, "--nnodes", "2", "--node-rank", "1"], [], None),
        ("mine", [*SERVE, "--nnodes", "2", "--node-rank", "0"], [], "sglang"),
        ("vllm/vllm-openai:v0.12.0", [], ["--model", "m"], "vllm"),
    ],
)
def test_a_containers_runtime_is_known_by_what_it_starts(
    image: str, command: list[str], args: list[str], name: str | None
):
    found = runtime_of(image, read_start(command, args, {}, Budget()))
    assert (None if found is None else found.name) == name


def test_limits_are_read_from_its_options_in_every_spelling():
    words = ["--mem-fraction-static", "0.9", "--max-running-requests=64", "--chunked-prefill-size", "4096"]
    start = read_start([*SERVE, *words, "--context-length=32768", "--max-total-tokens", "100000"], [], {}, Budget())
    reading = read_limits(start)
    assert {name: limit.value for name, limit in reading.limits.items()} == {
        "gpu_memory_utilization": 0.9,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 4096,
        "max_model_len": 32768,
        "kv_capacity_tokens": 100000,
    }
    assert reading.model == "qwen"
    assert reading.runtime.name == "sglang"


def test_a_configuration_file_stands_before_the_command_line():
    files = {"/etc/engine.yaml": "model-path: qwen\nmem-fraction-static: 0.9\nmax-running-requests: 32\n"}
    command = ["python3", "-m", "sglang.launch_server", "--config", "/etc/engine.yaml", "--max-running-requests", "16"]
    limits = read_limits(read_start(command, [], {}, Budget(), files)).limits
    assert limits["gpu_memory_utilization"].value == 0.9
    assert limits["max_num_seqs"].value == 16


@pytest.mark.parametrize(("words", "port"), [([], 30000), (["--port", "8000"], 8000), (["--port=x"], None)])
def test_its_port_is_its_own_unless_given(words: list[str], port: int | None):
    assert serving_port(read_start([*SERVE, *words], [], {}, Budget())) == port


def test_a_pod_that_runs_it_is_an_engine_with_its_port_and_limits():
    spec = {"name": "engine", "image": "lmsysorg/sglang:v0.5.5", "command": [*SERVE, "--max-running-requests", "64"]}
    pod = {"spec": {"containers": [spec, {"name": "sidecar", "image": "envoy"}]}, "status": {"phase": "Running"}}
    found = engine_containers(read_containers(pod), PodAnnotations(), selected=False, port_name="http")
    assert [one.name for one in found] == ["engine"]
    assert [port for _, port in ports_of(found, PodAnnotations(), port_name="http", port=8000)] == [30000]
    limits = limits_of(found[0], {})
    assert limits is not None
    assert [(limit.name, limit.value) for limit in limits] == [("max_num_seqs", 64.0)]


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("[2026-05-08 01:57:04 TP0] Scheduler hit an exception: Traceback (most recent call last):", "engine_dead"),
        ("[2026-05-08 01:57:04] Received sigquit from a child process. It usually means", "engine_dead"),
        ("KV cache pool is full. Retract requests. #retracted_reqs: 1, #new_token_ratio: 0.51 -> 0.98", "preemption"),
        ("RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.", "kv_exhausted"),
        ("Prefill out of memory. Try to lower your batch size.", "kv_exhausted"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "device_oom"),
        ("[2026-05-08 01:57:04 TP0] max_total_num_tokens=38141, chunked_prefill_size=8192, ", "kv_capacity"),
        ("[2026-05-08 01:57:05 TP0] Decode batch, #running-req: 4, #token: 477376, token usage: 0.90", None),
        ("[2026-05-08 01:57:05] Receive: obj=GenerateReqInput(text='Scheduler hit an exception: x')", None),
    ],
)
def test_its_log_lines_have_their_kind(line: str, kind: str | None):
    assert classify(line) == kind


def test_its_start_says_how_large_the_cache_is():
    start = StartUp()
    start.take("[2025-07-14 05:48:43] KV Cache is allocated. #tokens: 38141, K size: 2.33 GB, V size: 2.33 GB", 1.0)
    start.take("[2025-07-14 05:48:44] max_total_num_tokens=38141, chunked_prefill_size=2048, context_len=8192", 2.0)
    assert start.capacity_tokens == 38141
    assert start.bytes_per_token == pytest.approx(4.66 * GIB / 38141)


def test_the_audit_of_its_manifest_is_in_its_own_flags():
    result = run("audit", FIXTURES / "manifests/sglang.yaml", "--gpu", "L4")
    assert result.exit_code == 1
    assert "131,072 tokens, the model's own length" in result.output
    assert '"--context-length=9968"  # kvpressure plan --model meta-llama' in result.output
    assert "--runtime sglang" in result.output
    assert "64; the server would not start" in result.output
    assert "vllm" not in result.output.lower()


def test_a_plan_for_its_running_engine_comes_from_its_page():
    live = engine_on(PageReader().read(lines("kv-pressure")[-1].page, 1.0), "here")
    assert live.running.runtime.name == "sglang"
    assert live.running.pool.capacity_tokens == 150_000
    assert live.running.max_model_len == 131_072
    assert live.shape["output_p95"] is not None


def test_a_plan_names_its_flags_and_gives_the_pool_what_the_weights_leave():
    config = MODELS / "llama-3-8b.json"
    lengths = ("--prompt-p95", 3000, "--output-p95", 500, "--kv-cache-dtype", "fp8")
    result = run("plan", "--runtime", "sglang", "--model-config", config, "--gpu-memory", "80GiB", *lengths)
    assert result.exit_code == 0, result.output
    assert "Flags of sglang.launch_server" in result.output
    assert "--max-running-requests" in result.output
    assert "--mem-fraction-static 0.85 --kv-cache-dtype fp8_e4m3" in result.output
    assert "Activations" not in result.output
    assert "vllm" not in result.output.lower()

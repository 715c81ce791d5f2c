from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kvpressure.cli import main
from kvpressure.cli.say import CliError
from kvpressure.engines.reader import PageReader
from kvpressure.engines.recordings import TraceLine, read_trace
from kvpressure_planner.cli.plan.engine import engine_on
from tests.support.models import MODELS, config
from tests.support.tools import FIXTURES, check_golden

pytestmark = pytest.mark.recorded

LLAMA = ("--model-config", str(MODELS / "llama-3-8b.json"), "--gpu-memory", "80GiB")
LENGTHS = ("--prompt-p95", "4000", "--output-p95", "800")


def plan(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["plan", *arguments], catch_exceptions=False)


def planned(*arguments: str) -> dict[str, object]:
    answer = plan(*arguments, "--json")
    assert answer.exit_code == 0, answer.output
    read: dict[str, object] = json.loads(answer.stdout)
    return read


def page_of(trace: str, poll: int = -1) -> bytes:
    lines = [line for line in read_trace(FIXTURES / "traces" / f"{trace}.jsonl.xz") if isinstance(line, TraceLine)]
    return lines[poll].page


@contextmanager
def served(*pages: bytes) -> Iterator[str]:
    """An engine with these pages, then always the last, on a thread of its own: the command runs its loop in ours."""
    left = list(pages)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = left.pop(0) if len(left) > 1 else left[0]
            self.send_response(200 if self.path == "/metrics" else 404)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_the_plan_of_a_well_known_model_is_the_golden_one() -> None:
    answer = plan(*LLAMA, *LENGTHS, "--concurrency", "100")
    assert answer.exit_code == 0
    check_golden("plan_llama-3-8b.txt", answer.stdout)


def test_the_plan_of_windowed_layers_on_several_gpus_is_the_golden_one() -> None:
    model = ("--model-config", str(MODELS / "gemma-3-27b.json"), "--gpu-memory", "24GiB", "--tensor-parallel-size", "4")
    answer = plan(*model, *LENGTHS, "--kv-cache-dtype", "fp8")
    assert answer.exit_code == 0
    check_golden("plan_gemma-3-27b-fp8-4-gpus.txt", answer.stdout)


def test_a_type_of_cached_values_that_no_server_takes_is_none_to_choose() -> None:
    answer = plan(*LLAMA, *LENGTHS, "--kv-cache-dtype", "int8")
    assert (answer.exit_code, "'int8' is not one of 'auto'" in answer.output) == (2, True)


def test_every_line_fits_a_terminal() -> None:
    assert max(map(len, plan(*LLAMA, *LENGTHS).stdout.splitlines())) <= 120


def test_json_carries_flags_limits_and_every_step() -> None:
    answer = planned(*LLAMA, *LENGTHS)
    assert answer["flags"] == {
        "--max-num-seqs": "79",
        "--max-model-len": "8192",
        "--max-num-batched-tokens": "4096",
        "--gpu-memory-utilization": "0.9",
    }
    steps = answer["steps"]
    assert isinstance(steps, list)
    assert steps[0] == {
        "label": "KV cache per token",
        "formula": "2 (K, V) x 32 layers x 8 KV heads x 128 x 2 B",
        "value": 131072,
        "unit": "bytes",
    }


def test_flags_name_what_was_planned_with() -> None:
    answer = planned(*LLAMA, *LENGTHS, "--tensor-parallel-size", "2", "--kv-cache-dtype", "fp8")
    assert answer["flags"]["--tensor-parallel-size"] == "2"  # type: ignore[index]
    assert answer["flags"]["--kv-cache-dtype"] == "fp8"  # type: ignore[index]


@pytest.mark.parametrize("text", ["80GiB", "80", "80 gib", "81920MiB", "85.899345920GB"])
def test_sizes_are_understood_as_people_write_them(text: str) -> None:
    assert planned("--model-config", LLAMA[1], "--gpu-memory", text, *LENGTHS) == planned(*LLAMA, *LENGTHS)


def test_a_gpu_is_known_by_its_name_and_by_what_its_driver_leaves() -> None:
    by_name = planned(*LLAMA[:2], "--gpu", "h100", *LENGTHS)
    assert by_name["flags"] == planned(*LLAMA[:2], "--gpu-memory", "79.1GiB", *LENGTHS)["flags"]
    answer = plan(*LLAMA[:2], "--gpu", "A100", *LENGTHS)
    assert (answer.exit_code, "an A100 is A100-40 or A100-80" in answer.stderr) == (2, True)
    answer = plan(*LLAMA, "--gpu", "H100", *LENGTHS)
    assert (answer.exit_code, "not both" in answer.stderr) == (2, True)


def test_all_kinds_of_parallelism_become_flags() -> None:
    model = ("--model-config", str(MODELS / "qwen3-30b-a3b.json"), "--gpu", "L40S", *LENGTHS)
    answer = plan(
        *model,
        "--tensor-parallel-size",
        "2",
        "--pipeline-parallel-size",
        "2",
        "--data-parallel-size",
        "2",
        "--enable-expert-parallel",
    )
    assert answer.exit_code == 0
    expected = "--tensor-parallel-size 2 --pipeline-parallel-size 2 --data-parallel-size 2 --enable-expert-parallel\n"
    assert expected in answer.stdout
    assert "on 8 GPUs; for each of 2 data-parallel ranks" in answer.stdout


def test_what_the_server_refuses_ends_with_two_and_says_what_to_do() -> None:
    answer = plan(*LLAMA, *LENGTHS, "--tensor-parallel-size", "3")
    assert (answer.exit_code, answer.stdout) == (2, "")
    assert "vLLM refuses it; use one of 1, 2, 4, 8, 16\n" in answer.stderr


@pytest.mark.parametrize("size", ["50GiB", str(50 * 2**30)])
def test_weights_and_pool_as_logged_replace_the_estimates(size: str) -> None:
    answer = planned(*LLAMA, *LENGTHS, "--kv-cache-memory-bytes", size)
    assert answer["pool_tokens"] == 50 * 8192 - 16
    assert answer["warnings"] == []


def test_a_missing_field_is_named_with_the_file_and_ends_with_two(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config("llama-3-8b", hidden_size=..., torch_dtype=...)))
    answer = plan("--model-config", str(path), "--gpu-memory", "80GiB", *LENGTHS)
    assert (answer.exit_code, answer.stderr) == (2, f"{path}: missing hidden_size, torch_dtype\n")


def test_fields_for_the_weights_alone_are_not_asked_for_when_the_weights_are_given(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config("llama-3-8b", vocab_size=...)))
    assert plan("--model-config", str(path), "--gpu-memory", "80GiB", *LENGTHS, "--weights-gib", "15").exit_code == 0


@pytest.mark.parametrize(
    ("content", "said"), [(b"{", "is not JSON"), (b"[1]", "must hold one JSON object"), (b"\xff\xfe", "is not JSON")]
)
def test_a_file_that_is_no_configuration_ends_with_two(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    answer = plan("--model-config", str(path), "--gpu-memory", "80GiB", *LENGTHS)
    assert answer.exit_code == 2
    assert f"{path}: {said}" in answer.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (LENGTHS, "give --model-config or --model for a model, or --url or --kv-cache-tokens"),
        (("--url", "http://x", "--kv-cache-tokens", "1000", *LENGTHS), "not both"),
        (LLAMA, "missing --prompt-p95 and --output-p95"),
        ((*LLAMA, "--prompt-p95", "5"), "missing --output-p95"),
        (("--model-config", LLAMA[1], *LENGTHS), "--model-config needs --gpu, such as H100, or --gpu-memory"),
        ((*LLAMA, "--gpu-memory", "40GiB", "--tensor-parallel-size", "4", *LENGTHS), "given 2 times for 4 GPUs"),
        (
            ("--model-config", "nowhere.json", "--gpu-memory", "80GiB", *LENGTHS),
            "nowhere.json: cannot be read: No such file",
        ),
        (("--model-config", LLAMA[1], "--gpu-memory", "80 parsecs", *LENGTHS), "'80 parsecs' is not a size"),
        (("--model-config", LLAMA[1], "--gpu-memory", "-1GiB", *LENGTHS), "is not a size"),
    ],
)
def test_what_is_missing_is_named_and_ends_with_two(arguments: tuple[str, ...], said: str) -> None:
    answer = plan(*arguments)
    assert answer.exit_code == 2
    assert said in answer.stderr


def test_the_pool_as_logged_is_planned_with_and_without_the_model() -> None:
    alone = planned("--kv-cache-tokens", "100000", *LENGTHS)
    known = planned("--kv-cache-tokens", "100000", "--model-config", LLAMA[1], *LENGTHS)
    assert alone["max_num_seqs"] == known["max_num_seqs"] == int(100_000 * 0.9 / 4800)
    assert (alone["pool_bytes"], known["pool_bytes"]) == (None, 100_000 * 128 * 1024)


def test_a_plan_that_fits_nothing_has_no_flags_and_ends_with_one() -> None:
    answer = plan("--model-config", LLAMA[1], "--gpu-memory", "16GiB", *LENGTHS)
    assert answer.exit_code == 1
    assert "No flags" in answer.stdout
    assert "--max-num-seqs " not in answer.stdout


def test_a_running_engine_is_planned_from_its_page_alone() -> None:
    with served(page_of("full-batch")) as url:
        answer = planned("--url", url)
    assert answer["pool_tokens"] == 8192 - 32
    assert answer["max_num_seqs"] == int(8160 * 0.9 / answer["tokens_per_request"])  # type: ignore[operator]
    assert answer["gpu_memory_utilization"] == 0.92
    assert answer["memory_target"]["utilization"] == 0.7  # type: ignore[index]


def test_an_engine_may_be_named_by_host_and_port_and_credentials_are_never_repeated() -> None:
    with served(page_of("full-batch")) as url:
        assert planned("--url", url.removeprefix("http://"))["max_num_seqs"] == planned("--url", url)["max_num_seqs"]
    answer = plan("--url", "http://ada:secret@chat:8000")
    assert (answer.exit_code, "secret" in answer.stderr, "credentials" in answer.stderr) == (2, False, True)


def test_traffic_that_has_changed_since_the_server_started_is_told() -> None:
    with served(page_of("long-context-collapse")) as url:
        answer = planned("--url", url)
    assert answer["max_num_seqs"] == 10
    assert any("run now hold 3,232 tokens each" in warning for warning in answer["warnings"])  # type: ignore[attr-defined]


def test_the_requests_that_finish_while_we_look_replace_those_since_the_start() -> None:
    with served(page_of("long-context-collapse", 5), page_of("long-context-collapse")) as url:
        answer = planned("--url", url, "--duration", "0.01")
    assert answer["max_num_seqs"] == 1
    assert answer["tokens_per_request"] == answer["max_model_len"] == 4096
    assert not any("run now" in warning for warning in answer["warnings"])  # type: ignore[attr-defined]
    assert any("at the peak of 10 requests 9 wait" in warning for warning in answer["warnings"])  # type: ignore[attr-defined]


def test_a_server_that_restarts_while_we_look_counts_from_zero() -> None:
    later, earlier = (PageReader().read(page_of("long-context-collapse", poll), 1.0) for poll in (5, -1))
    assert engine_on(later, "here", earlier).shape == engine_on(later, "here").shape


def test_what_is_given_goes_before_what_the_page_says() -> None:
    with served(page_of("long-context-collapse")) as url:
        answer = planned("--url", url, "--prompt-p95", "500", "--output-p95", "100", "--max-model-len", "2000")
    assert (answer["tokens_per_request"], answer["max_num_seqs"]) == (608, int(8160 * 0.9 / 608))
    assert answer["max_model_len"] == 2000


def test_an_engine_without_finished_requests_needs_the_lengths() -> None:
    lines = page_of("idle").splitlines(keepends=True)
    fresh = b"".join(line for line in lines if not line.startswith((b"vllm:request_prompt", b"vllm:request_gener")))
    with served(fresh) as url:
        answer = plan("--url", url)
    assert answer.exit_code == 2
    assert "missing --prompt-p95 and --output-p95 (the engine has finished no request)" in answer.stderr


def test_an_engine_that_cannot_be_reached_is_named_and_ends_with_two() -> None:
    with served(b"") as url:
        pass
    answer = plan("--url", url)
    assert answer.exit_code == 2
    assert f"connection refused by {url}/metrics" in answer.stderr


def test_a_page_that_is_no_engines_is_named_and_ends_with_two() -> None:
    with served(b"<html>hello</html>\n") as url:
        answer = plan("--url", url)
    assert answer.exit_code == 2
    assert f"{url}: no metric of vLLM" in answer.stderr


def test_ranks_are_planned_one_by_one_from_the_traffic_of_all() -> None:
    page = PageReader().read(page_of("two-ranks"), 1.0)
    engine = engine_on(page, "here")
    assert engine.title.endswith("at here, for each of 2 ranks")
    assert engine.running.pool.capacity_tokens == 8192 - 32
    assert engine.shape["prompt_p95"] is not None


def test_a_page_without_a_capacity_names_the_fields_it_lacks() -> None:
    lines = page_of("idle").splitlines(keepends=True)
    page = b"".join(line for line in lines if not line.startswith(b"vllm:cache_config_info"))
    with pytest.raises(CliError, match="neither kv_cache_size_tokens nor num_gpu_blocks"):
        engine_on(PageReader().read(page, 1.0), "here")


LLAMA_H100 = ("--model", "meta-llama/Llama-3.1-8B", "--gpu", "H100")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((*LLAMA_H100, *LENGTHS, "--prompt-p50", "5000"), "--prompt-p50 5000 is above the p95 of 4000"),
        ((*LLAMA_H100, *LENGTHS, "--output-p50", "900"), "--output-p50 900 is above the p95 of 800"),
        (
            (*LLAMA_H100, "--prompt-p95", "200000", "--output-p95", "10"),
            "prompts of 200000 tokens do not fit the model's own length of 131072 tokens: vLLM refuses such requests",
        ),
        (
            (*LLAMA_H100, *LENGTHS, "--max-model-len", "4000"),
            "prompts of 4000 tokens do not fit --max-model-len 4000: vLLM refuses such requests",
        ),
        (("--model", "meta-llama/Llama-3.1-8B", *LENGTHS), "--model needs --gpu"),
        (("--model", "Lama-3.1-8B", "--gpu", "H100", *LENGTHS), "did you mean meta-llama/Llama-3.1-8B or"),
        (("--model", "Qwen/Qwen3-8", "--gpu", "H100", *LENGTHS), "did you mean Qwen/Qwen3-8B"),
        (("--model", "meta-llama/Llama-3.1-8B", "--gpu", "H101", *LENGTHS), "did you mean H100"),
        (("--model", "meta-llama/Llama-3.1-8B", "--gpu", "A100", *LENGTHS), "an A100 is A100-40 or A100-80"),
    ],
)
def test_what_nobody_can_mean_is_refused_with_what_may_be_meant(arguments: tuple[str, ...], said: str) -> None:
    answer = plan(*arguments)
    assert answer.exit_code == 2
    assert said in " ".join(answer.output.split())


def test_every_reason_of_a_refusal_has_its_line() -> None:
    answer = plan(*LLAMA_H100, *LENGTHS, "--tensor-parallel-size", "3")
    assert (answer.exit_code, len(answer.stderr.splitlines())) == (2, 2)
    assert "?" not in answer.stderr


def test_all_of_the_memory_is_planned_with_a_warning() -> None:
    assert "--gpu-memory-utilization 1 is above 0.95" in " ".join(
        plan(*LLAMA_H100, *LENGTHS, "--gpu-memory-utilization", "1.0").output.split()
    )
    assert "is above" not in plan(*LLAMA_H100, *LENGTHS, "--gpu-memory-utilization", "0.95").output


SESSIONS = ("--sessions", "40", "--context", "19000", "--think", "20s")


def test_sessions_are_planned_beside_the_limits():
    answer = plan("--kv-cache-tokens", "480000", *SESSIONS)
    assert answer.exit_code == 0
    for line in (
        "  working set     760,000 tokens",
        "  cliff  ",
        "  this pool       480,000 tokens find 2%: too small",
        "  pool   ",
        "  replicas        2, each",
        "  fewer sessions  at most 2",
        "  host memory  ",
        "  fp8 KV cache    finds 91%, if it is in 16 now: enough",
    ):
        assert line in answer.stdout
    found = planned("--kv-cache-tokens", "480000", *SESSIONS)["sessions"]
    assert isinstance(found, dict)
    assert found["load"]["think_seconds"] == 20
    assert found["working_set_tokens"] == pytest.approx(760_000, rel=0.05)


def test_sessions_on_a_model_are_told_in_gib_of_a_gpu():
    shown = plan(*LLAMA, "--sessions", "200", "--context", "4000", "--think", "1m", "--turns", "8").stdout
    assert shown.index("200 sessions that come back") < shown.index("GiB on each GPU") < shown.index("Arithmetic")
    assert "GiB for each GPU" in shown
    assert "more GPUs       --tensor-parallel-size 2" in shown


def test_sessions_alone_are_planned_without_a_pool():
    answer = plan(*SESSIONS)
    assert answer.exit_code == 0
    assert "  cliff  " in answer.stdout
    assert "give --model and --gpu" in answer.stdout
    assert planned(*SESSIONS)["sessions"]["on_pool"] is None


def test_a_pool_for_all_sessions_is_enough():
    shown = plan("--kv-cache-tokens", "1200000", *SESSIONS).stdout
    assert "tokens find 91%: enough" in shown
    assert "replicas" not in shown


def test_a_pool_that_holds_no_context_says_so():
    answer = plan("--kv-cache-tokens", "20000", *SESSIONS)
    assert "20,000 tokens do not hold one context to its end: too small" in answer.stdout


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--sessions", "40", "--context", "19000"), "missing: --think"),
        ((*SESSIONS[:-1], "soon"), "not a time such as 20s"),
        ((*SESSIONS[:-1], "-3"), "not a time such as 20s"),
    ],
)
def test_sessions_that_are_half_described_are_refused(arguments, why):
    answer = plan("--kv-cache-tokens", "480000", *arguments)
    assert answer.exit_code == 2
    assert why in answer.output

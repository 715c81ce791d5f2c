"""SGLang's recordings end in their cause, and advice is in its own flags and words."""

import json
from dataclasses import replace
from functools import cache

import pytest
from click.testing import CliRunner, Result

from kvpressure.advice.advise import advise
from kvpressure.advice.case import Place
from kvpressure.cli import main
from kvpressure.commandline.words import Budget
from kvpressure.config.settings import PollSettings
from kvpressure.config.target import Target
from kvpressure.config.thresholds import load_thresholds
from kvpressure.daemon.pollers import poll_names, tables_of
from kvpressure.engine_state import Pipeline, PipelineSettings
from kvpressure.engines.engine import EngineSource
from kvpressure.engines.reader import PageReader
from kvpressure.engines.recordings import TraceLine, read_trace
from kvpressure.exposition import runbooks
from kvpressure.kubernetes.objects.annotations import PodAnnotations
from kvpressure.kubernetes.objects.containers import engine_containers, limits_of, ports_of, read_containers
from kvpressure.launch import read_limits, read_start, runtime_of, serving_port
from kvpressure.model.action import Action
from kvpressure.model.samples import EnginePage, EngineSample
from kvpressure.model.verdict import Cause, Evidence
from kvpressure.model.view import EngineView
from kvpressure.runtimes.registry import named
from kvpressure.runtimes.runtime import GIB
from kvpressure.sources.logs.classify import StartUp
from kvpressure_planner.cli.plan.engine import engine_on
from tests.support import servers
from tests.support.log_kinds import classify
from tests.support.models import MODELS
from tests.support.servers import FaultServer
from tests.support.sglang_pages import PAGES, TARGET, lines, trace, views
from tests.support.tools import FIXTURES

MISSING = {
    "max_tokens",
    "request_max_tokens",
    "lost_tokens_total",
    "prefix_cache_hit_ratio",
    "prefix_cache_turnover_hit_ratio",
    "cache_eviction_age_min_seconds",
    "running_knee_requests",
}
"""Families that this runtime's pages say nothing for, not in so short a time, or not before a prefix was found."""


@cache
def last(name: str) -> tuple[EngineView, tuple[Action, ...]]:
    *_, view = views(name)
    place = Place(model_name=view.shown.model_name, runtime=view.runtime)
    return view, advise(view.diagnosis, view.derived, view.limits, place, load_thresholds())


def run(*args: object) -> Result:
    return CliRunner().invoke(main, [str(arg) for arg in args])


@pytest.mark.parametrize(
    ("name", "cause", "after"),
    [
        ("healthy", Cause.HEALTHY, 10),
        ("kv-pressure", Cause.KV_CACHE_PRESSURE, 130),
        ("concurrency-cap", Cause.CONCURRENCY_BOUND, 90),
    ],
)
def test_a_recording_ends_in_its_cause_and_stays_there(name: str, cause: Cause, after: int):
    causes = [view.diagnosis.cause for view in views(name) if view.diagnosis is not None]
    assert set(causes[after:]) == {cause}


def test_calm_traffic_before_the_pressure_is_healthy():
    causes = [view.diagnosis.cause for view in views("kv-pressure") if view.diagnosis is not None]
    assert set(causes[10:70]) == {Cause.HEALTHY}


def test_retractions_are_preemptions():
    assert any(
        view.diagnosis is not None and view.diagnosis.symptoms["preempting"].state for view in views("kv-pressure")
    )


def words(actions: tuple[Action, ...]) -> str:
    return json.dumps([[a.title, a.why, a.cost, a.current, a.new, a.checks, a.commands, a.flags] for a in actions])  # type: ignore[list-item]


def test_advice_against_pressure_is_in_its_own_flags_and_words():
    view, _ = last("kv-pressure")
    assert view.runtime == "sglang"
    rising = {"memory_rising": Evidence("memory_rising", True, "rising")}
    diagnosis = replace(view.diagnosis, symptoms={**view.diagnosis.symptoms, **rising})
    place = Place(model_name=view.shown.model_name, runtime=view.runtime)
    actions = advise(diagnosis, view.derived, view.limits, place, load_thresholds())
    apply = next(action for action in actions if action.key == "apply")
    assert set(apply.flags) >= {"--chunked-prefill-size"}
    assert set(apply.flags) <= {*named("sglang").advice.flags.limits.values(), "--schedule-conservativeness"}
    text = words(actions)
    assert "MODEL" not in text, "nobody starts a server without the rest of its flags"
    assert "--context-length=" in text
    assert "Leave mem-fraction-static" in text
    assert "vllm" not in text.lower()
    for flag in {*named("vllm").advice.flags.limits.values()} - {*named("sglang").advice.flags.limits.values()}:
        assert flag not in text


LAB = FIXTURES / "lab" / "sglang"


def on_the_lab(name: str) -> tuple[EngineView, tuple[Action, ...]]:
    pipeline, reader = Pipeline(PipelineSettings(), load_thresholds()), PageReader()
    for line in read_trace(LAB / f"{name}-0.5.23.jsonl.xz"):
        if isinstance(line, TraceLine):
            (view,) = pipeline.on_page(TARGET, reader.read(line.page, line.t))
    place = Place(model_name=view.shown.model_name, runtime=view.runtime)
    return view, advise(view.diagnosis, view.derived, view.limits, place, load_thresholds())


def test_a_reserve_for_longer_answers_than_there_are_is_named_with_its_cure():
    view, actions = on_the_lab("kv-reserved")
    assert (view.diagnosis.cause, view.diagnosis.detail) == (Cause.KV_CACHE_PRESSURE, "reserved")
    assert "max_tokens" in view.diagnosis.grounds
    assert actions[0].key == "ask_less"
    assert any(action.flags == {"--schedule-conservativeness": "0.3"} for action in actions)
    assert "cap_tokens" not in {action.key for action in actions}, "nobody has to be refused: the pool is half empty"


@pytest.mark.parametrize("name", ["healthy-half-reserved", "cap-requests"])
def test_a_reserve_for_which_there_is_room_is_nothing(name: str):
    view, _ = on_the_lab(name)
    assert view.diagnosis.cause in {Cause.HEALTHY, Cause.CONCURRENCY_BOUND}
    assert view.derived["admission_blocked_ratio"] == 0.0


def test_requests_that_are_retracted_get_a_larger_reserve():
    found: list[Action] = []
    for view in views("kv-pressure"):
        if view.diagnosis is not None and view.diagnosis.symptoms["preempting"].state:
            place = Place(runtime=view.runtime)
            found += advise(view.diagnosis, view.derived, view.limits, place, load_thresholds())
    assert any(action.flags.get("--schedule-conservativeness") == "1.3" for action in found)


def test_advice_at_the_cap_raises_its_flag():
    _, actions = last("concurrency-cap")
    assert actions[0].flags == {"--max-running-requests": "24"}


def test_advise_prints_its_flags_and_ends_with_one():
    result = run("triage", "--advice", "--trace", trace("kv-pressure"), "--namespace", "prod", "--workload", "llama")
    assert result.exit_code == 1, result.output
    assert "--context-length=" in result.output or "--kv-cache-dtype=fp8_e4m3" in result.output
    assert "vllm" not in result.output.lower()


def test_all_series_of_an_engine_are_there_but_those_that_its_page_cannot_tell():
    """Rules and dashboards are made of these families, whatever runtime they come from."""
    view, _ = last("kv-pressure")
    pipeline, reader = Pipeline(PipelineSettings(), load_thresholds()), PageReader()
    for line in read_trace(FIXTURES / "traces/long-context-collapse.jsonl.xz"):
        assert isinstance(line, TraceLine)
        (other,) = pipeline.on_page(TARGET, reader.read(line.page, line.t))
    assert other.runtime == "vllm"
    assert other.derived.keys() - view.derived.keys() == MISSING


def test_runbooks_say_what_it_calls_the_flags_in_them():
    text = runbooks.for_people("KVPressureCacheTooSmall")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    column = next(row for row in rows if row[0] == "vLLM").index("SGLang")
    assert next(row for row in rows if row[0] == "`--max-num-seqs`")[column] == "`--max-running-requests`"
    assert "--max-running-requests" in runbooks.page_html("KVPressureCacheTooSmall", {})
    assert "SGLang" not in runbooks.for_people("KVPressureSourceDown")


# SGLang's pages: the signals, capacity and ranks that are read from them, in every version.


def page(file: str) -> EnginePage:
    return PageReader().read((PAGES / file).read_bytes(), 1.0)


def sole(read: EnginePage) -> EngineSample:
    (engine,) = read.engines
    return engine


def test_a_page_of_the_newest_version_gives_its_signals_capacity_and_runtime():
    read = PageReader().read(lines("kv-pressure")[-1].page, 1.0)
    engine = sole(read)
    assert read.runtime == "sglang"
    assert read.started is None
    assert engine.engine == "0"
    assert engine.gauges.keys() == {"running", "waiting", "kv_usage", "free_tokens", "reserve_ratio"}
    assert engine.gauges["kv_usage"] > 0.9
    missing = {"steps", "rejected", "prefilled", "prefill_seconds", "accepted_draft_tokens", "prefix_hits"}
    assert not missing & engine.counters.keys()
    assert engine.counters["preemptions"] > 0
    assert engine.counters["generation_tokens"] > engine.counters["finished"]
    expected = {"e2e", "ttft", "inter_token", "queue", "request_prompt_tokens", "request_output_tokens"}
    assert engine.histograms.keys() == expected
    assert (engine.cache.capacity_tokens, engine.cache.block_size, engine.cache.max_model_len) == (150_000, 1, 131_072)
    assert engine.cache.gpu_memory_utilization is None


def test_every_name_that_is_read_is_one_that_some_version_declares():
    inventory = json.loads((PAGES / "inventory.json").read_text())
    old = {*inventory["scheduler"], *inventory["tokenizer"], *inventory["server"], "time_per_output_token_seconds"}
    declared = {f"sglang:{name}" for name in (*inventory["0.5.23"], *old)}
    for name in set(named("sglang").table.all_names()) - named("sglang").table.foreign_names():
        stems = {name, *(name.removesuffix(end) for end in ("_bucket", "_count", "_sum"))}
        assert stems & declared, name


def test_the_newest_version_declares_all_that_is_read_but_for_two_old_names():
    newest = {f"sglang:{name}" for name in json.loads((PAGES / "inventory.json").read_text())["0.5.23"]}
    table = named("sglang").table
    rows = [row.names for row in (*table.gauges, *table.counters, *table.cache)]
    stems = [{*names, *(name.removesuffix(end) for name in names for end in ("_count", "_sum"))} for names in rows]
    assert [names for names, found in zip(rows, stems, strict=True) if not found & newest] == []


def test_the_documented_page_of_an_old_version_gives_what_it_has_and_nothing_else():
    engine = sole(page("0.4.6-documented.prom"))
    assert dict(engine.gauges) == {"running": 162.0, "waiting": 2826.0, "kv_usage": 0.28}
    assert engine.counters["generation_tokens"] == 7.557572e06
    assert "preemptions" not in engine.counters
    assert engine.cache is None


def test_until_0_5_10_the_capacity_stands_in_labels():
    body = (PAGES / "0.4.6-documented.prom").read_text()
    body += 'sglang:cache_config_info{engine_type="unified",num_pages="2000",page_size="64"} 1.0\n'
    cache_config = sole(PageReader().read(body.encode(), 1.0)).cache
    assert (cache_config.block_size, cache_config.capacity_tokens) == (64, 128_000)


def test_a_constant_of_zero_says_nothing_and_a_new_one_counts():
    reader, body = PageReader(), (PAGES / "0.4.6-documented.prom").read_text()
    found = []
    for tokens in (0, 5000, 5000, 7000):
        constant = f'sglang:max_total_num_tokens{{model_name="meta-llama/Llama-3.1-8B-Instruct"}} {tokens}\n'
        cache_config = sole(reader.read(f"{body}{constant}".encode(), 1.0)).cache
        found.append(None if cache_config is None else cache_config.capacity_tokens)
    assert found == [None, 5000, 5000, 7000]


def test_ranks_that_compute_the_same_batch_count_once_and_priorities_are_part_of_the_whole():
    first, second = page("0.5.12-two-ranks-priorities.prom").engines
    assert (first.engine, second.engine) == ("0", "1")
    assert dict(first.gauges) == {"running": 7.0, "waiting": 4.0, "kv_usage": 0.91}
    computed = {"prompt_tokens": 4000.0, "prefill_tokens": 4000.0, "found_prompt_tokens": 50.0}
    assert dict(first.counters) == {"generation_tokens": 900.0, **computed}
    assert dict(second.gauges) == {"running": 2.0, "waiting": 0.0, "kv_usage": 0.2}
    assert (first.cache.capacity_tokens, first.cache.block_size) == (120_000, 64)


def test_what_the_whole_server_tells_is_no_single_ranks():
    assert all("finished" not in engine.counters for engine in page("0.5.12-two-ranks-priorities.prom").engines)


def test_a_page_of_another_runtime_is_that_ones():
    assert PageReader().read((FIXTURES / "pages/vllm-0.12.0-multiprocess.prom").read_bytes(), 1.0).runtime == "vllm"


def test_on_a_page_with_names_of_two_runtimes_most_series_decide():
    both = lines("healthy")[0].page + b'vllm:num_requests_running{engine="0",model_name="m"} 1.0\n'
    assert PageReader().read(both, 1.0).runtime == "sglang"


async def test_once_a_page_has_said_whose_it_is_only_that_runtimes_names_are_requested():
    async with FaultServer(servers.page(lines("healthy")[0].page)) as server:
        tables = tables_of(TARGET)
        source = EngineSource(Target("a", server.url), PageReader(tables), poll_names(tables), PollSettings())
        for _ in range(3):
            assert await source.poll() is not None, source.health().error
        requested = [request.names for request in server.requests]
        await source.aclose()
    assert requested[0] == ()
    assert requested[1]
    assert all(name.startswith(("sglang:", "process_start", "dynamo_component_errors")) for name in requested[1])
    assert set(requested[2]) == set(named("sglang").table.poll_names())


def test_passes_are_steps_whatever_graph_they_have():
    body = (
        'sglang:cuda_graph_passes_total{mode="decode_cuda_graph",tp_rank="0"} 70\n'
        'sglang:cuda_graph_passes_total{mode="decode_none",tp_rank="0"} 20\n'
        'sglang:cuda_graph_passes_total{mode="prefill_none",tp_rank="0"} 10\n'
        'sglang:cuda_graph_passes_total{mode="decode_cuda_graph",tp_rank="1"} 70\n'
        'sglang:cuda_graph_passes_total{mode="decode_none",tp_rank="1"} 20\n'
    )
    counters = sole(PageReader().read(body.encode(), 1.0)).counters
    assert (counters["steps"], counters["decode_steps"]) == (100, 90), "ranks count the same passes"


# SGLang's starts, pods, logs, audits and plans are read and written in its own names.


SERVE = ("python3", "-m", "sglang.launch_server", "--model-path", "qwen")


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
        ("nvcr.io/nvidia/tensorrt-llm/release:1.2.0", ["trtllm-serve", "m"], [], "trtllm"),
        ("mine", ["bash", "-c", "trtllm-serve serve m --port 9000"], [], "trtllm"),
        ("mine", ["trtllm-serve", "disaggregated", "-c", "c.yaml"], [], None),
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

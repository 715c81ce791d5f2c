"""TensorRT-LLM as modelled, and servers that are not read: pages, verdicts, advice and starts, in their own names."""

import json
import re
from collections.abc import Iterable, Iterator
from copy import deepcopy
from functools import partial

import pytest
from click.testing import CliRunner

from kvpressure.advice.advise import advise
from kvpressure.advice.case import Place
from kvpressure.cli import main
from kvpressure.commandline.words import Budget
from kvpressure.config.target import Target, container_of
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engine_state import Pipeline, PipelineSettings
from kvpressure.engines.reader import PageError, PageReader
from kvpressure.exposition.families import source_values
from kvpressure.launch import read_limits, read_start, serving_port
from kvpressure.model.environment import LOG_KINDS, Environment, LogReport
from kvpressure.model.samples import ENGINE_SOURCE, EngineSample, SourceHealth
from kvpressure.model.view import EngineView
from kvpressure.runtimes.registry import RUNTIMES, named
from kvpressure.simulation import calibrate
from kvpressure.simulation.steps import UnknownError
from tests.support.reserving_server import Load, Server, TimedPage, pages, triton, trtllm
from tests.support.tools import FIXTURES

TARGET = Target("gpu-7:8000", "http://gpu-7:8000")
NONE, LIGHT, HEAVY, MORE = Load(30), Load(60, 1.0), Load(60, 8.0), Load(60, 5.0)
SMALL_POOL, LARGE_POOL, SEATS = 8000, 80_000, 8
START = 1.8e9


def views(found: Iterable[TimedPage], kv_capacity_tokens: float | None = None) -> Iterator[EngineView]:
    """What is told of a target's pages; the log may have said how large its cache is."""
    pipeline, reader = Pipeline(PipelineSettings(), load_thresholds()), PageReader()
    for t, body in found:
        if kv_capacity_tokens:
            key = container_of(TARGET)
            log = LogReport(key, START + t, dict.fromkeys(LOG_KINDS, 0), kv_capacity_tokens=kv_capacity_tokens)
            pipeline.set_environment(START + t, Environment(logs={key: log}))
        yield from pipeline.on_page(TARGET, reader.read(body, START + t))


def last(found: Iterable[TimedPage], kv_capacity_tokens: float | None = None) -> tuple[str, str]:
    *_, view = views(found, kv_capacity_tokens)
    return str(view.diagnosis.cause), view.diagnosis.detail


def advised(view: EngineView) -> str:
    place = Place(model_name=view.shown.model_name, runtime=view.runtime)
    actions = advise(view.diagnosis, view.derived, view.limits, place, load_thresholds())
    return json.dumps(
        [[a.title, a.why, a.cost, a.current, a.new, a.checks, a.commands, dict(a.flags)] for a in actions]
    )


def sole(body: bytes) -> EngineSample:
    (engine,) = PageReader().read(body, 1.0).engines
    return engine


# Inventories


@pytest.mark.parametrize("name", ["trtllm"])
def test_every_metric_that_is_read_is_one_that_its_source_declares(name: str):
    table, declared = named(name).table, dict[str, str]()
    for path in sorted((FIXTURES / name).glob("inventory-*.json")):
        declared |= json.loads(path.read_text())["metrics"]
    own = {f"trtllm_{one.removeprefix('nv_trt_llm_')}" for one in declared if one.startswith("nv_")} | {*declared}
    for row in table.counters:
        for one in row.names:
            stem = re.sub(r"_(sum|count)$", "", one)
            assert one in own or declared[stem].startswith("histogram"), one
    assert {one for row in (*table.gauges, *table.cache) for one in row.names} <= own
    for row in table.histograms:
        assert all(declared[one].startswith("histogram") for one in row.names)


# TensorRT-LLM: a model of its admission


def test_requests_that_wait_for_a_reservation_are_pressure_where_the_page_tells():
    found = list(pages(Server(SMALL_POOL), trtllm, NONE, LIGHT, HEAVY))
    assert last(found[:28]) == ("unknown", "no_gauges")  # there is no iteration before the first request
    assert last(found[:88]) == ("healthy", "")
    assert last(found) == ("kv_cache_pressure", "admission")


def test_a_page_that_keeps_its_last_iteration_is_neither_stuck_nor_busy():
    found = list(pages(Server(SMALL_POOL), trtllm, LIGHT, Load(90)))
    assert b'num_requests_running{model_name="m",engine_type="trtllm",pid="7"} 0' not in found[-1][1]
    assert last(found) == ("idle", "")
    causes = {str(view.diagnosis.cause) for view in views(found) if view.diagnosis is not None}
    assert causes == {"unknown", "healthy", "idle"}
    assert last(pages(Server(SMALL_POOL), triton, LIGHT, Load(90)))[0] == "idle"


def test_blocks_in_use_are_far_from_full_while_requests_wait_for_a_reservation():
    *_, view = views(pages(Server(SMALL_POOL), trtllm, LIGHT, HEAVY))
    assert view.derived["kv_cache_usage_ratio"] < 0.75  # type: ignore[operator]
    text = advised(view)
    assert "free_gpu_memory_fraction" in text
    assert "MAX_UTILIZATION" in text


@pytest.mark.parametrize(
    "page",
    [partial(trtllm, stages=2), triton, partial(triton, queue=False)],
    ids=["two stages", "triton", "old triton"],
)
def test_where_reservations_show_nowhere_it_is_unknown_and_says_so(page):
    *_, view = views(pages(Server(SMALL_POOL), page, LIGHT, HEAVY))
    assert (str(view.diagnosis.cause), view.diagnosis.detail) == ("unknown", "reservations")
    assert any("wait for room" in one.what for one in view.diagnosis.missing)


@pytest.mark.parametrize("page", [trtllm, triton])
def test_seats_that_are_taken_are_a_cap(page):
    assert last(pages(Server(LARGE_POOL, seats=SEATS), page, LIGHT, MORE)) == ("concurrency_bound", "max_num_seqs")


def test_advice_for_triton_is_of_its_configuration_and_its_port():
    *_, view = views(pages(Server(LARGE_POOL, seats=SEATS), triton, LIGHT, MORE))
    text = advised(view)
    assert "triton_max_batch_size in config.pbtxt" in text
    assert view.runtime == "tensorrtllm_backend"
    assert "--max_batch_size=" not in text
    assert "trtllm-serve" not in text


SITUATIONS = {
    "calm": (Server(60_000), Load(110, 1.5, 800, 200, 800)),
    "room, answers shorter than max_tokens": (Server(30_000), Load(110, 6.0, 1200, 150, 2000)),
    "room, answers of max_tokens": (Server(30_000), Load(110, 6.0, 600, 600, 600)),
    "seats": (Server(400_000, seats=24), Load(110, 9.0, 500, 150, 600)),
    "prompts of a step": (Server(900_000, step=2048), Load(110, 40.0, 1900, 40, 100)),
}
"""What requests wait for, in the model: nothing, room beside what others reserve, a seat, a place in a step."""

TOLD = {
    "trtllm": (
        *("healthy/", "kv_cache_pressure/admission", "kv_cache_pressure/admission"),
        *("concurrency_bound/max_num_seqs", "unknown/reservations"),
    ),
    "triton": (
        *("healthy/", "unknown/reservations", "unknown/reservations"),
        *("concurrency_bound/max_num_seqs", "unknown/reservations"),
    ),
}
PAGES = {"trtllm": trtllm, "triton": triton}


@pytest.mark.parametrize("kind", TOLD)
@pytest.mark.parametrize("situation", SITUATIONS)
def test_no_other_cause_than_the_right_one_is_told_of_a_model_of_each(kind: str, situation: str):
    server, load = SITUATIONS[situation]
    found = [view for view in views(pages(deepcopy(server), PAGES[kind], load, seed=13)) if view.t - START > 70]
    told = {f"{view.diagnosis.cause}/{view.diagnosis.detail}" for view in found if view.diagnosis is not None}
    assert told == {TOLD[kind][list(SITUATIONS).index(situation)]}


def test_nothing_is_predicted_of_a_scheduler_that_is_not_simulated():
    *_, view = views(pages(Server(SMALL_POOL), trtllm, LIGHT, HEAVY))
    assert view.observed is not None
    with pytest.raises(UnknownError, match="reserves room for answers"):
        calibrate.read(view.observed, view.limits)


def test_many_short_answers_whose_last_step_is_not_scheduled_are_healthy():
    short = Load(60, 40.0, prompt=100, output=30, max_tokens=50)
    assert last(pages(Server(40 * LARGE_POOL), trtllm, short)) == ("healthy", "")


NOT_READ = {
    "TGI": b"tgi_batch_current_size 2\ntgi_queue_size 9\n",
    "llama.cpp": b"llamacpp:requests_processing 4\nllamacpp:requests_deferred 3\n",
}


@pytest.mark.parametrize("server", NOT_READ)
def test_a_server_that_is_recognised_and_not_read_is_neither_unreadable_nor_an_engine(server: str):
    with pytest.raises(PageError, match=rf"^not read: these are the metrics of {server}, ") as refused:
        PageReader().read(NOT_READ[server], 1.0)
    health = SourceHealth(ENGINE_SOURCE, "x", up=False, t=1.0, error=str(refused.value), reason=refused.value.reason)
    assert health.not_read
    assert source_values(health)["source_up"] is None


@pytest.mark.parametrize("server", NOT_READ)
def test_an_engine_on_the_same_page_is_read(server: str):
    page = trtllm(Server(SMALL_POOL)) + NOT_READ[server]
    assert PageReader().read(page, 1.0).runtime == "trtllm"


def test_triton_serves_several_models_and_each_is_an_engine():
    page = triton(Server(SMALL_POOL))
    found = PageReader().read(page + page.replace(b'"tensorrt_llm"', b'"draft"'), 1.0).engines
    assert [one.model_name for one in found] == ["draft", "tensorrt_llm"]
    assert found[0].cache.capacity_tokens == SMALL_POOL


@pytest.mark.parametrize("value", ["NaN", "-1", "+Inf", "1e300"])
@pytest.mark.parametrize("page", [trtllm, triton])
def test_a_hostile_page_gives_no_number_that_is_none(page, value: str):
    hostile = re.sub(rb" [0-9.]+$", b" " + value.encode(), page(Server(SMALL_POOL)), flags=re.MULTILINE)
    engine = sole(hostile)
    assert all(0 <= one <= 2**53 for one in (*engine.gauges.values(), *engine.counters.values()))
    assert engine.cache is None or engine.cache.capacity_tokens is None


def test_more_models_than_engines_can_be_are_one_clear_refusal():
    lines = "".join(f'nv_trt_llm_request_metrics{{model="{n}",request_type="active"}} 1\n' for n in range(300))
    with pytest.raises(PageError, match="300 engines"):
        PageReader().read(lines.encode(), 1.0)


# Starts


STARTS = {
    "trtllm": (
        ["trtllm-serve", "m", "--max_batch_size", "64", "--max_num_tokens=4096", "--free_gpu_memory_fraction", "0.8"],
        {"max_num_seqs": 64, "max_num_batched_tokens": 4096, "gpu_memory_utilization": 0.8},
        8000,
    ),
}


@pytest.mark.parametrize("name", STARTS)
def test_limits_are_read_from_its_own_options(name: str):
    command, limits, port = STARTS[name]
    start = read_start(command, [], {}, Budget())
    reading = read_limits(start)
    assert {one: limit.value for one, limit in reading.limits.items()} == limits
    assert reading.model in {"m", "m.gguf"}
    assert serving_port(start) == port


@pytest.mark.parametrize("runtime", [one for one in RUNTIMES if not one.planning.by_memory], ids=lambda one: one.name)
def test_nothing_is_planned_of_memory_that_is_not_known_here(runtime):
    options = ["--runtime", runtime.name, "--model", "meta-llama/Llama-3.1-8B-Instruct", "--gpu", "H100-80GB"]
    result = CliRunner().invoke(main, ["plan", *options, "--prompt-p95", "1000", "--output-p95", "200"])
    assert result.exit_code != 0
    assert f"{runtime.title}: how its cache follows from the memory of a GPU is not known here" in result.output

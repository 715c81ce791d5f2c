"""SGLang's pages: the signals, capacity and ranks that are read from them, in every version."""

from __future__ import annotations

import json

from kvpressure.config.settings import PollSettings
from kvpressure.config.target import Target
from kvpressure.daemon.pollers import poll_names, tables_of
from kvpressure.engines.engine import EngineSource
from kvpressure.engines.reader import PageReader
from kvpressure.model.samples import EnginePage, EngineSample
from kvpressure.runtimes.registry import named
from tests.support import servers
from tests.support.servers import FaultServer
from tests.support.sglang_pages import PAGES, TARGET, lines
from tests.support.tools import FIXTURES


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
    assert engine.cache is not None
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
    assert cache_config is not None
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
    assert first.cache is not None
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

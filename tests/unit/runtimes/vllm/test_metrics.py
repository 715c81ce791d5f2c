"""Every vLLM version from 0.6 to 0.33, in every spelling of its names."""

import sys
from dataclasses import replace

import pytest

from kvpressure.engines.reader import PageReader
from kvpressure.model.samples import EnginePage
from kvpressure.runtimes.vllm.metrics import (
    ALL_NAMES,
    COUNTERS,
    GAUGES,
    HISTOGRAMS,
    POLL_NAMES,
    SERVER_COUNTERS,
    SERVER_GAUGES,
    VLLM,
)
from tests.support import signal_names as signals
from tests.support.pages import SINGLES, filtered, inventory, made, signal_table, single, trace
from tests.support.tools import GOLDEN

pytestmark = pytest.mark.recorded

SIGNALS = GOLDEN / "runtimes_signals.txt"
VERSIONS = list(inventory())


def read(page: bytes) -> EnginePage:
    return PageReader().read(page, 1.0)


def test_the_signals_of_every_version_are_those_of_the_golden_table() -> None:
    table = signal_table()
    sys.stdout.write(table)
    assert table == SIGNALS.read_text(), "if meant: python -m tests.support.pages > tests/golden/runtimes_signals.txt"


def test_the_table_has_one_row_for_each_signal_and_no_other() -> None:
    labels = [signal for row in VLLM.label_signals for signal in row.signals]
    others = {"free_tokens", "reserve_ratio", "decode_steps", "found_prompt_tokens", "prefill_tokens", "token_gaps"}
    others |= {"preempted_prompt_tokens", "preempted_output_tokens"}
    gauges = [name for name in signals.GAUGES if name not in others]
    assert [*dict.fromkeys(row.signal for row in (*GAUGES, *SERVER_GAUGES)), *labels] == gauges
    # vLLM counts the tokens that its cache held among those processed, so it needs no second counter of prompts; its
    # steps have prompts and answers, and nothing is reserved for these.
    read = {row.signal for row in (*COUNTERS, *SERVER_COUNTERS)}
    assert sorted(read) == sorted(signals.COUNTERS.keys() - others)
    assert [row.signal for row in HISTOGRAMS] == list(signals.HISTOGRAMS)


def test_every_name_in_the_table_is_one_that_some_version_declares() -> None:
    declared = {name for version in inventory().values() for name in version}
    for name in set(ALL_NAMES) - VLLM.foreign_names() - {"vllm:cache_config_info"}:
        stems = {name, name.removesuffix("_total")} | {name.removesuffix(end) for end in ("_bucket", "_count", "_sum")}
        assert stems & declared, name


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("prefix", ["vllm_", "ray_vllm_", "ray_vllm:"])
def test_other_spellings_of_the_names_give_the_same_page(version: str, prefix: str) -> None:
    page = made(version)
    assert read(page.replace(b"vllm:", prefix.encode())) == read(page)


@pytest.mark.parametrize("version", VERSIONS)
def test_a_page_without_engine_labels_has_one_engine_called_0(version: str) -> None:
    labelled, plain = read(made(version)).engines, read(made(version, engine=None)).engines
    assert [engine.engine for engine in plain] == ["0"]
    assert [replace(engine, cache=None) for engine in plain] == [replace(engine, cache=None) for engine in labelled]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_small_page_has_the_same_gauges_and_fast_counters_and_no_histograms(version: str) -> None:
    page = made(version)
    (full,), (small,) = read(page).engines, read(filtered(page, POLL_NAMES)).engines
    slow = {row.signal for row in COUNTERS if row.slow}
    assert small.gauges == full.gauges
    assert small.counters == {name: value for name, value in full.counters.items() if name not in slow}
    assert (small.histograms, small.cache) == ({}, None)
    assert not read(filtered(page, POLL_NAMES)).multiprocess


@pytest.mark.parametrize("version", VERSIONS)
def test_the_page_of_all_names_says_as_much_as_the_full_one(version: str) -> None:
    page = made(version)
    assert read(filtered(page, ALL_NAMES)) == read(page)


def test_versions_with_old_and_new_names_are_read_by_the_new_one_alone() -> None:
    page = made("0.10.2")
    (engine,) = read(page).engines
    shown = page.decode()
    for name in ("inter_token_latency_seconds", "time_per_output_token_seconds"):
        assert f"vllm:{name}_count" in shown
    new = next(line for line in shown.splitlines() if line.startswith("vllm:inter_token_latency_seconds_count"))
    assert engine.histograms["inter_token"].count == float(new.split()[-1])


def test_the_answers_to_name_filters_stay_small() -> None:
    sizes = {}
    for name in ("long-context-collapse", "ramp-into-pressure", "v0.12-preemption"):
        page = trace(name)[-1]
        sizes[name] = len(page), len(filtered(page, ALL_NAMES)), len(filtered(page, POLL_NAMES))
    sys.stdout.write(f"bytes of the full page, of ALL_NAMES, of POLL_NAMES: {sizes}\n")
    assert max(poll for _, _, poll in sizes.values()) < 5120
    assert max(everything / full for full, everything, _ in sizes.values()) < 0.5


@pytest.mark.parametrize("name", SINGLES)
def test_multiprocess_pages_are_recognised(name: str) -> None:
    page = read(single(name))
    assert page.multiprocess
    assert page.started is None
    assert [engine.engine for engine in page.engines] == (["0", "1"] if "ranks" in name else ["0"])


def test_a_page_relayed_by_ray_is_not_taken_for_multiprocess() -> None:
    page = made("0.21.0")
    relayed = b"\n".join(line for line in page.splitlines() if b"process_start" not in line) + b"\n"
    assert read(relayed).multiprocess
    assert not read(relayed.replace(b"vllm:", b"ray_vllm_")).multiprocess


_LMCACHE = """
lmcache:num_retrieve_requests_total{model_name="/models/llama",worker_id="0"} 40
lmcache:num_retrieve_requests_total{model_name="/models/llama",worker_id="1"} 40
lmcache:num_hit_tokens_total{model_name="/models/llama",worker_id="0"} 9000
lmcache:num_hit_tokens_total{model_name="/models/llama",worker_id="1"} 9000
lmcache:time_to_retrieve_sum{model_name="/models/llama",worker_id="0"} 6
lmcache:time_to_retrieve_sum{model_name="/models/llama",worker_id="1"} 4
lmcache:local_cpu_evict_failed_count_total{model_name="/models/llama",worker_id="0"} 7
"""


def test_loads_of_versions_that_count_all_transfers_together_are_those_towards_the_gpu():
    lines = (
        f'vllm:kv_offload_total_{what}_total{{engine="0",model_name="m",transfer_type="{way}"}} {value}\n'
        for what, values in (("time", (3, 13, 2)), ("bytes", (100, 400, 50)))
        for way, value in zip(("CPU_to_GPU", "GPU_to_CPU", "SHARED_STORAGE_to_GPU"), values, strict=True)
    )
    (found,) = PageReader().read("".join(lines).encode(), 1.0).engines
    assert (found.counters["offload_load_seconds"], found.counters["offload_load_bytes"]) == (5.0, 150.0)


def test_what_lmcache_counts_on_the_page_is_of_the_engine_whatever_it_calls_the_model():
    """Its workers name the model by its path (`_metadata_to_labels`, lmcache/observability.py)."""
    engine = 'vllm:num_requests_running{engine="0",model_name="llama"} 3\n'
    (found,) = PageReader().read((engine + _LMCACHE.strip() + "\n").encode(), 1.0).engines
    assert (found.model_name, found.gauges) == ("llama", {"running": 3.0})
    assert found.counters == {
        "offload_loads": 80.0,
        "offload_load_tokens": 18_000.0,
        "offload_load_seconds": 10.0,
        "dropped_stores": 7.0,
    }

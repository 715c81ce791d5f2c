"""What the recordings of a real vLLM say once they are read."""

from itertools import pairwise
from statistics import median

import pytest

from kvpressure.engines.reader import PageError, PageReader
from kvpressure.model.samples import CacheConfig, EngineSample
from tests.support.pages import TRACES, single, trace

pytestmark = pytest.mark.recorded

BLOCKS = {"v0.12-preemption": 127}


def engines(name: str) -> list[list[EngineSample]]:
    reader = PageReader()
    return [list(reader.read(page, float(t)).engines) for t, page in enumerate(trace(name))]


@pytest.mark.parametrize("name", TRACES)
def test_usage_is_always_a_whole_number_of_usable_blocks(name: str) -> None:
    blocks = BLOCKS.get(name, 255)
    seen = [engine for page in engines(name) for engine in page]
    used = [engine.gauges["kv_usage"] * blocks for engine in seen if "kv_usage" in engine.gauges]
    assert used == pytest.approx([round(one) for one in used], abs=1e-6)
    assert len(used) > 0.9 * len(seen)  # multi-process servers give no gauges before their first request
    assert {engine.cache.capacity_tokens for engine in seen if engine.cache} == {blocks * 32}


@pytest.mark.parametrize("name", TRACES)
def test_counters_and_histograms_never_fall_and_agree(name: str) -> None:
    pages = engines(name)
    for before, after in pairwise(pages):
        for old, new in zip(before, after, strict=True):
            assert all(new.counters[key] >= value for key, value in old.counters.items())
            assert new.counters["started"] == new.histograms["ttft"].count
            assert new.counters["finished_prompts"] == new.histograms["request_prompt_tokens"].count
            assert new.counters["finished_prompt_tokens"] == new.histograms["request_prompt_tokens"].sum
            assert new.counters["finished"] >= new.histograms["e2e"].count >= old.histograms["e2e"].count


@pytest.mark.parametrize(
    ("name", "running", "waiting", "usage"),
    [
        ("idle", (0, 0), (0, 0), (0, 0)),
        ("full-batch", (20, 28), (0, 1), (0.2, 0.9)),
        ("sequence-cap-queue", (31, 32), (25, 32), (0.2, 0.35)),
        ("long-context-collapse", (1.5, 3), (8, 11), (0.6, 0.9)),
    ],
)
def test_the_medians_of_a_trace_are_those_its_readme_tells(
    name: str, running: tuple[float, float], waiting: tuple[float, float], usage: tuple[float, float]
) -> None:
    gauges = [engine.gauges for (engine,) in engines(name)]
    for signal, (low, high) in {"running": running, "waiting": waiting, "kv_usage": usage}.items():
        assert low <= median(one[signal] for one in gauges) <= high, signal
    reasons = [one["waiting_capacity"] + one["waiting_deferred"] for one in gauges]
    assert reasons == [one["waiting"] for one in gauges]
    assert {one["awake"] for one in gauges} == {1.0}


def test_the_cache_of_the_recorded_server_is_known_to_the_token() -> None:
    assert engines("idle")[0][0].cache == CacheConfig(
        block_size=32, capacity_tokens=8160, max_model_len=4096, gpu_memory_utilization=0.92, prefix_caching=True
    )


def test_two_ranks_are_two_engines_and_their_rejections_are_nobodys() -> None:
    reader = PageReader()
    page = reader.read(trace("two-ranks")[-1], 5.0)
    assert (page.t, page.multiprocess, [engine.engine for engine in page.engines]) == (5.0, True, ["0", "1"])
    assert all("rejected" not in engine.counters for engine in page.engines)
    assert page.engines[0].counters["generation_tokens"] != page.engines[1].counters["generation_tokens"]
    (alone,) = engines("idle")[0]
    assert alone.counters["rejected"] == 0


def test_a_multiprocess_page_without_block_numbers_is_read_by_its_override() -> None:
    (engine,) = PageReader().read(single("vllm-0.12.0-multiprocess.prom"), 0.0).engines
    assert (engine.cache.capacity_tokens, engine.cache.max_model_len) == (127 * 32, None)
    assert engine.counters["finished"] == 27


def test_a_page_cut_before_its_end_is_refused_and_the_next_one_read() -> None:
    reader = PageReader()
    pages = trace("full-batch")
    before = reader.read(pages[0], 0.0)
    for end in (1, 700, 20_000, len(pages[0]) - 1):
        with pytest.raises(PageError) as caught:
            reader.read(pages[0][:end], 0.0)
        assert caught.value.reason in {"truncated", "not_metrics"}
    assert reader.read(pages[0], 0.0) == before


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"\n",
        b"# EOF\n",
        b"<html><body>vllm:num_requests_running 1</body></html>",
        b'{"detail":"Not Found"}',
        b"Internal Server Error",
        b"process_start_time_seconds 1.7e+09\n",
        b"vllm:no_such_metric 1\nvllm 2\n",
        b"\x1f\x8b\x08\x00garbage",
    ],
)
def test_what_holds_no_known_metric_is_not_a_page_of_metrics(page: bytes) -> None:
    with pytest.raises(PageError, match="no metric of vLLM") as caught:
        PageReader().read(page, 0.0)
    assert caught.value.reason == "not_metrics"


def test_a_page_with_names_and_no_values_says_so() -> None:
    """Such as vLLM's own without statistics, until its first request."""
    names = "\n".join(line for line in single("vllm-0.32.0-two-ranks.prom").decode().splitlines() if line[:1] == "#")
    with pytest.raises(PageError, match="names metrics of vLLM and has no value") as caught:
        PageReader().read(f"{names}\n".encode(), 1.0)
    assert caught.value.reason == "not_metrics"

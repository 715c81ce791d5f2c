"""How series become signals: processes, ranks, models, garbage and half histograms."""

import math
from collections.abc import Sequence

import pytest

from kvpressure.engines.reader import PageReader
from kvpressure.model.samples import CacheConfig, EngineSample, HistogramSample
from kvpressure.runtimes.table import PageFacts
from kvpressure.runtimes.vllm.metrics import cache_config

ONE_RANK = PageFacts(ranks=1, labelled=True, names=frozenset())


def read(*lines: str) -> tuple[EngineSample, ...]:
    return PageReader().read("".join(f"{line}\n" for line in lines).encode(), 0.0).engines


def sample(name: str, value: object, **labels: object) -> str:
    shown = {"model_name": "m", "engine": "0", **labels}
    return f"vllm:{name}{{" + ",".join(f'{key}="{label}"' for key, label in shown.items()) + f"}} {value}"


def histogram(name: str, counts: Sequence[object] = (1, 2, 4), drop: str = "", **labels: str) -> list[str]:
    buckets = zip(("0.5", "1.0", "+Inf"), counts, strict=True)
    lines = [sample(f"{name}_bucket", count, **labels, le=bound) for bound, count in buckets]
    lines += [sample(f"{name}_count", 4, **labels), sample(f"{name}_sum", 2.5, **labels)]
    return [line for line in lines if not drop or drop not in line]


def test_counts_of_several_processes_are_summed_and_of_ratios_the_highest_counts() -> None:
    (engine,) = read(
        *(sample("num_requests_running", value, pid=pid) for pid, value in ((1, 3), (2, 4))),
        *(sample("kv_cache_usage_perc", value, pid=pid) for pid, value in ((1, 0), (2, 0.7), (3, 0))),
        *(sample("num_preemptions_total", 5, WorkerId=worker) for worker in "ab"),
    )
    assert engine.gauges == {"running": 7.0, "kv_usage": 0.7}
    assert engine.counters == {"preemptions": 10.0}


def test_a_label_with_a_meaning_is_matched_and_the_others_are_summed() -> None:
    (engine,) = read(
        *(sample("num_requests_waiting_by_reason", n, reason=one) for one, n in (("capacity", 3), ("x", 9))),
        *(sample("request_success_total", n, finished_reason=one) for one, n in (("stop", 3), ("length", 2))),
        *(sample("engine_sleep_state", n, sleep_state=one) for one, n in (("awake", 0), ("discard_all", 1))),
    )
    assert engine.gauges == {"waiting_capacity": 3.0, "awake": 0.0}
    assert engine.counters == {"finished": 5.0}


def test_accepted_drafts_by_position_are_used_only_where_the_total_is_missing() -> None:
    positions = [sample("spec_decode_num_accepted_tokens_per_pos_total", n, position=n) for n in (1, 2)]
    total = sample("spec_decode_num_accepted_tokens_total", 9)
    assert read(*positions)[0].counters == {"accepted_draft_tokens": 3.0}
    assert read(total, *positions)[0].counters == {"accepted_draft_tokens": 9.0}


def test_engines_are_distinguished_by_model_and_rank() -> None:
    found = read(
        'vllm:num_requests_running{engine="1",model_name="b"} 1',
        'vllm:num_requests_running{engine="0",model_name="b"} 2',
        'vllm:num_requests_running{engine="0",model_name="a"} 3',
        'vllm:admission_rejections_total{model_name="a",reason="x"} 4',
        'vllm:admission_rejections_total{model_name="b",reason="x"} 5',
    )
    assert [(one.model_name, one.engine, one.gauges["running"], one.counters) for one in found] == [
        ("a", "0", 3.0, {"rejected": 4.0}),
        ("b", "0", 2.0, {}),
        ("b", "1", 1.0, {}),
    ]


def test_of_two_spellings_on_one_page_only_the_commoner_is_read() -> None:
    (engine,) = read("vllm:num_requests_running 1", "vllm_num_requests_running 7", "vllm_num_requests_waiting 8")
    assert engine.gauges == {"running": 7.0, "waiting": 8.0}


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "-1"])
@pytest.mark.parametrize("lines", [1, 2])
def test_a_value_that_cannot_be_is_absent_and_takes_nothing_with_it(value: str, lines: int) -> None:
    broken = [sample("num_requests_running", value, pid=pid) for pid in range(lines)]
    (engine,) = read(*broken, sample("num_requests_waiting", 2))
    assert engine.gauges == {"waiting": 2.0}


def test_a_usage_above_one_is_absent() -> None:
    assert read(sample("kv_cache_usage_perc", 1.0))[0].gauges == {"kv_usage": 1.0}
    assert read(sample("kv_cache_usage_perc", 1.2))[0].gauges == {}


def test_histograms_that_differ_in_an_unknown_label_are_summed() -> None:
    name = "e2e_request_latency_seconds"
    (engine,) = read(*histogram(name, WorkerId="a"), *histogram(name, WorkerId="b"))
    assert engine.histograms == {"e2e": HistogramSample((0.5, 1.0, math.inf), (2.0, 4.0, 8.0), 5.0)}


@pytest.mark.parametrize("drop", ["+Inf", "_sum", "_count"])
def test_a_histogram_with_a_part_missing_is_left_out(drop: str) -> None:
    name = "request_queue_time_seconds"
    assert read(*histogram(name))[0].histograms.keys() == {"queue"}
    assert read(*histogram(name, drop=drop))[0].histograms == {}
    whole = histogram(name, pid="1")
    assert read(*whole, *histogram(name, pid="2", drop=drop))[0].histograms == {}


@pytest.mark.parametrize("counts", [("2", "1", "4"), ("1", "NaN", "4"), ("1", "2", "+Inf"), ("-1", "2", "4")])
def test_a_histogram_with_impossible_counts_is_left_out_and_comes_back(counts: tuple[str, ...]) -> None:
    reader = PageReader()
    for shown, expected in ((("1", "2", "4"), 1), (counts, 0), (counts, 0), (("1", "2", "4"), 1)):
        page = "\n".join([*histogram("request_queue_time_seconds", counts=shown), ""]).encode()
        assert len(reader.read(page, 0.0).engines[0].histograms) == expected


def test_a_server_that_says_nothing_of_an_engine_yet_has_none() -> None:
    assert read('vllm:cache_config_info{engine="0",block_size="16"} 1') == ()


def test_processes_that_contradict_each_other_about_the_cache_are_not_believed() -> None:
    running = sample("num_requests_running", 1)
    info = 'vllm:cache_config_info{{engine="0",pid="{}",block_size="16",num_gpu_blocks="{}"}} 1'
    same, other = (
        read(running, info.format(1, 11), info.format(2, 11)),
        read(running, info.format(1, 11), info.format(2, 9)),
    )
    assert same[0].cache == CacheConfig(block_size=16, capacity_tokens=160)
    assert other[0].cache is None


@pytest.mark.parametrize(
    ("labels", "facts", "tokens"),
    [
        ({"num_gpu_blocks": "512"}, ONE_RANK, 511 * 16),
        ({"num_gpu_blocks": "512"}, PageFacts(2, labelled=True, names=frozenset()), 255 * 16),
        ({"num_gpu_blocks": "512"}, PageFacts(1, labelled=False, names=frozenset()), 512 * 16),
        (
            {"num_gpu_blocks": "512"},
            PageFacts(1, labelled=False, names=frozenset({"vllm:gpu_prefix_cache_queries_total"})),
            511 * 16,
        ),
        ({"num_gpu_blocks": "512", "num_gpu_blocks_override": "100"}, ONE_RANK, 511 * 16),
        ({"num_gpu_blocks": "None", "num_gpu_blocks_override": "100"}, ONE_RANK, 99 * 16),
        ({"num_gpu_blocks": "512", "kv_cache_size_tokens": "4096"}, ONE_RANK, 4080),
        ({"num_gpu_blocks": "512", "mamba_block_size": "64"}, ONE_RANK, None),
        ({"num_gpu_blocks": "512", "mamba_block_size": "64", "kv_cache_size_tokens": "4096"}, ONE_RANK, 4080),
        ({"num_gpu_blocks": "None"}, ONE_RANK, None),
        ({"num_gpu_blocks": "1"}, ONE_RANK, None),
        ({"num_gpu_blocks": "0"}, ONE_RANK, None),
        ({"num_gpu_blocks": "-5"}, ONE_RANK, None),
        ({"num_gpu_blocks": "inf"}, ONE_RANK, None),
        ({"num_gpu_blocks": "nan"}, ONE_RANK, None),
        ({"num_gpu_blocks": "1e30"}, ONE_RANK, None),
        ({"num_gpu_blocks": "10.5"}, ONE_RANK, None),
        ({}, ONE_RANK, None),
    ],
)
def test_capacity_is_what_the_requests_of_one_rank_can_hold(
    labels: dict[str, str], facts: PageFacts, tokens: int | None
) -> None:
    assert cache_config({"block_size": "16", **labels}, facts).capacity_tokens == tokens


@pytest.mark.parametrize(
    ("size", "concurrency", "longest"),
    [
        ("8192", "2.0", 4096),
        ("111238", "2.26", 49221),
        ("8192", "0.5", None),
        ("None", "2.0", None),
        ("8192", "", None),
    ],
)
def test_the_longest_request_follows_from_size_and_concurrency(
    size: str, concurrency: str, longest: int | None
) -> None:
    labels = {"kv_cache_size_tokens": size, "kv_cache_max_concurrency": concurrency}
    assert cache_config(labels, ONE_RANK).max_model_len == longest


@pytest.mark.parametrize("length", [1, 7, 4096, 32768, 131072, 262144])
@pytest.mark.parametrize("concurrency", [1.0, 1.0001, 2.07, 16.001953125, 333.3333333333333])
def test_the_longest_request_survives_the_rounding_of_the_server(length: int, concurrency: float) -> None:
    labels = {"kv_cache_size_tokens": str(int(length * concurrency)), "kv_cache_max_concurrency": str(concurrency)}
    assert cache_config(labels, ONE_RANK).max_model_len == length


def test_bytes_per_token_needs_a_pool_whose_size_the_bytes_decided() -> None:
    labels = {"kv_cache_memory_bytes": "1048576", "kv_cache_size_tokens": "4096"}
    assert cache_config(labels, ONE_RANK).bytes_per_token == 256.0
    assert cache_config({**labels, "num_gpu_blocks_override": "None"}, ONE_RANK).bytes_per_token == 256.0
    assert cache_config({**labels, "num_gpu_blocks_override": "256"}, ONE_RANK).bytes_per_token is None
    assert cache_config({"kv_cache_memory_bytes": "1048576"}, ONE_RANK).bytes_per_token is None


def test_a_kv_cache_in_8_bits_is_known_by_its_label() -> None:
    bits = [cache_config({"cache_dtype": name}, ONE_RANK).kv_bits for name in ("fp8", "fp8_e4m3", "auto", "float32")]
    assert bits == [8, 8, None, None]
    fewer = [cache_config({"cache_dtype": name}, ONE_RANK).kv_bits for name in ("nvfp4", "turboquant_k8v4", "bfloat16")]
    assert fewer == [4, 4, None]


def test_labels_that_say_nothing_leave_everything_unknown() -> None:
    labels = dict.fromkeys(("block_size", "gpu_memory_utilization", "enable_prefix_caching"), "None")
    assert cache_config(labels, ONE_RANK) == cache_config({}, ONE_RANK) == CacheConfig()
    assert cache_config({"gpu_memory_utilization": "1.5"}, ONE_RANK) == CacheConfig()

"""Capacity and bytes per token from start-up lines of several versions and ranks."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvpressure.runtimes.runtime import GIB
from kvpressure.sources.logs.classify import StartUp
from tests.support.tools import FIXTURES

LOGS = FIXTURES / "logs"


def learned(*lines: str, t: float | None = None) -> StartUp:
    start_up = StartUp()
    for line in lines:
        start_up.take(line, t)
    return start_up


def logged(name: str) -> list[str]:
    return (LOGS / name).read_text().splitlines()


FIXED = (
    "Initial free memory 93.95 GiB, reserved 4.0 GiB memory for KV Cache as specified by kv_cache_memory_bytes"
    " config and skipped memory profiling."
)
LEARNED = {
    "of two workers, of the one with the least memory": (logged("v1-tensor-parallel.log"), 131_072, 8 * GIB / 131_072),
    "blocks, by the concurrency that follows": (logged("v0-blocks.log"), 715 * 16, 2.18 * GIB / (715 * 16)),
    "nothing of blocks alone": (["# cuda blocks: 190100, # CPU blocks: 0"], None, None),
    "nothing of a concurrency that gives no whole block size": (
        ["# GPU blocks: 100", "Maximum concurrency for 2048 tokens per request: 0.51x"],
        None,
        None,
    ),
    "the tokens of equal layers, not those of a rounded concurrency": (
        ["GPU KV cache size: 20,992 tokens", "Maximum concurrency for 32,768 tokens per request: 0.64x"],
        20_992,
        None,
    ),
    "both facts of one line, as newer versions write it": (
        ["GPU KV cache size: 1,234,567 tokens, Maximum concurrency for 8,192 tokens per request: 150.70x"],
        1_234_567,
        None,
    ),
    "memory that an operator fixed": ([FIXED, "GPU KV cache size: 65,536 tokens"], 65_536, 4 * GIB / 65_536),
    "no bytes per token where no memory is left": (
        ["Available KV cache memory: -2.81 GiB", "GPU KV cache size: 16,000 tokens"],
        16_000,
        None,
    ),
}


@pytest.mark.parametrize(("lines", "capacity_tokens", "bytes_per_token"), LEARNED.values(), ids=LEARNED)
def test_capacity_and_bytes_per_token_are_learned(lines, capacity_tokens, bytes_per_token):
    start_up = learned(*lines)
    assert start_up.capacity_tokens == capacity_tokens
    assert start_up.bytes_per_token == (bytes_per_token and pytest.approx(bytes_per_token))


def test_where_layers_differ_the_requests_that_fit_say_the_capacity():
    """Gemma 4 on vLLM 0.19: the tokens are of one kind of layer, five requests of the longest length fit."""
    lines = logged("gemma4-start.log")
    assert learned(*lines).capacity_tokens == 491_520
    assert learned(*reversed(lines)).capacity_tokens == 491_520
    joined = "GPU KV cache size: 79,344 tokens, Maximum concurrency for 98,304 tokens per request: 5.00x"
    assert learned(joined).capacity_tokens == 491_520


def test_an_overridden_number_of_blocks_does_not_change_what_a_token_takes():
    before = learned("Available KV cache memory: 8.00 GiB", "GPU KV cache size: 160,000 tokens")
    after = learned(
        "Available KV cache memory: 8.00 GiB",
        "Overriding num_gpu_blocks=10000 with num_gpu_blocks_override=1000",
        "GPU KV cache size: 16,000 tokens",
    )
    assert after.capacity_tokens == 16_000
    assert after.bytes_per_token == before.bytes_per_token


def test_a_restarted_container_keeps_the_old_numbers_until_it_says_new_ones():
    start_up = learned("Available KV cache memory: 8.00 GiB", "GPU KV cache size: 16,000 tokens")
    start_up.begin()
    assert start_up.capacity_tokens == 16_000
    start_up.take("Available KV cache memory: 4.00 GiB", None)
    assert start_up.capacity_tokens is None
    start_up.take("GPU KV cache size: 32,000 tokens", None)
    assert start_up.bytes_per_token == 4 * GIB / 32_000


@pytest.mark.parametrize(("t", "between"), [(0.0, "vLLM API server version 0.11.0"), (121.0, "")])
def test_a_banner_or_two_minutes_begin_a_new_start_in_one_log(t: float, between: str):
    start_up = learned("GPU KV cache size: 16,000 tokens", t=0.0)
    start_up.take(between, t)
    start_up.take("GPU KV cache size: 32,000 tokens", t)
    assert start_up.capacity_tokens == 32_000


@given(
    st.lists(
        st.one_of(
            st.text(max_size=80),
            st.from_regex(r"(GPU KV cache size: [\d,]{0,9} tokens|# GPU blocks: \d{1,9})", fullmatch=True),
            st.from_regex(r"Maximum concurrency for [\d,]{0,9} tokens per request: \d{0,5}\.\d\dx", fullmatch=True),
            st.from_regex(r"Available KV cache memory: -?\d{1,3}\.\d\d GiB", fullmatch=True),
            st.from_regex(r"Overriding num_gpu_blocks=\d{1,5} with num_gpu_blocks_override=\d{1,5}", fullmatch=True),
        ),
        max_size=8,
    )
)
@example(["GPU KV cache size: 1 tokens", "Maximum concurrency for 0 tokens per request: 0.00x"])
def test_whatever_is_in_a_log_numbers_are_positive_or_not_known(lines: list[str]):
    start_up = learned(*lines)
    assert start_up.capacity_tokens is None or start_up.capacity_tokens >= 1
    assert start_up.bytes_per_token is None or start_up.bytes_per_token > 0

"""What must hold in the simulated engine whatever the load: conservation, bounds, determinism."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.simulator.clients import ClosedLoop, Lengths, OpenLoop, Phase, Traffic
from bench.simulator.config import (
    H100,
    LLAMA_8B,
    LLAMA_70B,
    TINY_CPU,
    TINY_CPU_0_12,
    EngineConfig,
    StepWork,
    gpu_engine,
)
from bench.simulator.scheduler import BlockPool, Rank
from bench.simulator.service import Scenario, SimulatedServer

TINY_POOL = replace(TINY_CPU, num_blocks=64, max_num_seqs=8, max_num_batched_tokens=256, max_model_len=1500)


def traffic(prompt: float, output: float, spread: float = 0.3, **options: float) -> Traffic:
    return Traffic(Lengths(prompt, "normal", spread), Lengths(output, "normal", spread), **options)  # type: ignore[arg-type]


def play(engine: EngineConfig, *phases: Phase, seed: int = 1) -> SimulatedServer:
    return SimulatedServer(Scenario("test", engine, phases), seed)


def held_blocks(rank: Rank) -> int:
    """Blocks the running requests hold, counted from their tokens and not from the pool's own book."""
    decoding, flight, size = rank._decoding, rank._flight, rank.config.block_size
    chunks = {request.id: chunk for request, chunk in flight.chunks} if flight else {}
    total, shared = 0, {}
    for request in rank.running:
        tokens = decoding.computed(request) + (1 if request.decoding and flight else chunks.get(request.id, 0))
        total += max(0, -(-tokens // size) - request.shared_blocks)
        if request.shared_blocks:
            shared[request.prefix_key] = max(shared.get(request.prefix_key, 0), request.shared_blocks)
    return total + sum(shared.values())


def assert_sound(server: SimulatedServer) -> None:
    for rank in server.ranks:
        assert 0 <= rank.pool.free <= rank.pool.usable
        assert rank.pool.usable - rank.pool.free == held_blocks(rank)
        assert sum(extent.blocks for extent in rank.pool._queue) == rank.pool.free
        assert len(rank.running) <= rank.config.max_num_seqs
        assert 0.0 <= rank.stats.usage_ratio <= 1.0


loads = st.builds(
    ClosedLoop,
    st.builds(
        traffic,
        st.integers(1, 900),
        st.integers(1, 500),
        prefix_tokens=st.sampled_from([0, 64, 300]),
        prefix_share=st.sampled_from([0.0, 0.5, 1.0]),
        stop_share=st.sampled_from([0.0, 0.5]),
    ),
    st.integers(1, 20),
    st.sampled_from([0.0, 0.2]),
)
engines = st.builds(
    lambda reserve, ranks, base: replace(
        base, reserve_full_prompt=reserve, ranks=ranks, api_servers=ranks if base.version == "0.32.0" else 1
    ),
    st.booleans(),
    st.integers(1, 2),
    st.sampled_from(
        [TINY_POOL, replace(TINY_POOL, block_size=16, num_blocks=128), replace(TINY_CPU_0_12, num_blocks=64)]
    ),
)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(engines, loads, loads, st.integers(0, 5))
def test_blocks_never_leak_and_bounds_hold_under_any_load(
    engine: EngineConfig, first: ClosedLoop, second: ClosedLoop, seed: int
) -> None:
    server = play(
        engine,
        Phase("healthy", 2.0, (first,)),
        Phase("healthy", 2.0, (second, OpenLoop(first.traffic, 5.0, burst=6)), hangs_up=seed % 2 == 0),
        Phase("idle", 1.0, hangs_up=True),
        seed=seed,
    )
    for tenth in range(41):
        server.advance(server.start + tenth * 0.107)
        assert_sound(server)
    server.advance(server.start + 4.99)
    assert all(rank.pool.free == rank.pool.usable and not rank.running for rank in server.ranks)


@settings(max_examples=15, deadline=None, derandomize=True)
@given(engines, loads, st.integers(0, 5))
def test_tokens_are_conserved_when_every_request_is_answered(engine: EngineConfig, load: ClosedLoop, seed: int) -> None:
    server = play(engine, Phase("healthy", 1.0, (load,)), Phase("idle", 1.0), seed=seed)
    server.advance(server.start + 120.0)
    for rank in server.ranks:
        stats = rank.stats
        histograms, counters = stats.histograms, stats.counters
        assert not rank.running
        assert not rank.waiting
        assert counters["generation_tokens"] == histograms["generation"].sum
        assert counters["prompt_tokens"] == histograms["prompt"].sum
        assert counters["prompt_tokens"] == counters["prompt_computed"] + counters["prompt_cached"]
        assert histograms["iteration"].sum == counters["generation_tokens"] + counters["prompt_tokens"]
        assert histograms["inter_token"].count == counters["generation_tokens"] - histograms["ttft"].count
        assert (
            histograms["ttft"].count
            == histograms["e2e"].count
            == counters["finished_length"] + counters["finished_stop"]
        )
        assert histograms["preemptions"].sum == counters["preemptions"]


def test_a_request_s_times_add_up() -> None:
    server = play(TINY_CPU, Phase("healthy", 1.0, (ClosedLoop(traffic(400, 50), 40),)), Phase("idle", 9.0))
    server.advance(server.start + 10.0)
    sums = {key: histogram.sum for key, histogram in server.ranks[0].stats.histograms.items()}
    assert sums["inference"] == pytest.approx(sums["prefill"] + sums["decode"])
    assert sums["ttft"] >= sums["queue"] + sums["prefill"] > 0
    assert sums["e2e"] == pytest.approx(sums["ttft"] + sums["decode"])
    assert sums["inter_token"] == pytest.approx(sums["decode"])


def test_the_same_seed_gives_the_same_pages_and_gpus_and_another_seed_others() -> None:
    engine = gpu_engine(LLAMA_8B, H100)
    phase = Phase("healthy", 9.0, (OpenLoop(traffic(300, 50), 8.0),))

    def run(seed: int) -> list[object]:
        server = play(engine, phase, seed=seed)
        return [(server.page(server.start + t), server.gpus(server.start + t)) for t in range(8)]

    assert run(3) == run(3)
    assert run(3) != run(4)


def test_asking_more_often_does_not_change_what_happens() -> None:
    phase = Phase("healthy", 20.0, (ClosedLoop(traffic(500, 300), 12),))
    coarse, fine = play(TINY_CPU, phase), play(TINY_CPU, phase)
    for step in range(1000):
        fine.advance(fine.start + step * 0.01)
    for server in (coarse, fine):
        server.advance(server.start + 10.0)
    assert fine.ranks[0].stats.counters == coarse.ranks[0].stats.counters


def test_a_prompt_that_does_not_fit_waits_for_its_whole_length_only_when_reservation_is_on() -> None:
    """One request of 1000 tokens decodes; a second of 1000 needs 32 of the 31 blocks left, its first chunk 8."""

    def running(reserve: bool) -> int:
        engine = replace(TINY_POOL, reserve_full_prompt=reserve, max_model_len=2000)
        fixed = Traffic(Lengths(1000), Lengths(900))
        server = play(engine, Phase("healthy", 60.0, (ClosedLoop(fixed, 2),)))
        most = 0
        for step in range(300):
            server.advance(server.start + step * 0.001)
            most = max(most, len(server.ranks[0].running))
        return most

    assert running(reserve=True) == 1
    assert running(reserve=False) == 2


@pytest.mark.parametrize("reserve", [True, False])
def test_preemption_drops_the_last_running_request_to_the_front_and_admits_nobody_in_that_step(reserve: bool) -> None:
    """What is free afterwards is less than the dropped request held: its blocks forbid it too, not only the rule."""
    server = play(
        replace(TINY_POOL, reserve_full_prompt=reserve),
        Phase("healthy", 60.0, (ClosedLoop(Traffic(Lengths(200), Lengths(900)), 12),)),
    )
    rank, seen = server.ranks[0], 0
    order = [request.id for request in rank.running]
    for step in itertools.count():
        before = rank.stats.counters["preemptions"]
        order = [request.id for request in rank.running]
        server.advance(server.start + step * 0.001)
        dropped = int(rank.stats.counters["preemptions"] - before)
        if dropped:
            seen += 1
            kept = [request.id for request in rank.running]
            assert kept == order[: len(kept)]
            assert rank.waiting[0].id == order[len(kept)]
            assert rank.waiting[0].computed == 0
            assert rank.waiting[0].generated > 0
            assert rank._flight is not None
            assert not rank._flight.chunks
        if seen == 3:
            break


def test_a_long_prompt_is_computed_in_chunks_beside_the_decoding_requests() -> None:
    chat, long = Traffic(Lengths(32), Lengths(900)), Traffic(Lengths(900), Lengths(10))
    server = play(TINY_POOL, Phase("healthy", 60.0, (ClosedLoop(chat, 2), ClosedLoop(long, 1, start_seconds=0.4))))
    largest = 0
    for step in range(1, 1000):
        server.advance(server.start + step * 0.001)
        flight = server.ranks[0]._flight
        chunks = [chunk for _, chunk in flight.chunks] if flight else []
        assert sum(chunks) + server.ranks[0]._decoding.size <= TINY_POOL.max_num_batched_tokens
        largest = max([largest, *chunks])
    assert 200 < largest <= TINY_POOL.max_num_batched_tokens


def test_a_shared_prefix_counts_its_blocks_once_and_is_found_again_when_idle() -> None:
    shared = traffic(320, 20, 0.0, prefix_tokens=256, prefix_share=1.0)
    server = play(
        TINY_CPU,
        Phase("healthy", 2.0, (ClosedLoop(shared, 4, start_seconds=1.0),)),
        Phase("idle", 2.0),
        Phase("healthy", 9.0, (ClosedLoop(shared, 1),)),
    )
    server.advance(server.start + 3.5)
    stats, before = server.ranks[0].stats, server.ranks[0].stats.counters["prefix_hits"]
    assert stats.counters["prefix_hits"] == 256 * (stats.histograms["prompt"].count - 1)
    server.advance(server.start + 4.5)
    assert server.ranks[0].stats.counters["prefix_hits"] > before


def test_a_stuck_engine_queues_and_a_restart_sets_every_counter_to_zero() -> None:
    load = (ClosedLoop(traffic(50, 50), 6),)
    server = play(
        TINY_CPU,
        Phase("healthy", 5.0, load),
        Phase("stuck", 5.0, load, "stuck"),
        Phase("restarting", 5.0, (), "restart"),
        Phase("healthy", 5.0, load),
    )
    server.advance(server.start + 9.0)
    stats = server.ranks[0].stats
    assert (stats.running, stats.waiting, stats.usage_ratio) == (0, 6, 0.0)
    stuck_at = stats.counters["generation_tokens"]
    server.advance(server.start + 9.9)
    assert stats.counters["generation_tokens"] == stuck_at > 0
    with pytest.raises(ConnectionError, match="restarts"):
        server.page(server.start + 12.0)
    server.advance(server.start + 15.1)
    assert 0 < server.ranks[0].stats.counters["generation_tokens"] < stuck_at
    assert b"process_start_time_seconds 1.800000015e+09" in server.page(server.start + 16.0)


def test_a_slow_front_end_raises_ttft_outside_the_engine() -> None:
    def outside(factor: float) -> float:
        load = (ClosedLoop(traffic(50, 20), 16),)
        server = play(TINY_CPU, Phase("host_bound", 20.0, load, frontend_factor=factor))
        server.advance(server.start + 20.0)
        sums = server.ranks[0].stats.histograms
        return (sums["ttft"].sum - sums["queue"].sum - sums["prefill"].sum) / sums["ttft"].count

    assert outside(40.0) > 0.5
    assert outside(1.0) < 0.1


def test_ranks_share_the_load() -> None:
    engine = replace(TINY_CPU, ranks=2, api_servers=2)
    server = play(engine, Phase("healthy", 10.0, (ClosedLoop(traffic(50, 100), 12),)))
    server.advance(server.start + 10.0)
    first, second = (rank.stats.counters["generation_tokens"] for rank in server.ranks)
    assert first == pytest.approx(second, rel=0.1)


def test_the_pool_refuses_to_hand_out_blocks_it_does_not_have() -> None:
    pool = BlockPool(9)
    pool.take(8)
    with pytest.raises(ValueError, match="1 blocks asked for, 0 free"):
        pool.take(1)


def test_cached_blocks_are_evicted_from_the_end_of_the_oldest_owner() -> None:
    pool = BlockPool(9)
    pool.take(8)
    pool.put(4, "old")
    pool.put(4, "new")
    pool.take(1)
    assert (pool.cached("old"), pool.cached("new"), pool.free) == (3, 4, 7)
    assert pool.reclaim("old") == 3
    assert (pool.cached("old"), pool.free) == (0, 4)
    pool.take(4)
    assert pool.cached("new") == 0


def test_the_gpu_step_is_memory_bound_when_decoding_and_compute_bound_when_prefilling() -> None:
    cost = gpu_engine(LLAMA_70B, H100, 4).cost
    decode, prefill = cost.time(StepWork(32, 32_000)), cost.time(StepWork(0, 0, 8192, 8192 * 4096.0))
    assert decode.memory > decode.compute
    assert prefill.compute > prefill.memory
    assert 0.012 < decode.seconds < 0.03  # 141 GB of weights over four times 2.68 TB/s is 13 ms
    assert 0.5 < prefill.seconds < 0.8  # 2 x 70.6e9 x 8192 FLOP over four times 495 TFLOPS is 0.58 s


def test_weights_that_leave_no_pool_are_refused() -> None:
    with pytest.raises(ValueError, match="70b on 1 x NVIDIA H100"):
        gpu_engine(LLAMA_70B, H100)

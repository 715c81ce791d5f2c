"""The simulator's pages against recorded ones, its HTTP server, its GPUs and its scenarios."""

from __future__ import annotations

import json
import lzma
import re
from dataclasses import replace
from itertools import pairwise

import pytest
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client.parser import text_string_to_metric_families

from bench.simulator.clients import ClosedLoop, Lengths, Phase, Traffic
from bench.simulator.config import H100, LLAMA_8B, TINY_CPU, TINY_CPU_0_12, EngineConfig, gpu_engine
from bench.simulator.scenarios import CAUSES, demo, episode
from bench.simulator.server import scaled_clock, simulator_app
from bench.simulator.service import Scenario, SimulatedServer, frames
from tests.support.servers import restrict
from tests.support.tools import FIXTURES

CHAT = Traffic(Lengths(50, "normal", 0.2), Lengths(100, "normal", 0.2))
TWO_RANKS = replace(TINY_CPU, ranks=2, api_servers=2)


def recorded(trace: str) -> str:
    with lzma.open(FIXTURES / "traces" / f"{trace}.jsonl.xz", "rt") as file:
        return str(json.loads(file.readlines()[-1])["page"])


def served(engine: EngineConfig, seconds: float = 5.0) -> str:
    server = SimulatedServer(Scenario("test", engine, (Phase("healthy", 60.0, (ClosedLoop(CHAT, 6),)),)), 1)
    return server.page(server.start + seconds).decode()


def skeleton(page: str) -> list[str]:
    """Every line without its value, and without label values that belong to one server."""
    lines = [line if line.startswith("#") else line.rsplit(" ", 1)[0] for line in page.splitlines()]
    own = (
        r'((num_gpu_blocks(_override)?|gpu_memory_utilization|kv_cache_memory_bytes|cpu_kvcache_space_bytes)="[^"]*",?)'
    )
    return [re.sub(own, "", line) for line in lines]


@pytest.mark.parametrize(
    ("engine", "trace"),
    [(TINY_CPU, "preemption-thrash"), (TWO_RANKS, "two-ranks"), (TINY_CPU_0_12, "v0.12-preemption")],
)
def test_a_page_has_the_lines_of_a_recorded_one_in_its_order_but_for_the_values(
    engine: EngineConfig, trace: str
) -> None:
    assert skeleton(served(engine)) == skeleton(recorded(trace))


@pytest.mark.parametrize("engine", [TINY_CPU, TWO_RANKS, TINY_CPU_0_12, gpu_engine(LLAMA_8B, H100)])
def test_a_page_is_read_by_prometheus_client_and_its_histograms_are_consistent(engine: EngineConfig) -> None:
    families = list(text_string_to_metric_families(served(engine)))
    assert len(families) > 40
    for family in families:
        if family.type != "histogram":
            continue
        buckets = [sample for sample in family.samples if sample.name.endswith("_bucket")]
        for before, after in pairwise(buckets):
            if after.labels["le"] != buckets[0].labels["le"]:
                assert after.value >= before.value
        ends = {tuple(sorted((s.labels | {"le": ""}).items())): s.value for s in buckets if s.labels["le"] == "+Inf"}
        counts = {
            tuple(sorted((s.labels | {"le": ""}).items())): s.value for s in family.samples if s.name.endswith("_count")
        }
        assert ends == counts


def test_counters_and_histograms_never_fall() -> None:
    server = SimulatedServer(Scenario("test", TINY_CPU, (Phase("healthy", 60.0, (ClosedLoop(CHAT, 20),)),)), 1)
    before: dict[str, float] = {}
    for tenth in range(30):
        page = server.page(server.start + tenth / 10).decode()
        now = {
            line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1])
            for line in page.splitlines()
            if re.match(r"[\w:]+_(total|bucket|count|sum)[{ ]", line)
        }
        assert all(now[name] >= value for name, value in before.items())
        before = now


def test_a_multi_process_page_hides_the_scheduler_until_the_first_request() -> None:
    server = SimulatedServer(
        Scenario("test", TWO_RANKS, (Phase("idle", 5.0), Phase("healthy", 5.0, (ClosedLoop(CHAT, 6),)))), 1
    )
    assert b"vllm:num_requests_running" not in server.page(server.start + 1)
    page = server.page(server.start + 8)
    assert b'vllm:num_requests_running{engine="1",model_name="tiny"} 3.0' in page
    assert b"_created" not in page
    assert b"process_" not in page


# -- HTTP


def answering(engine: EngineConfig, **options: bool) -> TestClient:  # type: ignore[type-arg]
    server = SimulatedServer(Scenario("test", engine, (Phase("healthy", 60.0, (ClosedLoop(CHAT, 6),)),)), 1)
    return TestClient(TestServer(simulator_app(server, lambda: server.start + 5.0, **options)))


async def test_the_filter_is_honoured_behind_the_slash_and_ignored_without_it() -> None:
    names = [("name[]", "vllm:num_requests_running"), ("name[]", "vllm:generation_tokens_total"), ("name[]", "nothing")]
    async with answering(TINY_CPU) as client:
        full = await (await client.get("/metrics", params=names)).text()
        part = await (await client.get("/metrics/", params=names)).text()
        whole = await (await client.get("/metrics/")).text()
    assert full == whole
    assert [line.split("{")[0] for line in part.splitlines()] == [
        "# HELP vllm:num_requests_running Number of requests in model execution batches.",
        "# TYPE vllm:num_requests_running gauge",
        "vllm:num_requests_running",
        "# HELP vllm:generation_tokens_total Number of generation tokens processed.",
        "# TYPE vllm:generation_tokens_total counter",
        "vllm:generation_tokens_total",
    ]
    assert set(part.splitlines()) <= set(full.splitlines())


async def test_a_multi_process_server_answers_the_filter_with_an_empty_200() -> None:
    async with answering(TWO_RANKS) as client:
        response = await client.get("/metrics/", params={"name[]": "vllm:num_requests_running"})
        assert (response.status, await response.text()) == (200, "")
        assert "vllm:num_requests_running" in await (await client.get("/metrics/")).text()


async def test_a_restarting_server_answers_503() -> None:
    server = SimulatedServer(Scenario("test", TINY_CPU, (Phase("restarting", 60.0, (), "restart"),)), 1)
    async with TestClient(TestServer(simulator_app(server, lambda: server.start + 5.0))) as client:
        assert (await client.get("/metrics")).status == 503


def test_the_filter_matches_whole_sample_names_only() -> None:
    page = b"# HELP a A.\n# TYPE a counter\na_total 1.0\na_total_x 2.0\n"
    assert restrict(page, ["a_total"]) == b"# HELP a A.\n# TYPE a counter\na_total 1.0\n"
    assert restrict(page, ["a"]) == b""


def test_a_scaled_clock_runs_faster_than_the_real_one() -> None:
    now = iter([100.0, 102.0])
    clock = scaled_clock(1000.0, 5.0, lambda: next(now))
    assert clock() == 1010.0


# -- GPUs


def test_gpu_memory_is_high_on_an_idle_server_and_utilization_follows_the_load() -> None:
    phases = (Phase("idle", 10.0), Phase("healthy", 10.0, (ClosedLoop(CHAT, 32),)))
    server = SimulatedServer(Scenario("test", gpu_engine(LLAMA_8B, H100, 2), phases), 1)
    idle, busy = server.gpus(server.start + 9.0), server.gpus(server.start + 15.0)[0]
    assert [gpu.index for gpu in idle] == ["0", "1"]
    assert len({gpu.uuid for gpu in idle}) == 2
    assert len(idle[0].utilization) == pytest.approx(54, abs=1)
    assert sum(idle[0].utilization) == 0
    assert 0.92 < (idle[0].memory_used_bytes or 0) / (idle[0].memory_total_bytes or 1) < 0.95
    assert sum(busy.utilization[-20:]) / 20 > 0.7
    assert 0 < (busy.tensor_active_ratio or 0) < (busy.dram_active_ratio or 0) <= (busy.sm_active_ratio or 1)


def test_an_engine_without_a_gpu_shows_none() -> None:
    server = SimulatedServer(Scenario("test", TINY_CPU, (Phase("idle", 5.0),)), 1)
    assert server.gpus(server.start + 3.0) == []


# -- scenarios and traces


def averages(plan: Scenario, seed: int, skip: float = 20.0) -> list[dict[str, float]]:
    """Per phase, after its first seconds: mean running, waiting, usage, GPU memory and utilization."""
    server, found, start = SimulatedServer(plan, seed), [], 0.0
    for phase in plan.phases:
        rows = []
        for second in range(int(start + min(skip, phase.seconds / 2)), int(start + phase.seconds)):
            server.advance(server.start + second)
            gpus = server.gpus(server.start + second)
            stats = [rank.stats for rank in server.ranks]
            rows.append(
                {
                    "running": sum(stat.running for stat in stats),
                    "waiting": sum(stat.waiting for stat in stats),
                    "usage": sum(stat.usage_ratio for stat in stats) / len(stats),
                    "memory": (gpus[0].memory_used_bytes or 0) / (gpus[0].memory_total_bytes or 1),
                    "utilization": sum(gpus[0].utilization) / max(1, len(gpus[0].utilization)),
                }
            )
        found.append({key: sum(row[key] for row in rows) / len(rows) for key in rows[0]})
        start += phase.seconds
    return found


@pytest.mark.parametrize("seed", [1, 2])
def test_the_demo_collapses_with_memory_high_and_compute_low_and_recovers(seed: int) -> None:
    idle, healthy, _, _, collapsed, recovered = averages(demo(), seed)
    assert idle["running"] == 0
    assert all(phase["memory"] > 0.92 for phase in (idle, healthy, collapsed, recovered))
    assert healthy["running"] > 12
    assert healthy["waiting"] < 1
    assert collapsed["running"] < 4
    assert collapsed["waiting"] > 8
    assert collapsed["utilization"] < 0.5
    assert healthy["utilization"] > 0.55
    assert recovered["running"] > 12
    assert recovered["waiting"] < 1


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("cause", CAUSES)
def test_an_episode_causes_what_its_label_says(cause: str, seed: int) -> None:
    plan = episode(cause, seed)  # type: ignore[arg-type]
    engine = plan.engine
    short = replace(plan, phases=tuple(replace(phase, seconds=60.0) for phase in plan.phases))
    middle = averages(short, seed, skip=30.0)[len(plan.phases) // 2]
    cap = 0.95 * engine.max_num_seqs * engine.ranks
    assert {phase.label for phase in plan.phases} <= {"healthy", cause}
    assert {
        "idle": middle["running"] == 0 == middle["waiting"],
        "healthy": middle["running"] > 1 and middle["waiting"] < 0.5 and middle["usage"] < 0.6,
        "kv_cache_pressure": middle["waiting"] > 2 and middle["usage"] > 0.6 and middle["running"] < cap,
        "concurrency_bound": middle["waiting"] > 5 and middle["usage"] < 0.6 and middle["running"] > cap,
        "compute_bound": middle["utilization"] > 0.85 and middle["usage"] < 0.7,
        "host_bound": middle["utilization"] < 0.6 and middle["waiting"] < 0.5,
        "stuck": middle["running"] == 0 < middle["waiting"] and middle["usage"] == 0,
    }[cause], middle


def test_a_trace_has_time_label_page_and_gpus_and_no_lines_while_the_server_is_down() -> None:
    phases = (
        Phase("healthy", 3.0, (ClosedLoop(CHAT, 3),)),
        Phase("restarting", 2.0, (), "restart"),
        Phase("idle", 3.0),
    )
    rows = list(frames(SimulatedServer(Scenario("test", gpu_engine(LLAMA_8B, H100), phases), 1)))
    assert [row["label"] for row in rows] == ["healthy"] * 3 + ["idle"] * 3
    assert set(rows[0]) == {"t", "label", "page", "gpus"}
    card = {"uuid", "index", "name", "vendor"}
    assert set(rows[0]["gpus"][0]) == {*card, "memory_used_bytes", "memory_total_bytes", "utilization_ratio"}
    assert rows[1]["t"] - rows[0]["t"] == 1.0

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpressure.capacity.arithmetic import GIB
from kvpressure.capacity.memory import Memory
from kvpressure.capacity.pool import TokenPool
from kvpressure.config.thresholds import load_thresholds
from kvpressure_planner.capacity.capacity_plan import Plan, Running, plan_model, plan_running
from kvpressure_planner.capacity.case import PlannedTraffic
from tests.support.models import geometry

pytestmark = pytest.mark.exhaustive

THRESHOLDS = load_thresholds()
MODELS = {
    name: geometry(name)
    for name in ("llama-3-8b", "llama-2-7b", "mistral-7b-v0.1", "gpt-oss-20b", "gemma-3-27b", "deepseek-v3")
}

tokens = st.integers(1, 60_000)
traffics = st.builds(PlannedTraffic, prompt_p95=tokens, output_p95=tokens)
memories = st.builds(
    Memory,
    gpu_memory_bytes=st.tuples(st.floats(8, 200).map(lambda gib: gib * GIB)),
    tensor_parallel=st.sampled_from([1, 2, 4, 8]),
    gpu_memory_utilization=st.floats(0.3, 0.98),
)
names = st.sampled_from(sorted(MODELS))


def planned(name: str, memory: Memory, traffic: PlannedTraffic, kv_cache_dtype: str = "auto") -> Plan:
    model = MODELS[name]
    cost = model.cost(kv_cache_dtype, memory.tensor_parallel)
    return plan_model(model, cost, memory, traffic, THRESHOLDS, limit=None)


@given(names, memories, traffics, st.floats(1.0, 3.0))
@settings(deadline=None)
def test_more_memory_never_lowers_max_num_seqs(
    name: str, memory: Memory, traffic: PlannedTraffic, factor: float
) -> None:
    # The server's own default is larger on a large GPU, and takes memory: declared, it is the same on both.
    memory = replace(memory, max_num_seqs=256)
    larger = replace(memory, gpu_memory_bytes=(memory.gpu_memory_bytes[0] * factor,))
    assert planned(name, larger, traffic).max_num_seqs >= planned(name, memory, traffic).max_num_seqs


@given(names, memories, traffics, st.integers(0, 20_000), st.integers(0, 20_000))
@settings(deadline=None)
def test_longer_requests_never_raise_max_num_seqs(
    name: str, memory: Memory, traffic: PlannedTraffic, prompt: int, output: int
) -> None:
    longer = PlannedTraffic(traffic.prompt_p95 + prompt, traffic.output_p95 + output)
    assert planned(name, memory, longer).max_num_seqs <= planned(name, memory, traffic).max_num_seqs


@given(names, memories, traffics)
@settings(deadline=None)
def test_an_fp8_cache_never_lowers_max_num_seqs(name: str, memory: Memory, traffic: PlannedTraffic) -> None:
    assert planned(name, memory, traffic, "fp8").max_num_seqs >= planned(name, memory, traffic).max_num_seqs


@given(names, memories, traffics)
@settings(deadline=None)
def test_the_limits_of_a_plan_fit_its_pool(name: str, memory: Memory, traffic: PlannedTraffic) -> None:
    plan = planned(name, memory, traffic)
    assert plan.max_num_seqs * plan.tokens_per_request <= plan.running_tokens
    assert plan.max_num_seqs * plan.bytes_per_request <= plan.pool_bytes
    cost = MODELS[name].cost("auto", memory.tensor_parallel)
    assert cost.request_bytes(plan.max_model_len) <= plan.pool_bytes
    assert plan.max_input_tokens + plan.max_output_tokens == plan.max_model_len
    assert plan.max_num_batched_tokens >= plan.max_num_seqs
    if plan.memory_target is not None and plan.memory_target.max_num_seqs is not None:
        assert plan.memory_target.max_num_seqs <= plan.max_num_seqs


@given(st.integers(1, 5_000_000), traffics, st.sampled_from([1, 16, 32, 528]), st.integers(0, 100_000))
@settings(deadline=None)
def test_a_running_engines_plan_fits_its_pool_and_grows_with_it(
    capacity: int, traffic: PlannedTraffic, block: int, more: int
) -> None:
    plan, larger = (
        plan_running(Running(TokenPool(tokens, block)), traffic, THRESHOLDS) for tokens in (capacity, capacity + more)
    )
    assert plan.max_num_seqs * plan.tokens_per_request <= plan.pool_tokens == capacity
    assert plan.max_model_len <= capacity
    assert larger.max_num_seqs >= plan.max_num_seqs

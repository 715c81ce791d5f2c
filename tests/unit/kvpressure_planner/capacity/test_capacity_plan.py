import re
from dataclasses import replace

import pytest

from kvpressure.capacity.arithmetic import GIB
from kvpressure.capacity.memory import COMMUNICATION_BYTES, Memory
from kvpressure.capacity.parallel import RefusedError
from kvpressure.capacity.pool import TokenPool
from kvpressure.config.thresholds import Thresholds, load_thresholds
from kvpressure.runtimes.vllm import PLANNING
from kvpressure_planner.capacity.capacity_plan import Plan, Running, batched_tokens, plan_model, plan_running
from kvpressure_planner.capacity.case import PlannedTraffic
from tests.support.models import geometry

TRAFFIC = PlannedTraffic(prompt_p95=4000, output_p95=800)


def planned(
    name: str = "llama-3-8b",
    memory: Memory | None = None,
    traffic: PlannedTraffic = TRAFFIC,
    *,
    kv_cache_dtype: str = "auto",
    limit: int | None = None,
    thresholds: Thresholds | None = None,
) -> Plan:
    read, gpus = geometry(name), memory or Memory((80 * GIB,))
    cost = read.cost(kv_cache_dtype, gpus.tensor_parallel)
    return plan_model(read, cost, gpus, traffic, thresholds or load_thresholds(), limit=limit)


def running(capacity: int, traffic: PlannedTraffic = TRAFFIC, limit: int | None = None, **known: float) -> Plan:
    pool = TokenPool(capacity, 16, known.get("bytes_per_token"))
    engine = Running(pool, limit, known.get("utilization"))
    return plan_running(engine, traffic, load_thresholds(), gpu_memory_bytes=known.get("gpu_memory_bytes"))


def result(plan: Plan, label: str) -> float:
    return next(step.value for step in plan.steps if step.label == label)


def test_the_pool_is_what_weights_and_the_rest_leave_of_the_utilization() -> None:
    plan = planned(memory=Memory((80 * GIB,), weights_bytes=15 * GIB))
    taken = [result(plan, label) for label in ("Weights", "Sampler", "CUDA graphs", "Outside torch")]
    assert taken[0] == 15 * GIB
    assert result(plan, "KV pool") == pytest.approx(80 * GIB * 0.9 - sum(taken))
    assert plan.pool_tokens == result(plan, "Pool for requests") // (128 * 1024) // 16 * 16


@pytest.mark.parametrize(
    ("name", "gpu_gib", "batched", "logged_tokens"),
    [("llama-2-7b", 79.15, 4096, 7351 * 16), ("llama-3-8b", 23.58, 20_000, 1952 * 16)],
)
def test_the_estimated_pool_is_near_what_vllm_logged_and_not_above(
    name: str, gpu_gib: float, batched: int, logged_tokens: int
) -> None:
    tokens = planned(name, Memory((gpu_gib * GIB,), max_num_batched_tokens=batched)).pool_tokens
    bytes_per_token = geometry(name).cost("auto", 1).bytes_per_token
    assert 0 <= (logged_tokens - tokens) * bytes_per_token < 0.7 * GIB


def test_max_num_seqs_is_what_fits_at_p95_beside_the_margin() -> None:
    plan = planned()
    assert plan.tokens_per_request == 4800
    assert plan.max_num_seqs == int(plan.pool_tokens * 0.9 / 4800) == 79


def test_what_would_fit_at_p50_is_told_for_comparison_only() -> None:
    plan = running(100_000, PlannedTraffic(4000, 800, prompt_p50=500, output_p50=100))
    assert result(plan, "Would fit at p50") == int(100_000 * 0.9 / 608)
    assert plan.max_num_seqs == int(100_000 * 0.9 / 4800)


def test_requests_take_whole_blocks() -> None:
    assert planned(traffic=PlannedTraffic(4000, 801)).tokens_per_request == 4816


def test_no_more_sequences_are_planned_than_vllm_takes() -> None:
    assert planned(traffic=PlannedTraffic(16, 16)).max_num_seqs == 1024
    assert (
        planned(memory=Memory((80 * GIB,), max_num_batched_tokens=64), traffic=PlannedTraffic(16, 16)).max_num_seqs
        == 64
    )


def test_tensor_parallelism_takes_the_smallest_gpu_and_divides_weights_and_heads() -> None:
    plan = planned("llama-3-70b", Memory((80 * GIB, 80 * GIB, 48 * GIB, 80 * GIB), tensor_parallel=4))
    assert result(plan, "Memory for vLLM") == pytest.approx(48 * 0.9 * GIB)
    assert result(plan, "Weights") == pytest.approx(131.41 / 4 * GIB, rel=1e-3)
    assert result(plan, "KV cache per token") == 80 * 1024


def test_a_measured_pool_replaces_every_estimate() -> None:
    plan = planned(memory=Memory((24 * GIB,), kv_cache_bytes=3.81 * GIB))
    assert plan.pool_tokens == pytest.approx(1952 * 16, rel=0.002)
    assert not any("estimated" in warning for warning in plan.warnings)


def test_one_request_never_gets_more_than_its_share_of_the_pool() -> None:
    plan = running(40_000, PlannedTraffic(1000, 200, 100, 20))
    assert plan.max_model_len == 10_000
    assert (plan.max_input_tokens, plan.max_output_tokens) == (9800, 200)


@pytest.mark.parametrize("sequences", [85, 850])
def test_beside_the_longest_requests_that_are_admitted_as_many_run_as_are_planned(sequences: int) -> None:
    """A quarter of the pool for each would mean that four of them are all that runs."""
    pool = sequences * 5360
    plan = running(pool, PlannedTraffic(4000, 800), limit=131_072)
    assert plan.max_num_seqs == pytest.approx(sequences, rel=0.01)
    assert 1.5 * 4800 < plan.max_model_len < 131_072
    held = sequences * (0.95 * 4800 + 0.05 * plan.max_model_len)
    assert held == pytest.approx(pool, rel=0.1)
    (step,) = (step for step in plan.steps if step.label == "Longest request")
    assert f"{plan.max_num_seqs} still run side by side" in step.formula


def test_where_most_requests_are_short_longer_ones_are_admitted_beside_them() -> None:
    short = running(455_632, PlannedTraffic(4000, 800, 1000, 300), limit=131_072).max_model_len
    assert short > 2 * running(455_632, PlannedTraffic(4000, 800), limit=131_072).max_model_len


def test_the_longest_request_is_at_least_a_p95_one_and_at_most_what_the_model_takes() -> None:
    assert running(8160, PlannedTraffic(2000, 300)).max_model_len == 2304
    assert running(8160, PlannedTraffic(2000, 300)).max_input_tokens >= 2000
    assert planned().max_model_len == 8192
    assert planned(limit=6000).max_model_len == 6000


def test_windowed_models_admit_requests_far_longer_than_their_windows() -> None:
    assert planned("mistral-7b-v0.1", Memory((24 * GIB,))).max_model_len == 32768


def test_a_prompt_in_prefill_holds_a_whole_steps_tokens_in_windowed_layers() -> None:
    plan = planned("mistral-7b-v0.1")
    assert result(plan, "KV pool") - result(plan, "Pool for requests") == pytest.approx(16 * 128 * 1024)
    assert plan.bytes_per_request == (4096 + 16) * 128 * 1024
    step = 4096 * 128 * 1024
    assert plan.max_num_seqs == (result(plan, "Pool for requests") * 0.9 - step) // plan.bytes_per_request
    assert plan.pool_tokens < plan.running_tokens


def test_fewer_sequences_leave_the_sampler_less_and_that_is_said() -> None:
    memory = Memory((79.1 * GIB,), 1, 0.95, 2048)
    plan = planned("gpt-oss-120b", memory, PlannedTraffic(2000, 500))
    (said,) = (warning for warning in plan.warnings if "sampler" in warning)
    (count,) = map(int, re.findall(r"plan with --max-num-seqs (\d+)", said))
    again = planned("gpt-oss-120b", replace(memory, max_num_seqs=count), PlannedTraffic(2000, 500))
    assert again.max_num_seqs >= count > plan.max_num_seqs
    assert not any("sampler" in warning for warning in again.warnings)


@pytest.mark.parametrize(
    ("traffic", "tokens"),
    [
        (PlannedTraffic(100, 100), 2048),
        (PlannedTraffic(2048, 100), 2048),
        (PlannedTraffic(2049, 100), 4096),
        (PlannedTraffic(30_000, 100), 8192),
        (PlannedTraffic(30_000, 100, prompt_p50=900), 2048),
    ],
)
def test_batched_tokens_take_a_typical_prompt_in_one_step_within_vllms_defaults(
    traffic: PlannedTraffic, tokens: int
) -> None:
    assert batched_tokens(traffic, PLANNING) == tokens


def test_the_memory_target_shrinks_the_pool_and_says_so_in_numbers() -> None:
    plan = planned()
    target = plan.memory_target
    assert target.utilization == 0.7
    assert target.pool_tokens == planned(memory=Memory((80 * GIB,), gpu_memory_utilization=0.7)).pool_tokens
    assert target.max_num_seqs < plan.max_num_seqs


def test_the_memory_target_shrinks_a_measured_pool_by_the_same_memory() -> None:
    plan = planned(memory=Memory((80 * GIB,), kv_cache_bytes=50 * GIB))
    assert plan.memory_target.pool_tokens == pytest.approx(34 * GIB / (128 * 1024), rel=1e-3)


@pytest.mark.parametrize(
    ("traffic", "target"),
    [
        (TRAFFIC, 0.7),
        (replace(TRAFFIC, prompt_p95=20_000), 0.6),
        (replace(TRAFFIC, burstiness=4), 0.6),
        (replace(TRAFFIC, burstiness=1.2), 0.7),
    ],
)
def test_long_prompts_and_bursts_lower_the_memory_target(traffic: PlannedTraffic, target: float) -> None:
    plan = running(500_000, traffic, utilization=0.9)
    assert plan.memory_target.utilization == target


def test_no_memory_target_is_given_to_who_is_at_it_already() -> None:
    assert planned(memory=Memory((80 * GIB,), gpu_memory_utilization=0.65)).memory_target is None


def test_a_running_engines_smaller_pool_is_told_only_with_its_gpus_memory() -> None:
    known = {"utilization": 0.9, "bytes_per_token": 128 * 1024}
    without, with_memory = running(400_000, **known), running(400_000, **known, gpu_memory_bytes=80 * GIB)
    assert without.memory_target.pool_tokens is None
    assert with_memory.memory_target.pool_tokens == 400_000 - 16 * GIB // (128 * 1024) - 1


def test_the_capacity_that_vllm_says_of_windowed_models_holds_far_fewer_short_requests() -> None:
    read = geometry("gemma-3-27b")
    cost = read.cost("auto", 1)
    pool_bytes = 10 * cost.request_bytes(131_072)
    engine = Running(TokenPool(10 * 131_072), 131_072, 0.9)
    known = plan_running(
        engine, TRAFFIC, load_thresholds(), geometry=read, cost=cost, gpu_memory_bytes=80 * GIB, limit=8192
    )
    assert known.pool_bytes == pytest.approx(pool_bytes)
    assert known.max_num_seqs == int(pool_bytes * 0.9 / cost.request_bytes(4800))
    assert known.max_num_seqs < plan_running(engine, TRAFFIC, load_thresholds()).max_num_seqs / 2
    assert known.memory_target.max_num_seqs == int((pool_bytes - 16 * GIB) * 0.9 / cost.request_bytes(4800))
    assert any("counted with their window" in warning for warning in known.warnings)


def test_the_capacity_of_other_models_is_the_same_with_their_geometry() -> None:
    read = geometry("llama-3-8b")
    engine = Running(TokenPool(100_000), 8192)
    known = plan_running(engine, TRAFFIC, load_thresholds(), geometry=read, cost=read.cost("auto", 1))
    assert (known.max_num_seqs, known.pool_tokens) == (running(100_000).max_num_seqs, 100_000)
    assert known.pool_bytes == 100_000 * 128 * 1024


def test_a_request_larger_than_the_pool_fits_no_plan() -> None:
    plan = running(4000)
    assert plan.max_num_seqs == 0
    assert plan.warnings[0].startswith("one p95 request (4,800 tokens) is larger than the pool (4,000 tokens)")
    assert plan.max_model_len <= 4000


def test_a_request_that_takes_the_margin_too_is_planned_alone_with_a_warning() -> None:
    plan = running(5000)
    assert plan.max_num_seqs == 1
    assert "margin" in plan.warnings[0]


def test_weights_that_leave_no_pool_are_said_first() -> None:
    plan = planned("llama-3-70b")
    assert (plan.max_num_seqs, plan.max_model_len, plan.max_input_tokens, plan.pool_tokens) == (0, 0, 0, 0)
    assert plan.warnings[0].startswith("nothing is left for the KV pool")
    assert "needs at least --tensor-parallel-size 2," in plan.warnings[0]
    assert min(step.value for step in plan.steps) >= 0
    assert result(plan, "Memory missing") == pytest.approx((131.41 + 4.53 + 0.65 - 72) * GIB, rel=0.001)


def test_the_fewest_gpus_are_those_with_which_it_fits() -> None:
    small = Memory((24 * GIB,))
    told = planned("llama-3-70b", small).warnings[0]
    assert "needs at least --tensor-parallel-size 8," in told
    assert planned("llama-3-70b", replace(small, tensor_parallel=8)).max_num_seqs > 0
    assert not planned("llama-3-70b", replace(small, tensor_parallel=4)).max_num_seqs
    huge = planned("llama-3.1-405b", small).warnings[0]
    assert "needs at least --tensor-parallel-size 16 --pipeline-parallel-size 3" in huge


def test_a_request_that_is_too_long_for_few_gpus_is_told_how_many_take_it() -> None:
    plan = planned(memory=Memory((24 * GIB,)), traffic=PlannedTraffic(30_000, 20_000), limit=8192)
    assert plan.max_num_seqs
    short = planned("qwen3-8b", Memory((20 * GIB,)), PlannedTraffic(20_000, 10_000))
    assert any("or at least --tensor-parallel-size 2)" in warning for warning in short.warnings)


def test_a_pipeline_divides_layers_and_the_fullest_stage_decides() -> None:
    plan = planned("llama-3-70b", Memory((80 * GIB,), pipeline_parallel=3))
    assert result(plan, "KV cache per token") == 27 * 4096
    ends = 128_256 * 8192
    assert result(plan, "Weights") == pytest.approx(2 * (ends + (70.55e9 - 2 * ends) * 27 / 80), rel=0.001)


def test_data_parallel_ranks_divide_experts_and_nothing_else() -> None:
    one, eight = (
        planned("deepseek-v3", Memory((141 * GIB,), 8, data_parallel=n, expert_parallel=True)) for n in (1, 8)
    )
    assert result(one, "KV cache per token") == result(eight, "KV cache per token")
    experts = 58 * 256 * 3 * 7168 * 2048
    assert result(one, "Weights") - result(eight, "Weights") == pytest.approx(experts / 8 - experts / 64)
    dense = [planned(memory=Memory((80 * GIB,), data_parallel=n)) for n in (1, 4)]
    assert result(dense[0], "KV pool") - result(dense[1], "KV pool") == COMMUNICATION_BYTES


@pytest.mark.parametrize(
    ("name", "memory", "limit", "said"),
    [
        ("llama-3-8b", Memory((80 * GIB,), tensor_parallel=3), None, "use one of 1, 2, 4, 8, 16"),
        ("qwen2.5-7b", Memory((80 * GIB,), tensor_parallel=7), None, "does not"),
        ("llama-3-8b", Memory((80 * GIB,), pipeline_parallel=33), None, "use 32 at most"),
        ("llama-3-8b", Memory((80 * GIB,), expert_parallel=True), None, "has no experts"),
        ("llama-3-8b", Memory((80 * GIB,)), 8193, "--max-model-len 8193 is above the model's own 8192"),
        (
            "qwen3-235b-a22b-fp8",
            Memory((80 * GIB,), tensor_parallel=8),
            None,
            "no whole blocks of 128 (scales of its FP8): vLLM refuses it; use --tensor-parallel-size 4",
        ),
    ],
)
def test_what_the_server_refuses_is_refused_with_what_to_do(
    name: str, memory: Memory, limit: int | None, said: str
) -> None:
    said = said.replace("does not", "neither divides the model's 4 KV heads nor is a multiple of them")
    with pytest.raises(RefusedError) as caught:
        planned(name, memory, limit=limit)
    assert said in str(caught.value)


def test_whole_experts_on_each_gpu_need_no_whole_blocks() -> None:
    assert planned("qwen3-235b-a22b-fp8", Memory((80 * GIB,), tensor_parallel=8, expert_parallel=True)).max_num_seqs


def test_a_pool_below_max_model_len_keeps_vllm_from_starting() -> None:
    warnings = running(10_000, PlannedTraffic(1000, 200), limit=32_768).warnings
    assert any("refuses to start unless --max-model-len is at most 10,000" in warning for warning in warnings)


def test_no_request_is_planned_longer_than_the_limit_and_that_is_told() -> None:
    plan = running(100_000, limit=4096)
    assert plan.tokens_per_request == 4096
    assert any("(4,800 tokens) exceed max_model_len: this plan takes 4,096" in warning for warning in plan.warnings)


def test_a_peak_that_does_not_fit_is_told_in_replicas() -> None:
    plan = planned(traffic=replace(TRAFFIC, concurrency=200))
    assert any("121 wait: 3 replicas" in warning for warning in plan.warnings)
    assert not any("replicas" in warning for warning in planned(traffic=replace(TRAFFIC, concurrency=79)).warnings)


@pytest.mark.parametrize(
    ("name", "ranks", "said"),
    [
        ("llama-3-8b", 16, "16 GPUs share 8 KV heads"),
        ("deepseek-v3", 8, "kept in full on each of the GPUs"),
    ],
)
def test_what_tensor_parallelism_does_to_the_heads_is_told(name: str, ranks: int, said: str) -> None:
    plan = planned(name, Memory((141 * GIB,), tensor_parallel=ranks))
    assert any(said in warning for warning in plan.warnings)


@pytest.mark.parametrize(
    ("name", "said"),
    [("qwen3-next-80b-a3b", "36 of 48 layers hold a fixed state"), ("gpt-oss-20b", "counted with their window")],
)
def test_what_is_special_about_a_models_layers_is_told(name: str, said: str) -> None:
    assert any(said in warning for warning in planned(name, Memory((141 * GIB,), tensor_parallel=2)).warnings)


def test_the_margin_comes_from_the_thresholds() -> None:
    tight = load_thresholds("advice_pool_headroom_ratio: 0.5")
    assert planned(thresholds=tight).max_num_seqs == int(planned().pool_tokens * 0.5 / 4800)


def test_neither_weights_nor_an_estimate_is_an_error() -> None:
    read = replace(geometry("llama-3-8b"), weights=None)
    with pytest.raises(ValueError, match="neither the weights"):
        plan_model(read, read.cost("auto", 1), Memory((80 * GIB,)), TRAFFIC, load_thresholds(), limit=None)

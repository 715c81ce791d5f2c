import math

import pytest

from kvpressure.simulation.steps import DENSE, USUAL_EXPERT_RATIO, prior_of, prior_otherwise


@pytest.mark.parametrize(
    ("name", "ratio"),
    [
        ("Qwen/Qwen3-30B-A3B-Instruct-2507", 8 / 128),
        ("Qwen/Qwen3-235B-A22B-FP8", 8 / 128),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", 10 / 512),
        ("mistralai/Mixtral-8x7B-Instruct-v0.1", 2 / 8),
        ("deepseek-ai/DeepSeek-R1-0528", 8 / 256),
        ("openai/gpt-oss-20b", 4 / 32),
        ("openai/gpt-oss-120b", 4 / 128),
        ("meta-llama/Llama-4-Scout-17B-16E-Instruct", 1 / 16),
    ],
)
def test_a_name_tells_how_many_of_its_experts_a_token_goes_to(name, ratio):
    found = prior_of(name)
    assert found.expert_ratio == ratio
    assert len(found.logarithms) == len(found.deviations) == 6


@pytest.mark.parametrize(
    "name",
    ["meta-llama/Llama-3.1-8B", "Qwen/Qwen3-32B-FP8", "DeepSeek-R1-Distill-Qwen-14B", "qwen2.5-1.5b"],
)
def test_a_name_with_a_number_of_parameters_alone_is_a_dense_model(name):
    found = prior_of(name)
    assert not found.expert_ratio
    assert prior_otherwise(name) is None


def test_a_token_of_context_takes_less_beside_the_weights_of_a_larger_model():
    small, large = prior_of("Llama-3.1-8B"), prior_of("Llama-3.1-70B")
    # What the tables of both have (`bench/silicon/prior.py`): 5.4e-6 to 9.2e-6 and 1.7e-6 to 2.1e-6.
    assert 5.4e-6 < math.exp(small.logarithms[2]) < 9.2e-6
    assert 1.7e-6 < math.exp(large.logarithms[2]) < 2.1e-6
    assert small.deviations[2] < DENSE.deviations[2]


@pytest.mark.parametrize("name", ["", "chat", "prod-model-v2", "gemma-3n"])
def test_an_alias_leaves_open_whether_there_are_experts(name):
    assert prior_of(name) is None
    other = prior_otherwise(name)
    assert other.expert_ratio == USUAL_EXPERT_RATIO


def test_a_model_with_experts_may_send_most_tokens_to_the_same_ones():
    other = prior_otherwise("Qwen3-30B-A3B")
    assert 0 < other.expert_ratio < USUAL_EXPERT_RATIO

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from kvpressure.model.samples import CacheConfig, HistogramSample
from kvpressure.model.view import Interval, Observed
from kvpressure.simulation.server import StepSeconds
from kvpressure.simulation.steps import (
    DENSE,
    USUAL_EXPERT_RATIO,
    UnknownError,
    prior_of,
    prior_otherwise,
    steps_of,
    with_experts,
)

POOL, CONTEXT, PROMPT, OUTPUT = 400_000.0, 2_000.0, 1_800.0, 400.0
TRUE = StepSeconds(0.006, 1e-5, 2e-5, 4e-8, 8e-10)
"""About a model of 8 billion parameters on an H100."""


def made(
    batch: int, prompts: float, *, true: StepSeconds = TRUE, context: float = CONTEXT, each: float = 1.0
) -> Interval:
    """An interval of 100 steps in which `batch` decoded and so many prompt tokens were computed."""
    decoding = 100 * true.of(batch, 0.0, batch * context)
    seconds = decoding + true.of(0, prompts, 0.0, prompts * PROMPT / 2) - true.fixed
    return Interval(
        seconds,
        batch,
        5.0,
        batch * context / POOL,
        steps=100.0,
        generated=batch * 100 * each,
        computed=prompts,
        preempted=0.0,
    )


def observed(intervals: Sequence[Interval], **more: float) -> Observed:
    prompts, outputs = (
        HistogramSample((length, float("inf")), (100.0, 100.0), 100 * length) for length in (PROMPT, OUTPUT)
    )
    return Observed(tuple(intervals), CacheConfig(), prompts=prompts, outputs=outputs, **more)


def found(intervals: Sequence[Interval]) -> StepSeconds:
    return steps_of(observed(intervals), POOL).likeliest


def test_what_a_prompt_token_takes_shows_where_intervals_differ():
    rng = random.Random(1)
    # Stretches, for polls are merged.
    steps = found([made(32, prompts) for _ in range(30) for prompts in [rng.choice([0, 4_000, 16_000])] * 5])
    took = steps.of(32, 4_000, 32 * CONTEXT, 4_000 * 900)
    assert took == pytest.approx(TRUE.of(32, 4_000, 32 * CONTEXT, 4_000 * 900), rel=0.05)


def test_what_a_larger_batch_takes_shows_where_batches_differ():
    rng = random.Random(2)
    steps = found([made(batch, 0) for _ in range(40) for batch in [rng.choice([4, 16, 64, 128])] * 5])
    for batch in (8, 32, 100):
        assert steps.of(batch, 0, batch * CONTEXT) == pytest.approx(TRUE.of(batch, 0, batch * CONTEXT), rel=0.05)


def test_from_one_batch_the_prior_tells_others_and_the_ends_have_the_truth_between_them():
    steps = steps_of(observed([made(32, 14_400)] * 60), POOL)
    low, high = steps.end(-2.0), steps.end(2.0)

    def gain(one: StepSeconds) -> float:
        return steps.batch.tokens_per_second(one, 2.0) / steps.batch.tokens_per_second(one)

    assert gain(low) < gain(TRUE) < gain(high)
    assert gain(low) < gain(steps.likeliest) < gain(high)
    now = [one.of(32, 144, 32 * CONTEXT, 144 * 900) for one in (low, steps.likeliest, TRUE, high)]
    assert now == pytest.approx([now[0]] * 4, rel=0.05)


@pytest.mark.parametrize("growing", [0.3, 0.9])
def test_a_share_that_grows_is_of_a_step_that_takes_what_it_takes(growing):
    steps = steps_of(observed([made(32, 0)] * 60), POOL)
    share = steps.growing(growing)
    at = share.of(32, 0, 32 * CONTEXT)
    assert at == pytest.approx(steps.likeliest.of(32, 0, 32 * CONTEXT))
    assert share.fixed == pytest.approx((1 - growing) * at)


def test_the_time_is_divided_among_what_was_done_in_it_and_little_is_left():
    rows = [made(7, 500)] * 60
    steps = found(rows)
    told = sum(100 * steps.of(7, 5, 7 * CONTEXT, 5 * PROMPT / 2) for _ in rows)
    assert told == pytest.approx(sum(row.seconds for row in rows), rel=0.01)


def test_prompts_under_way_are_told_by_the_pool():
    """Booked at its end in every tenth interval, a prompt was computed in all ten; the pool has it as it grows."""
    intervals, used = [], 100_000.0
    for number in range(100):
        one, last = made(32, 800), number % 10 == 9
        ended = 8_000 + one.generated if last else 0.0
        used += 800 + one.generated - ended
        intervals.append(
            Interval(
                one.seconds,
                32.0,
                5.0,
                used / POOL,
                steps=100.0,
                generated=one.generated,
                prompted=8_000.0 * last,
                computed=8_000.0 * last,
                preempted=0.0,
                ended_tokens=ended,
            )
        )
    polled = steps_of(observed(intervals), POOL)
    assert polled.likeliest.prompt_token > 0
    blind = steps_of(observed([one for one in intervals if not one.computed]), None)
    assert blind.likeliest.prompt_token != polled.likeliest.prompt_token


def test_a_step_that_gives_a_sequence_two_tokens_counts_twice():
    once, twice = (found([made(8, 0, each=each)] * 60).of(8, 0, 8 * CONTEXT) for each in (1.0, 2.0))
    assert twice == pytest.approx(once / 2, rel=0.02)


def test_too_few_intervals_tell_nothing():
    with pytest.raises(UnknownError):
        found([made(8, 0)] * 5)
    with pytest.raises(UnknownError):
        found([Interval(1.0, 0.0, 5.0, 0.9, steps=0.0, generated=0.0)] * 60)


def test_beyond_the_knee_a_tenth_more_give_less_than_a_twentieth_more():
    steps = steps_of(observed([made(32, 14_400)] * 60), POOL)
    times = steps.knee_requests / steps.batch.running

    def more(at: float) -> float:
        likeliest = steps.likeliest
        return steps.batch.tokens_per_second(likeliest, 1.1 * at) / steps.batch.tokens_per_second(likeliest, at)

    assert more(times) == pytest.approx(1.05)
    assert more(1.2 * times) < 1.05 < more(0.8 * times)


def test_experts_that_few_sequences_leave_unread_are_told_from_a_fixed_part():
    """At 8 sequences two fifths of 128 experts are read, at 24 four fifths: a step takes longer by that."""
    true = StepSeconds(0.004, 8e-6, 1.5e-5, 3e-8, 5e-10, 0.02, 8 / 128)
    polls = observed([made(8, 3_600, true=true)] * 60)
    with_them, dense = steps_of(polls, POOL, with_experts(8 / 128)), steps_of(polls, POOL)

    def gain(one: StepSeconds) -> float:
        return dense.batch.tokens_per_second(one, 3.0) / dense.batch.tokens_per_second(one)

    assert gain(with_them.likeliest) == pytest.approx(gain(true), rel=0.08)
    assert gain(dense.likeliest) > 1.1 * gain(true)
    assert gain(with_them.end(-2.0)) < gain(true) < gain(with_them.end(2.0))
    assert with_them.likeliest.scaled(2.0).of(20, 100) == pytest.approx(2 * with_them.likeliest.of(20, 100))
    assert math.isfinite(with_them.knee_requests)


def test_one_request_that_runs_while_others_wait_leaves_no_pause_between_steps():
    alone = [made(1, 0)] * 60
    assert found(alone).of(1, 0, CONTEXT) == pytest.approx(TRUE.of(1, 0, CONTEXT), rel=0.05)
    with pytest.raises(UnknownError, match="how long steps take is not known"):
        found([replace(one, waiting=0.0) for one in alone])


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

"""What an engine would do with room for all."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpressure.model.limits import Limit, Limits
from kvpressure.model.samples import CacheConfig, HistogramSample
from kvpressure.model.view import Interval, Observed
from kvpressure.simulation.unconstrained import UnconstrainedThroughput, unconstrained_tokens_per_second

STEP, TOKEN = 0.03, 0.0001
OUTPUTS = HistogramSample((float("inf"),), (100.0,), 20_000.0)


def interval(number: int, *, running: float = 4.0, waiting: float = 12.0) -> Interval:
    """A second or so of 20 steps; each third one computes a prompt of 1,000 tokens beside them."""
    prompts = 1000.0 if number % 3 == 0 else 0.0
    return Interval(
        seconds=20 * STEP + prompts * TOKEN,
        running=running,
        waiting=waiting,
        usage_ratio=0.9,
        steps=20.0,
        generated=20 * running,
        prompted=prompts,
        computed=prompts,
        started=1.0,
        finished=0.4,
        preempted=0.0,
    )


def observed(*intervals: Interval) -> Observed:
    return Observed(intervals=intervals, cache=CacheConfig(), prompts=None, outputs=OUTPUTS)


STEADY = observed(*(interval(number) for number in range(60)))


def with_all(batch: float, prompts_each: float) -> float:
    """Of steps that do not grow with their batch: of one batch alone nobody can know, and a little growth is taken."""
    return batch / (STEP + TOKEN * batch * prompts_each)


def test_all_who_ask_are_in_the_batch_and_prompts_take_their_time():
    assert unconstrained_tokens_per_second(STEADY, Limits()) == pytest.approx(with_all(16.0, 20_000 / 4_800), rel=0.05)


def test_no_more_than_the_engine_may_run():
    capped = unconstrained_tokens_per_second(STEADY, Limits(max_num_seqs=Limit(8.0)))
    assert capped == pytest.approx(with_all(8.0, 20_000 / 4_800), rel=0.05)


@pytest.mark.parametrize("by", [1.0, -1.0])
def test_a_queue_that_grows_or_drains_tells_what_is_asked_for(by):
    """Of 200 tokens each, beside what comes out already: the pool is short for these alone."""
    moving = observed(*(interval(number, waiting=100.0 + by * number) for number in range(60)))
    seconds = sum(one.seconds for one in moving.intervals)
    asked = (4_800 + by * 60 * 200) / seconds
    assert unconstrained_tokens_per_second(moving, Limits()) == pytest.approx(max(0.0, asked), rel=0.03)


def test_a_queue_that_moves_by_chance_is_one_of_clients_who_wait():
    moving = observed(*(interval(number, waiting=12.0 + number % 3) for number in range(60)))
    assert unconstrained_tokens_per_second(moving, Limits()) == pytest.approx(with_all(17.0, 20_000 / 4_800), rel=0.05)


def test_without_tokens_or_polls_nothing_is_told():
    assert unconstrained_tokens_per_second(observed(*STEADY.intervals[:5]), Limits()) is None
    silent = [replace(one, generated=0.0) for one in STEADY.intervals]
    assert unconstrained_tokens_per_second(observed(*silent), Limits()) is None


def test_it_is_computed_every_ten_seconds_while_there_is_trouble():
    room, other = UnconstrainedThroughput(), observed(*(interval(number, running=8.0) for number in range(60)))
    room.update(0.0, STEADY, Limits())
    first = room.rate
    room.update(9.0, other, Limits())
    assert room.rate == first == unconstrained_tokens_per_second(STEADY, Limits())
    room.update(10.0, other, Limits())
    assert room.rate == unconstrained_tokens_per_second(other, Limits())
    room.update(11.0, None, Limits())
    assert room.rate is None
    room.update(12.0, STEADY, Limits())
    assert room.rate == first


NUMBERS = st.none() | st.floats(-1e18, 1e18, allow_nan=False)


@given(st.lists(st.tuples(*[NUMBERS] * 7), min_size=12, max_size=40))
def test_no_page_is_too_strange(rows):
    """A counter may fall between two polls where labels go, and garbage is garbage."""
    intervals = (
        replace(
            interval(number),
            running=running,
            waiting=waiting,
            steps=steps,
            generated=generated,
            prompted=prompted,
            computed=computed,
            finished=finished,
        )
        for number, (running, waiting, steps, generated, prompted, computed, finished) in enumerate(rows)
    )
    rate = unconstrained_tokens_per_second(observed(*intervals), Limits())
    assert rate is None or math.isfinite(rate)


def test_the_knee_is_absent_where_steps_do_not_tell():
    room = UnconstrainedThroughput()
    room.update_knee(0.0, STEADY, Limits())
    assert room.knee_requests is not None
    assert room.families() == {"running_knee_requests": room.knee_requests}
    assert room.knee_t == 0.0
    room.update_knee(60.0, observed(interval(1)), Limits())
    assert room.families() == {}

import random

import pytest

from kvpressure.model.view import Interval
from kvpressure.simulation.calibrate_sessions import step_seconds
from kvpressure.simulation.steps import UnknownError

FIXED, SEQUENCE, TOKEN = 0.03, 0.0005, 1 / 16_000


def made(batch: int, prompts: float, seconds: float = 1.0, sequence: float = 0.0, each: float = 1.0) -> Interval:
    """An interval in which `batch` decoded and so many prompt tokens were computed."""
    steps = (seconds - prompts * TOKEN) / (FIXED + sequence * batch)
    return Interval(
        seconds, batch, 5.0, 0.9, steps=steps, generated=batch * steps * each, computed=prompts, preempted=0.0
    )


def test_what_a_prompt_token_takes_shows_where_intervals_differ():
    rng = random.Random(1)
    found = step_seconds([made(3, rng.choice([0, 0, 2800, 5600])) for _ in range(60)], None)
    assert (found.fixed, found.prompt_token) == (pytest.approx(FIXED, rel=0.01), pytest.approx(TOKEN, rel=0.05))


def test_where_all_intervals_are_alike_the_time_to_first_token_tells():
    alike = [made(3, 800) for _ in range(60)]
    took = FIXED + TOKEN * 1000
    found = step_seconds(alike, (took, 1000.0))
    assert found.prompt_token == pytest.approx(TOKEN, rel=0.1)
    assert step_seconds(alike, None).prompt_token == 0.0


def test_what_a_sequence_adds_shows_where_batches_differ():
    rng = random.Random(2)
    rows = [made(rng.choice([4, 16, 64]), 0, sequence=SEQUENCE) for _ in range(60)]
    found = step_seconds(rows, None)
    assert (found.fixed, found.sequence) == (pytest.approx(FIXED, rel=0.02), pytest.approx(SEQUENCE, rel=0.02))
    assert step_seconds([made(16, 0, sequence=SEQUENCE)] * 60, None).sequence == 0.0


def test_the_time_is_divided_among_what_was_done_in_it_and_nothing_is_left():
    rows = [made(7, 500) for _ in range(20)]
    for per_sequence in (None, 0.3):
        found = step_seconds(rows, (0.05, 500.0), per_sequence=per_sequence)
        done = sum((row.steps or 0.0) * found.of(7, 0) + found.prompt_token * 500 for row in rows)
        assert done == pytest.approx(20.0)


def test_a_step_that_gives_a_sequence_two_tokens_counts_twice():
    found = step_seconds([made(8, 0, each=2.0)] * 20, None)
    assert found.of(8, 0) == pytest.approx(FIXED / 2)


def test_too_few_intervals_tell_nothing():
    with pytest.raises(UnknownError):
        step_seconds([made(8, 0)] * 5, None)
    with pytest.raises(UnknownError):
        step_seconds([Interval(1.0, 0.0, 5.0, 0.9, steps=0.0, generated=0.0)] * 60, None)

"""prompt_seconds: what one prompt token takes, out of steps that decode too."""

import random

import pytest

from kvpressure.signals.points import Point
from kvpressure.signals.prompt_seconds import LEAST_ROWS, ROWS, PromptSeconds

PROMPT, STEP, READ = 1 / 16_000, 0.03, 0.04
"""Seconds of a prompt token, of a step, and of one that reads a full cache."""


class Engine:
    """Steps one after the other, polled every `interval` seconds."""

    def __init__(self, *, interval: float = 1.0, seed: int = 1, chunk: int = 8_192) -> None:
        self.fitted = PromptSeconds()
        self._interval, self._rng, self._chunk = interval, random.Random(seed), chunk
        self._t = self._poll = self._steps = self._generated = self._stored = self._usage = 0.0

    def run(self, seconds: float, *, busy: float = 0.4, **lacking: float) -> float | None:
        """Return what is fitted after so long, of which `busy` is about the share of prompts."""
        end = self._t + seconds
        while self._t < end:
            self._usage = min(1.0, max(0.1, self._usage + self._rng.uniform(-0.05, 0.05)))
            prompt = self._rng.randrange(self._chunk) if self._rng.random() < busy * 0.3 else 0
            took = STEP + READ * self._usage + prompt * PROMPT
            self._stored += prompt + 8  # stored as the step begins, counted as it ends
            while self._poll + self._interval <= self._t + took:
                self._poll += self._interval
                counters = {"steps": self._steps, "generation_tokens": self._generated} | lacking
                point = Point(self._poll, {"running": 8.0, "kv_usage": self._usage}, counters)
                self.fitted.take(point, self._poll, self._stored)
            self._t, self._steps, self._generated = self._t + took, self._steps + 1, self._generated + 8
        return self.fitted.seconds


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("interval", [1.0, 2.0])
def test_a_prompt_token_takes_what_is_left_of_the_time_by_the_steps_and_what_they_read(interval, seed):
    assert Engine(interval=interval, seed=seed).run(120) == pytest.approx(PROMPT, rel=0.2)


def test_where_prompts_fill_all_steps_it_is_their_whole_time():
    fitted, stored = PromptSeconds(), 0.0
    for t in range(60):
        fitted.take(Point(float(t), {"running": 2.0}, {"steps": 2.0 * t, "generation_tokens": 0.0}), float(t), stored)
        stored += 16_000
    assert fitted.seconds == pytest.approx(PROMPT, rel=1e-6)


def test_events_that_were_read_between_two_polls_are_set_beside_the_work_done_by_then():
    rng, fitted, work = random.Random(5), PromptSeconds(), [(0.0, 0.0)]
    for _ in range(100):  # a second each: so many prompt tokens, and steps in the rest of it
        tokens = rng.uniform(0, 15_000)
        work.append((work[-1][0] + tokens, work[-1][1] + (1 - tokens * PROMPT) / STEP))
    for t in range(1, 100):
        middle = (work[t - 1][0] + work[t][0]) / 2
        fitted.take(Point(float(t), {"running": 1.0}, {"steps": work[t][1], "generation_tokens": 0.0}), t - 0.5, middle)
    assert fitted.seconds == pytest.approx(PROMPT, rel=1e-3)


def test_nothing_is_reported_too_soon_of_idle_or_rare_polls_nor_without_a_count_of_steps():
    assert Engine(interval=5.0).run(600) is None
    engine = Engine()
    assert engine.run(2.0 * LEAST_ROWS - 2) is None
    idle, uncounted = PromptSeconds(), PromptSeconds()
    for t in range(100):
        counters = {"steps": float(t), "generation_tokens": float(t)}
        idle.take(Point(float(t), {"running": float(t % 2)}, counters), float(t), 1_000.0 * t)
        uncounted.take(Point(float(t), {"running": 1.0}, {"generation_tokens": float(t)}), float(t), 1_000.0 * t)
    assert (idle.seconds, uncounted.seconds) == (None, None)


def test_another_process_begins_anew_and_what_is_kept_is_bounded():
    engine = Engine()
    assert engine.run(1_000) is not None
    assert len(engine.fitted._rows) == ROWS
    engine.fitted.restarted()
    assert engine.fitted.seconds is None
    assert engine.run(60) == pytest.approx(PROMPT, rel=0.15)


def test_a_row_in_which_events_were_lost_is_left_out():
    fitted, stored = PromptSeconds(), 0.0
    for t in range(120):
        if t % 10 == 5:
            fitted.interrupted()
        fitted.take(Point(float(t), {"running": 2.0}, {"steps": 2.0 * t, "generation_tokens": 0.0}), float(t), stored)
        stored += 0 if t % 10 == 4 else 16_000
    assert fitted.seconds == pytest.approx(PROMPT, rel=1e-6)


def test_a_clock_that_goes_back_and_counts_that_begin_anew_lose_one_row():
    fitted = PromptSeconds()
    for second in range(120):
        wall, stored = (second, 16_000.0 * second) if second < 60 else (second - 50, 16_000.0 * (second - 60))
        point = Point(float(wall), {"running": 2.0}, {"steps": 2.0 * second, "generation_tokens": 0.0})
        fitted.take(point, float(wall), stored)
    assert fitted.seconds == pytest.approx(PROMPT, rel=1e-6)

"""What requests take of the cache for a moment: a start where layers differ, a prompt that ends with its step."""

from dataclasses import replace

import pytest

from kvpressure.model.environment import PREFILL
from kvpressure.signals.context import Context
from kvpressure.signals.fit import Fit, coming_in_tokens, fit_of
from kvpressure.signals.windows import EngineWindow
from tests.support.engines import CACHE, THRESHOLDS, window


def jumping(jump: float, usage: float = 0.65):
    """A batch of five that holds `usage`; every tenth poll falls into a start, which takes `jump` on top."""
    return lambda t: {"running": 5.0, "waiting": 15.0, "kv_usage": usage + (jump if t % 10 == 7 else 0.0)}


def prompts(t: int) -> dict[str, float]:
    """Prompts of 2,000 tokens: in a pool of 10,000 each would fit."""
    counts = {"finished_prompts": 0.5 * t, "finished_prompt_tokens": 1000.0 * t, "prompt_tokens": 1000.0 * t}
    return counts | {"started": 0.5 * t, "steps": 20.0 * t, "generation_tokens": 100.0 * t}


def of(gauges) -> EngineWindow:
    return window(60, gauges, prompts, cache=replace(CACHE, layers_differ=True, max_model_len=8000))


def fit(gauges) -> Fit:
    made = of(gauges)
    return fit_of(made.latest(20.0, 8), made, Context(THRESHOLDS))


@pytest.mark.parametrize(
    ("gauges", "ratio"),
    [
        pytest.param(jumping(0.2), 0.13 + 0.2, id="more than its share"),
        pytest.param(jumping(0.05), None, id="the spread of lengths"),
        pytest.param(lambda t: {"running": 5.0 - t % 2, "kv_usage": 0.13 * (5 - t % 2)}, None, id="the batch changes"),
        pytest.param(lambda t: {"running": 0.0, "kv_usage": 0.5}, None, id="nothing runs"),
        pytest.param(lambda t: {"running": 5.0}, None, id="use not known"),
    ],
)
def test_what_a_start_takes_beyond_its_share_is_learned(gauges, ratio):
    learned = coming_in_tokens(of(gauges), THRESHOLDS)
    unseen = THRESHOLDS.room.coming_in_unseen_factor
    assert learned == (None if ratio is None else pytest.approx(ratio * 10_000 * unseen))


def test_a_queue_that_the_jump_does_not_fit_is_blocked():
    found = fit(jumping(0.2))
    assert not found.fit_unknown
    assert found.blocked_ratio == 1.0


def test_where_it_fits_nothing_is_known_still():
    found = fit(jumping(0.12, usage=0.3))
    assert found.blocked_ratio == 0.0
    assert not found.fit_unknown, "the longest request fits, too"
    assert fit(jumping(0.09, usage=0.6)).fit_unknown, "longer ones may not fit, and the jump does"


def prefilling(prompts: float, *, capacity: int, answer: float = 1.0, running: float = 0.0, role: str = "") -> Fit:
    """A step of a second takes so many prompts of 2,000 tokens, which end with it; a dozen others wait at each poll."""

    def counters(t: int) -> dict[str, float]:
        ended = {"finished_prompts": prompts * t, "finished_prompt_tokens": 2000 * prompts * t}
        computed = {"prompt_tokens": 2000 * prompts * t, "started": prompts * t, "steps": float(t)}
        return ended | computed | {"finished_output_tokens": answer * prompts * t}

    gauges = {"running": running, "waiting": 12.0, "kv_usage": 0.1}
    made = window(60, lambda t: gauges, counters, cache=replace(CACHE, capacity_tokens=capacity))
    return fit_of(made.latest(20.0, 8), made, replace(Context(THRESHOLDS), role=role))


def test_prompts_that_come_and_go_within_a_step_took_the_room_that_no_poll_shows_taken():
    assert prefilling(4, capacity=10_000).blocked_ratio == 1.0
    assert prefilling(4, capacity=40_000).blocked_ratio == 0.0, "there was room for many more: another limit holds it"
    assert prefilling(4, capacity=10_000, answer=20.0).blocked_ratio == 0.0, "requests that stay are in use at polls"
    assert prefilling(4, capacity=10_000, answer=20.0, role=PREFILL).blocked_ratio == 1.0


def test_what_a_poll_shows_running_is_not_counted_twice():
    assert prefilling(4, capacity=10_000, running=4.0).blocked_ratio == 0.0

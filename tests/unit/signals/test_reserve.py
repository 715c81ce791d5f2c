"""`signals.reserve`: what has to be free for answers, and what batches with a queue show of it."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from kvpressure.model.samples import CacheConfig, EngineSample
from kvpressure.signals.context import Context
from kvpressure.signals.fit import fit_of
from kvpressure.signals.points import BATCH, Point, with_batch
from kvpressure.signals.reserve import RequestedTokens, reserved
from kvpressure.signals.windows import EngineWindow
from tests.support.engines import THRESHOLDS, histogram

STEPS, PROMPT, ANSWER = 20.0, 400.0, 100.0
POOL = CacheConfig(block_size=1, capacity_tokens=20_000, decode_tokens=512.0)


def engine(
    batch: Callable[[int], float], *, ratio: float | None = 0.1, waiting: float = 9.0, prompt_steps: float = 1.0
) -> tuple[EngineWindow, float]:
    """Return 21 polls of a pool with 12,000 tokens free, and what requests are known to ask for."""
    made, learned, requested, generated = EngineWindow(60, 600), RequestedTokens(), 0.0, 0.0
    for t in range(21):
        generated += STEPS * batch(t)
        gauges = {"running": batch(t), "waiting": waiting, "kv_usage": 0.4, "free_tokens": 12_000.0}
        counters = {
            "generation_tokens": generated,
            "prompt_tokens": PROMPT * t,
            "started": float(t),
            "finished_prompts": float(t),
            "finished_prompt_tokens": PROMPT * t,
            "decode_steps": STEPS * t,
            "prefill_tokens": PROMPT * t,
            "steps": (STEPS + prompt_steps) * t,
        }
        answers = {"request_output_tokens": histogram((ANSWER,), (1.0 + t, 1.0 + t), ANSWER * (1 + t))}
        gauges |= {} if ratio is None else {"reserve_ratio": ratio}
        made.add(float(t), EngineSample("m", "0", gauges, counters, answers, POOL))
        requested = learned.take(made, THRESHOLDS)
    return made, requested


def blocked(made: EngineWindow, requested: float) -> float | None:
    return fit_of(made.latest(20.0, 8), made, Context(THRESHOLDS, requested_tokens=requested)).blocked_ratio


def test_a_batch_that_grew_while_requests_waited_was_limited_by_what_was_reserved():
    made, requested = engine(lambda t: 10.0 if t < 10 else 14.0)
    # 12,000 were not enough for a prompt of 400, its answer, and a tenth of what ten more may generate.
    assert requested == pytest.approx((12_000 - PROMPT + 0.1 * 10 * ANSWER / 2) / (1 + 0.1 * 10))
    assert blocked(made, requested) == 1.0


@pytest.mark.parametrize(
    "made",
    [
        engine(lambda _: 14.0),
        engine(lambda t: 10.0 if t < 10 else 10.5),
        engine(lambda t: 10.0 if t < 10 else 14.0, waiting=0.0),
        engine(lambda t: 10.0 if t < 10 else 14.0, prompt_steps=2 * STEPS),
        engine(lambda t: 10.0 if t < 10 else 14.0, ratio=None),
    ],
    ids=["a cap", "a place that is being filled", "nobody waits", "prompts take turns", "nothing is reserved"],
)
def test_nothing_is_known_where_something_else_may_hold_the_batch(made: tuple[EngineWindow, float]):
    window, requested = made
    assert requested == 0.0
    assert blocked(window, requested) == 0.0


def test_what_was_known_is_forgotten_with_the_longer_window():
    made, learned = EngineWindow(60, 600), RequestedTokens()
    for t in range(21):
        batch = 10.0 if t < 10 else 14.0
        gauges = {"running": batch, "waiting": 9.0, "kv_usage": 0.4, "reserve_ratio": 0.1}
        counters = {"prompt_tokens": PROMPT * t, "started": float(t), "decode_steps": STEPS * t, "steps": STEPS * t}
        counters["prefill_tokens"] = counters["prompt_tokens"]
        counters["generation_tokens"] = STEPS * (10.0 * min(t, 9) + 14.0 * max(0, t - 9))
        made.add(float(t), EngineSample("m", "0", gauges, counters, {}, POOL))
        found = learned.take(made, THRESHOLDS)
    assert found > 0
    made.add(700.0, EngineSample("m", "0", gauges, counters, {}, POOL))
    assert learned.take(made, THRESHOLDS) == 0.0


def test_the_answer_and_a_share_of_those_that_run_are_reserved():
    made, _ = engine(lambda _: 14.0)
    typical, longest = reserved(made.latest(1.0, 1), made)
    assert typical == [pytest.approx(ANSWER + 0.1 * 14 * ANSWER / 2)] * len(typical)
    assert longest[0] <= typical[0]
    (much, _), *_ = zip(*reserved(made.latest(1.0, 1), made, 1000.0), strict=True)
    assert much == pytest.approx(1000 + 0.1 * 14 * (1000 - ANSWER / 2))


def test_an_engine_that_only_decodes_keeps_tokens_for_each_request_that_it_has():
    made, _ = engine(lambda _: 14.0)
    points = [replace(one, gauges={**one.gauges, "fetching": 2.0}) for one in made.latest(1.0, 1)]
    assert list(reserved(points, made, 5000.0, "decode")) == 2 * [[512.0 * (1 + 14 + 2)] * len(points)]
    alone, decoding = (fit_of(made.latest(20.0, 8), made, Context(THRESHOLDS, role=role)) for role in ("", "decode"))
    assert (alone.blocked_ratio, decoding.blocked_ratio) == (0.0, 0.0)
    full = engine(lambda _: 24.0)[0]  # 12,000 tokens are free
    decoding = fit_of(full.latest(20.0, 8), full, Context(THRESHOLDS, role="decode"))
    assert decoding.blocked_by_long_ratio == 1.0
    assert decoding.by_reserve_ratio is None


@pytest.mark.parametrize(("steps", "tokens", "batch"), [(20, 200, 10.0), (4, 40, None), (20, 500, None), (0, 0, None)])
def test_the_batch_is_tokens_over_steps_unless_these_are_few_or_drafts_are_accepted(
    steps: float, tokens: float, batch: float | None
):
    before = Point(0.0, {"running": 10.0}, {"decode_steps": 5.0, "generation_tokens": 7.0, "started": 0.0})
    counters = {"prefill_tokens": 1.0, "decode_steps": 5.0 + steps, "generation_tokens": 7.0 + tokens, "started": 2.0}
    assert with_batch(Point(1.0, {"running": 10.0}, counters), before).gauges.get(BATCH) == batch

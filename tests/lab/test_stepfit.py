"""The prototype of a fit of step times: what it finds again, and what it leaves where the prior has it."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest

from bench.stepfit.__main__ import by
from bench.stepfit.fit import Coefficients, Row, bunched, fitted
from bench.stepfit.priors import of_any, of_geometry
from bench.stepfit.rows import Engine, read
from bench.stepfit.truth import steps_of, true_steps
from kvpressure.simulation.least_squares import Prior
from kvpressure.simulation.server import read_ratio
from tests.lab.regime import regimes

MINUTES = json.loads((Path(__file__).parents[1] / "fixtures" / "stepfit.json").read_text())
"""`python -m bench.stepfit .cache/lab/cards/0.33.0 NAME... --write`: a minute of a page each."""

TRUE = Coefficients(6e-3, 1e-9, 1e-5, 4e-8, 2e-5, 8e-10)
OFF = Prior(tuple(math.log(1.5 * one) for one in (6e-3, 1e-9, 2e-5, 3e-8, 3e-5, 6e-10)), (0.5,) * 6)


def polls(batches: list[int], *, seed: int = 1, prompts: bool = True) -> list[Row]:
    rng = random.Random(seed)
    rows = []
    for batch in batches:
        steps, tokens = 100, rng.randrange(0, 6_000) if prompts else 0
        decoded, pairs = steps * batch, tokens * 2_000
        read = decoded * rng.uniform(1_500, 2_500)
        work = (steps, 0, decoded, read, tokens, pairs)
        rows.append(Row(sum(x * value for x, value in zip(work, TRUE.values, strict=True)), *work))
    return rows


def test_batches_of_many_sizes_tell_what_a_step_takes_at_others() -> None:
    found = fitted(polls([4, 8, 16, 32, 64, 128] * 10), OFF).coefficients
    for batch in (2, 20, 200):
        assert found.decode(batch, 2_000) == pytest.approx(TRUE.decode(batch, 2_000), rel=0.02)
    assert found.chunk(20, 4_000, 0) == pytest.approx(TRUE.chunk(20, 4_000, 0), rel=0.05)


def test_one_batch_tells_its_own_step_and_the_prior_how_it_grows() -> None:
    found = fitted(polls([32] * 60), OFF)
    assert found.coefficients.decode(32, 2_000) == pytest.approx(TRUE.decode(32, 2_000), rel=0.01)
    grown = found.coefficients.decode(96, 2_000) / TRUE.decode(96, 2_000)
    assert 0.75 < grown < 1.25
    assert found.deviation(lambda one: one.decode(32, 2_000)) < 0.02
    assert abs(math.log(grown)) < 2 * found.deviation(lambda one: one.decode(96, 2_000))


def test_without_prompts_nothing_is_said_of_them_but_what_the_prior_says() -> None:
    found = fitted(polls([8, 64] * 30, prompts=False), OFF).coefficients
    ratio = (found.prompt / found.pair) / (math.exp(OFF.logarithms[4]) / math.exp(OFF.logarithms[5]))
    assert ratio == pytest.approx(1, rel=1e-3)


def test_bunches_have_all_that_their_polls_had() -> None:
    rows = [Row(1.0, 10, 0, 20, 300, 5, 6, 0.1 * number) for number in range(7)]
    first, second = bunched(rows, 3)
    assert (first.seconds, first.steps, first.boundary) == (3.0, 30, 0.2)
    assert second.boundary == 0.5


def test_a_token_reads_its_own_experts_and_many_tokens_read_all() -> None:
    assert read_ratio(8 / 128, 1) == pytest.approx(1 / 16)
    assert read_ratio(8 / 128, 500) == pytest.approx(1)
    assert read_ratio(0.0, 500) == 0


# -- on pages of the lab


def grown(name: str, one: Engine, fitter: str, batch: float) -> float:
    """Tokens a second at so many times the batch over those at it: by the fit, over what is true."""
    regime = regimes()[name]
    priors = {"any model": of_any, "model": of_geometry}
    steps, truth = steps_of(by(priors[fitter])(one, regime).coefficients), true_steps(regime)
    told, right = (
        known.tokens_per_second(batch * one.running, one) / known.tokens_per_second(one.running, one)
        for known in (steps, truth)
    )
    return told / right


@pytest.mark.parametrize("name", MINUTES)
@pytest.mark.parametrize(("fitter", "most"), [("any model", 0.15), ("model", 0.08)])
def test_a_minute_of_a_page_tells_what_a_larger_batch_gives(name: str, fitter: str, most: float) -> None:
    one = read(MINUTES[name])
    for batch in (1.5, 2.0, 3.0):
        assert abs(grown(name, one, fitter, batch) - 1) <= most, batch

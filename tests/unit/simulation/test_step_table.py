"""Step times of a card in the simulation: sums instead of chunks, and how fast an engine's own are."""

import pytest

from kvpressure.capacity.cards import table
from kvpressure.simulation.least_squares import Fit
from kvpressure.simulation.step_table import CARD_RATIOS, CardSteps, Chunk, fitted_to
from kvpressure.simulation.steps import Batch, Steps

H100 = table("llama-3.1-8b.h100_sxm")
BATCH = Batch(32.0, 2_000.0, 300.0, 1_500.0, 800.0)


def steps(seconds: float) -> Steps:
    """An engine whose steps take so long with the batch as it is, all of it fixed."""
    exact = [[1e18 if row == column else 0.0 for column in range(5)] for row in range(5)]
    return Steps(Fit((seconds, 1e-15, 1e-15, 1e-15, 1e-15), exact), BATCH)


@pytest.mark.parametrize(
    ("sequences", "chunks"),
    [(32, []), (32, [Chunk(2_048, 6_000)]), (0, [Chunk(8_192, 0)]), (8, [Chunk(1_024, 0)] * 4)],
)
def test_sums_say_of_a_step_what_its_chunks_say(sequences, chunks):
    tokens, pairs = sum(one.tokens for one in chunks), sum(one.tokens * (one.before + one.tokens / 2) for one in chunks)
    told = CardSteps(H100).of(sequences, tokens, 1_000.0 * sequences, pairs)
    assert told == pytest.approx(H100.seconds(sequences, 1_000.0, chunks), rel=0.002)


def test_a_card_that_is_slower_is_so_in_all_and_a_host_in_each_step():
    own = CardSteps(H100, 1.1, 0.004)
    assert own.of(8, 0, 8_000) == pytest.approx(1.1 * H100.of(8, 0, 8_000) + 0.004)
    assert own.scaled(2.0).of(8, 0, 8_000) == pytest.approx(2 * own.of(8, 0, 8_000))
    assert own.record()["gpu"] == "h100_sxm"
    assert 1e-5 < own.prompt_token < 4e-5


def test_what_a_card_cannot_take_is_its_hosts():
    told = H100.of(32, 0, 64_000)
    slower, host = fitted_to(H100, steps(1.1 * told), 0.0), fitted_to(H100, steps(3 * told), 0.0)
    assert (slower.by, slower.host_seconds) == (pytest.approx(1.1), pytest.approx(0.0, abs=1e-9))
    assert (host.by, host.host_seconds) == (CARD_RATIOS[1], pytest.approx((3 - CARD_RATIOS[1]) * told))


def test_at_the_ends_all_that_is_slower_is_the_cards_or_the_hosts():
    told = H100.of(32, 0, 64_000)
    card, host = (fitted_to(H100, steps(1.5 * told), end) for end in (-1.6, 1.6))
    assert (card.by, card.host_seconds) == (pytest.approx(1.5), pytest.approx(0.0, abs=1e-9))
    assert (host.by, host.host_seconds) == (1.0, pytest.approx(0.5 * told))

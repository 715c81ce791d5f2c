"""Step times of real cards: the tables beside the library's answers, and what the lab makes of them."""

import json
import math
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from kvpressure.capacity.cards import names, table, text_of
from kvpressure.simulation.step_table import FORMAT, SECONDS, Chunk, Curve, Grid
from tests.lab.cards import Work, alike, empty_step_seconds, seconds
from tests.lab.regime import Card, Cost, Regime, parse, regimes
from tests.lab.vary import varied

ANSWERS: dict[str, list[list[float]]] = json.loads(
    (Path(__file__).parents[1] / "fixtures" / "silicon.json").read_text()
)
MAX_BYTES = 50_000
ON_CARDS = {name: regime for name, regime in regimes().items() if regime.card is not None}


def on(card: Card | None, cost: Cost | None = None) -> Regime:
    made = parse("card-any", {"about": "any", "expect": "healthy", "load": [{"clients": 1}]})
    return replace(made, card=card, cost=cost or made.cost)


# -- the tables


def test_every_table_is_small_and_says_how_it_was_made() -> None:
    for name in names():
        assert len(text_of(name)) <= MAX_BYTES
        assert set(table(name).made) == {"command", "library", "license", "date"}


def test_the_library_was_asked_about_every_table() -> None:
    assert set(ANSWERS) == set(names())


@pytest.mark.parametrize("name", names())
def test_a_table_is_as_near_to_the_library_as_is_said(name: str) -> None:
    off = []
    for sequences, context, chunks, tokens, before, microseconds in ANSWERS[name]:
        told = table(name).seconds(sequences, context, [Chunk(tokens, before)] * int(chunks))
        off.append(abs(told / SECONDS / microseconds - 1))
    assert median(off) <= 0.01
    assert max(off) <= 0.05


@pytest.mark.parametrize("name", names())
def test_more_work_never_takes_less_time(name: str) -> None:
    steps = table(name)
    assert steps.seconds(1, 1) < steps.seconds(32, 1_000) < steps.seconds(32, 30_000) < steps.seconds(256, 30_000)
    alone, deep = (steps.seconds(0, 0, [Chunk(2_048, before)]) for before in (0, 60_000))
    assert alone < deep < steps.seconds(32, 1_000, [Chunk(2_048, 60_000)])


def test_a_public_trace_of_another_engine_says_about_the_same() -> None:
    # Qwen3-8B on an H100, vLLM 0.29 (yinli-systems/single-gpu-inference-lab): milliseconds.
    steps = table("qwen3-8b.h100_sxm")
    assert steps.seconds(2, 300) == pytest.approx(7.14e-3, rel=0.08)
    assert steps.seconds(32, 300) == pytest.approx(7.4e-3, rel=0.08)
    assert steps.seconds(32, 300, [Chunk(480, 1_900)]) == pytest.approx(14.3e-3, rel=0.08)
    assert steps.seconds(32, 300, [Chunk(480, 15_800)]) == pytest.approx(22e-3, rel=0.12)


# -- interpolation


def test_a_curve_is_straight_between_its_points_and_goes_on_beyond_them() -> None:
    curve = Curve((1.0, 3.0, 5.0), (10.0, 20.0, 40.0))
    assert [curve.at(x) for x in (0.5, 1, 2, 3, 4, 6)] == [10, 10, 15, 20, 30, 50]


def test_a_grid_finds_a_product_again() -> None:
    axis = (1.0, 2.0, 4.0, 8.0)
    grid = Grid(axis, axis, tuple(tuple(3 + row * column for column in axis) for row in axis))
    assert grid.at(3, 5) == pytest.approx(3 + 15)
    assert grid.at(16, 16) == pytest.approx(3 + 256)


def test_a_grid_of_powers_finds_a_square_again() -> None:
    axis = (1.0, 2.0, 4.0, 8.0)
    grid = Grid(axis, axis, tuple(tuple(row**2 * column for column in axis) for row in axis), power=True)
    assert grid.at(3, 5) == pytest.approx(9 * 5)
    assert grid.at(16, 3) == pytest.approx(256 * 3)


def test_chunks_of_different_lengths_count_as_equal_ones_of_as_many_pairs() -> None:
    steps = table("llama-3.1-8b.h100_sxm")
    equal = steps.seconds(0, 0, [Chunk(512, 1_000)] * 2)
    assert steps.seconds(0, 0, [Chunk(512, 0), Chunk(512, 2_000)]) == pytest.approx(equal)
    assert steps.seconds(0, 0, [Chunk(500, 1_000), Chunk(524, 1_000)]) == pytest.approx(equal, rel=0.01)


@pytest.mark.parametrize("name", names())
def test_a_table_has_axes_that_rise_and_a_time_at_each_place_of_them(name: str) -> None:
    made = table(name)
    assert json.loads(text_of(name))["format"] == FORMAT
    for curve in (made.decode_tokenwise, made.mixed_tokenwise):
        assert len(curve.axis) == len(curve.values) >= 2
        assert sorted(set(curve.axis)) == list(curve.axis)
        assert all(0 < value < math.inf for value in curve.values)
    for grid in (made.decode_attention, *made.chunk_attention):
        assert len(grid.values) == len(grid.rows)
        assert all(len(line) == len(grid.columns) for line in grid.values)
        assert all(sorted(set(axis)) == list(axis) for axis in (grid.rows, grid.columns, made.chunk_counts))
        assert all(0 < value < math.inf for line in grid.values for value in line)


# -- steps of the lab


def test_a_step_is_split_into_what_decodes_and_chunks_after_what_precedes_them() -> None:
    assert Work.of([(1, 300), (1, 500), (512, 2_560)], 1) == Work(2, (300, 500), (Chunk(512, 2_048),))
    assert Work.of([(3, 300), (4, 4)], 3) == Work(3, (300,), (Chunk(4, 0),))


def test_without_a_card_a_step_takes_what_the_formula_says() -> None:
    cost = Cost(step_seconds=0.01, prefill_token_seconds=1e-4, sequence_seconds=1e-3, context_token_seconds=1e-6)
    took, share = seconds(on(None, cost), Work.of([(1, 300), (100, 400)], 1))
    assert took == pytest.approx(0.01 + 100e-4 + 1e-3 + 700e-6)
    assert share == pytest.approx(1 - 0.01 / took)


def test_on_a_card_a_step_takes_what_the_table_says_and_the_host_besides() -> None:
    work = Work.of([(1, 300), (1, 500), (512, 2_560)], 1)
    steps = table("llama-3.1-8b.h100_sxm")
    by_table = steps.seconds(2, 400, [Chunk(512, 2_048)])
    assert seconds(on(Card(table="llama-3.1-8b.h100_sxm")), work)[0] == pytest.approx(by_table)
    slow = on(Card(table="llama-3.1-8b.h100_sxm", host_layer_seconds=0.0008, slower=1.5))
    assert seconds(slow, work)[0] == pytest.approx(1.5 * by_table + 0.0008 * 32)
    assert empty_step_seconds(slow) == pytest.approx(1.5 * steps.seconds(1, 1) + 0.0008 * 32)


def test_regimes_are_on_many_cards_and_of_real_sizes() -> None:
    used = [regime.card.table for regime in ON_CARDS.values() if regime.card]
    assert set(used) <= set(names())
    assert {table(name).card for name in used} == {"h100_sxm", "h200_sxm", "b200_sxm", "l40s", "a100_sxm"}
    assert {table(name).tensor_parallel for name in used} == {1, 2, 4}
    pools = [regime.flags.num_gpu_blocks * regime.flags.block_size for regime in ON_CARDS.values()]
    assert min(pools) >= 128_000
    assert max(pools) == 2_000_000
    assert {regime.flags.max_num_seqs for regime in ON_CARDS.values()} >= {16, 256}


def test_a_varied_regime_has_the_same_model_on_any_card() -> None:
    cards_of = set()
    for seed in range(12):
        card = varied(regimes()["card-chat-h100"], seed).card
        assert 1 / 1.2 <= card.slower <= 1.2
        cards_of.add(card.table)
    assert cards_of <= set(alike("llama-3.1-8b.h100_sxm"))
    assert len(cards_of) > 2
    assert alike("qwen3-32b.h200_sxm") == ["qwen3-32b-fp8.h100_sxm.kv8", "qwen3-32b.h100_sxm.tp2", "qwen3-32b.h200_sxm"]

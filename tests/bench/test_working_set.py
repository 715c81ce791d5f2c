from __future__ import annotations

import random

import pytest

from bench.working_set import __main__ as bench
from bench.working_set.curve import _Stack
from bench.working_set.lab import Ran


def ran(factor: float, hits: float, sessions: float = 1.0, tokens: float = 100.0) -> Ran:
    return Ran("r", factor, sessions, round(1_000 * factor), hits, tokens, 1.0, 1.0, 0.0, 1, {})


def test_stack_distances_are_those_of_a_list_of_blocks_by_last_use():
    rng, stack, blocks = random.Random(1), _Stack(500), list[int]()
    for _ in range(500):
        block = rng.randrange(40)
        assert stack.since(block) == (blocks.index(block) if block in blocks else None)
        stack.use(block)
        blocks = [block, *(other for other in blocks if other != block)]


def test_the_cliff_is_where_half_of_the_best_hits_is_passed():
    runs = [ran(1.0, 0.1), ran(2.0, 0.7), ran(3.0, 0.8), ran(1.0, 0.9, sessions=0.5)]
    assert bench._cliff(runs, 0.8) == pytest.approx(1500)
    assert bench._cliff([ran(1.0, 0.7), ran(3.0, 0.8)], 0.8) is None


def test_bars_are_missed_where_hits_are_wrong():
    def one(hits: float) -> bench.Predicted:
        return bench.Predicted("r", True, "", (bench.Row(ran(1.5, 0.5), hits, 100.0, 1.0),))

    assert not bench.summary([one(0.54)])[1]
    lines, missed = bench.summary([one(0.6)])
    assert missed
    assert "0 of 1 within 0.05" in "\n".join(lines)


def test_the_chosen_cure_is_measured_against_the_best_one():
    runs = [ran(2.0, 0.9, tokens=90.0), ran(1.0, 0.5, 0.75, 100.0), ran(1.0, 0.5, 0.5, 50.0)]
    rows = tuple(bench.Row(run, 0.5, told, 1.0) for run, told in zip(runs, (120.0, 100.0, 50.0), strict=True))
    assert bench.Predicted("r", True, "", rows).share_of_best == pytest.approx(0.9)

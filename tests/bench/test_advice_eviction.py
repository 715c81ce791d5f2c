from __future__ import annotations

import random

import pytest

from bench.advice.eviction import Got, Predicted, cliff, hits, summary


def got(factor: float, hits: float, share: float = 1.0, tokens: float = 100.0) -> Got:
    return Got(factor, share, hits, tokens, 1.0)


def test_the_cliff_is_where_half_of_the_best_hits_is_passed():
    runs = [(got(1.0, 0.1), 1_000), (got(2.0, 0.7), 2_000), (got(3.0, 0.8), 3_000), (got(1.0, 0.9, 0.5), 1_000)]
    assert cliff(runs, 0.8) == pytest.approx(1500)
    assert cliff([(got(1.0, 0.7), 1_000), (got(3.0, 0.8), 3_000)], 0.8) is None


def test_bars_are_missed_where_hits_are_wrong():
    def one(hits: float) -> Predicted:
        return Predicted("r", True, "", ((got(1.5, hits), got(1.5, 0.5)),))

    assert not summary([one(0.54)])[1]
    lines, missed = summary([one(0.6)])
    assert missed
    assert "0 of 1 within 0.05" in "\n".join(lines)


def test_the_chosen_cure_is_measured_against_the_best_one():
    runs = [got(2.0, 0.9, tokens=90.0), got(1.0, 0.5, 0.75, 100.0), got(1.0, 0.5, 0.5, 50.0)]
    told = [got(run.factor, 0.5, run.share, tokens) for run, tokens in zip(runs, (120.0, 100.0, 50.0), strict=True)]
    assert Predicted("r", True, "", tuple(zip(told, runs, strict=True))).share_of_best == pytest.approx(0.9)


def test_hits_on_a_pool_are_those_of_a_list_of_blocks_by_last_use():
    rng = random.Random(1)
    made = [(float(t), 40, [rng.randrange(30) for _ in range(4)]) for t in range(200)]
    for blocks in (3, 10, 25):
        found, by_use = 0, list[int]()
        for t, _, used in made:
            for block in used:
                if block not in by_use[: blocks + 1]:
                    break
                found += 8 * (t >= 50)
            for block in reversed(used):
                by_use = [block, *(other for other in by_use if other != block)]
        assert hits(made, 8, blocks, 50.0) == round(found / (150 * 40), 4)

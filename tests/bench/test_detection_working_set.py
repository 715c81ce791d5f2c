"""What counts of what is told of evictions, on the recordings that are kept here."""

from __future__ import annotations

import pytest

from bench.detection.docs import WORKING_SET_HEADING, lab_part, with_lab, with_working_set
from bench.detection.working_set import Score, scored, table_of
from tests.support.tools import FIXTURES

pytestmark = pytest.mark.recorded

LAB = FIXTURES / "lab" / "workingset"


def test_sessions_that_join_are_told_without_a_false_stretch_or_a_jump():
    found = scored(LAB / "joins-0.33.0.jsonl.xz")
    assert found.regime == "joins"
    assert found.told_true >= 0.8 * found.true > 100
    assert (found.false_stretches, found.jumps) == (0, 0)
    assert (found.within, found.minutes) == (4, 4)


def test_a_pool_that_is_too_small_from_the_beginning_is_told_beside_a_larger_one_alone():
    path = LAB / "busy-040-0.33.0.jsonl.xz"
    alone = scored(path)
    assert (alone.told_true, alone.told_false) == (0, 0)
    assert scored(path, LAB / "calm-130-0.33.0.jsonl.xz").true == alone.true > 100


def test_documents_are_what_nothing_was_evicted_of():
    found = scored(LAB / "cold-0.33.0.jsonl.xz")
    assert (found.true, found.told_false, found.false_stretches) == (0, 0, 0)


def test_the_table_has_a_row_for_each_regime_and_stays_at_the_end_of_the_page():
    table = table_of([Score("joins", true=10, told_true=9), Score("joins", true=10, told_true=10), Score("cold")])
    assert [row[:5] for row in table.rows] == [
        ("joins", "2", "20", "19", "95.0 %"),
        ("cold", "1", "0", "0", "-"),
        ("all", "3", "20", "19", "95.0 %"),
    ]
    page = with_working_set("# How well\n", table)
    assert with_working_set(page, table) == page
    assert page.count(WORKING_SET_HEADING) == 1
    both = with_lab(page, [])
    assert both.endswith(page.partition(f"\n{WORKING_SET_HEADING}\n")[2])
    assert WORKING_SET_HEADING in lab_part(both)

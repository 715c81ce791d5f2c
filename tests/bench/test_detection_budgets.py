"""What a look back with six series says of a batch that a cap or a budget holds, as a table."""

from __future__ import annotations

from bench.detection.budgets import BUDGET, CAP, LINES, Look, table
from bench.detection.docs import DOCUMENT
from tests.lab.regime import BUDGETS, regimes


def test_a_row_says_how_many_were_named_and_how_near_the_tokens_of_a_step_are():
    looks = [
        Look("a", BUDGET, "concurrency_bound", 220.0, 200.0),
        Look("b", BUDGET, "none", None, 64.0),
        Look("c", BUDGET, "concurrency_bound", 45.0, 50.0),
        Look("d", CAP, "concurrency_bound", None, 50.0),
    ]
    assert table(looks).rows == (
        (BUDGET, "3", "2", "2", "1.00 (0.90 to 1.10)"),
        (CAP, "1", "1", "0", "-"),
    )


def test_the_page_has_the_place_of_the_table_and_the_regimes_are_about_budgets():
    assert DOCUMENT.read_text().count(LINES) == 2
    assert all(name.startswith("budget-") for name in regimes(BUDGETS))

"""Public reports get the right answer; what still falls short is listed with the case, and falls short as it says."""

import pytest

from tests.wild.judge import Case, cases, wrong_at, wrongs

pytestmark = pytest.mark.recorded

CASES = cases()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_report_gets_the_right_answer(case: Case):
    found = wrongs(case)
    if case.short:
        assert found, f"it is right now: take `short` out ({case.short})"
    else:
        assert found == []


@pytest.mark.parametrize(
    ("case", "seconds"),
    [pytest.param(case, seconds, id=f"{case.name}-{seconds}") for case in CASES for seconds in case.polls],
)
def test_it_does_so_at_rare_polls(case: Case, seconds: float, tmp_path):
    assert wrong_at(case, seconds, tmp_path) == []

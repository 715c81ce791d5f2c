import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvpressure.model.linear_system import solved

coefficient = st.floats(-10.0, 10.0, allow_nan=False)


@given(st.lists(st.lists(coefficient, min_size=3, max_size=3), min_size=3, max_size=6), st.tuples(*[coefficient] * 3))
def test_what_is_solved_solves_the_system(rows: list[list[float]], solution: tuple[float, float, float]) -> None:
    """Normal equations of rows, made positive definite by a ridge, as least squares has them."""
    matrix = [
        [sum(row[one] * row[other] for row in rows) + (1.0 if one == other else 0.0) for other in range(3)]
        for one in range(3)
    ]
    right = [sum(factor * value for factor, value in zip(line, solution, strict=True)) for line in matrix]
    assert solved(matrix, right) == pytest.approx(solution, rel=1e-6, abs=1e-6)


def test_rows_are_exchanged_where_the_first_has_nothing_to_divide_by() -> None:
    assert solved([[0.0, 2.0], [4.0, 1.0]], [6.0, 7.0]) == [1.0, 3.0]


def test_a_system_without_a_solution_divides_by_zero() -> None:
    with pytest.raises(ZeroDivisionError):
        solved([[1.0, 1.0], [1.0, 1.0]], [1.0, 2.0])

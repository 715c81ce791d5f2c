"""Small, positive definite systems of linear equations, solved by elimination."""

from __future__ import annotations

from collections.abc import Sequence


def solved(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """Return the solution of a system; raises ZeroDivisionError where it has none."""
    size = len(right)
    rows = [[*line, value] for line, value in zip(matrix, right, strict=True)]
    for place in range(size):
        pivot, largest = place, abs(rows[place][place])
        for line in range(place + 1, size):
            if abs(rows[line][place]) > largest:
                pivot, largest = line, abs(rows[line][place])
        rows[place], rows[pivot] = rows[pivot], rows[place]
        above, divisor = rows[place], rows[place][place]
        for line in range(place + 1, size):
            factor = rows[line][place] / divisor
            rows[line] = [value - factor * other for value, other in zip(rows[line], above, strict=True)]
    solution = [0.0] * size
    for place in reversed(range(size)):
        rest = 0.0
        for other in range(place + 1, size):
            rest += rows[place][other] * solution[other]
        solution[place] = (rows[place][size] - rest) / rows[place][place]
    return solution

"""PURE: linear equations, a handful of them."""

from __future__ import annotations

from collections.abc import Sequence


def solved(matrix: Sequence[Sequence[float]], right: Sequence[float]) -> list[float]:
    """Return the solution of a small, positive definite system."""
    size = len(right)
    rows = [[*line, value] for line, value in zip(matrix, right, strict=True)]
    for place in range(size):
        pivot = max(range(place, size), key=lambda line: abs(rows[line][place]))
        rows[place], rows[pivot] = rows[pivot], rows[place]
        for line in range(place + 1, size):
            factor = rows[line][place] / rows[place][place]
            rows[line] = [a - factor * b for a, b in zip(rows[line], rows[place], strict=True)]
    found = [0.0] * size
    for place in reversed(range(size)):
        rest = sum(rows[place][other] * found[other] for other in range(place + 1, size))
        found[place] = (rows[place][size] - rest) / rows[place][place]
    return found

"""PURE: a fit of sums of positive terms by least squares in their logarithms, with a prior, without a matrix library.

Coefficients are never negative, since their logarithms are fitted: least squares of the rows' sums, and of how far each
coefficient lies from the prior. What the rows leave open is where the prior has it, and the covariance says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

from kvpressure.model.linear_system import solved

MAX_ITERATIONS: Final = 30
CONVERGED: Final = 1e-4
MOVE: Final = 0.05
"""Of a logarithm, to see what a figure owes to a coefficient."""
MAX_MOVE: Final = 1.0
"""Of a logarithm in one iteration."""

Values = Sequence[float]


class Row(NamedTuple):
    """A sum, what each coefficient is multiplied with in it, and the standard deviation of the sum."""

    total: float
    factors: tuple[float, ...]
    deviation: float


@dataclass(frozen=True, slots=True)
class Prior:
    """Logarithms of the coefficients beside each other, with a deviation each.

    `scale` is the deviation of a factor common to all, infinite where only their ratios are known. `expert_ratio` is
    the share of its experts that a token goes to, 0 for a model without: then they have no term.
    """

    logarithms: tuple[float, ...]
    deviations: tuple[float, ...]
    expert_ratio: float = 0.0
    scale: float = math.inf


@dataclass(frozen=True)
class Fit:
    """Coefficients, and the inverse of the covariance of their logarithms, which is how precise they are."""

    values: tuple[float, ...]
    precision: Sequence[Values]

    @cached_property
    def covariance(self) -> tuple[tuple[float, ...], ...]:
        """The covariance of the logarithms."""
        return inverse(self.precision)

    def end(self, figure: Callable[[Values], float], deviations: float) -> tuple[float, ...]:
        """Return the likeliest coefficients with which the logarithm of a figure is so many deviations higher."""
        size = range(len(self.values))
        slopes = [self._slope(figure, place) for place in size]
        together = [sum(line[other] * slopes[other] for other in size) for line in self.covariance]
        deviation = self.deviation(figure)
        by = deviations / deviation if deviation else 0.0
        return tuple(value * math.exp(by * move) for value, move in zip(self.values, together, strict=True))

    def deviation(self, figure: Callable[[Values], float]) -> float:
        """Return the deviation of the logarithm of a figure that follows from the coefficients."""
        slopes = [self._slope(figure, place) for place in range(len(self.values))]
        rows = zip(slopes, self.covariance, strict=True)
        variance = sum(
            slope * sum(each * other for each, other in zip(line, slopes, strict=True)) for slope, line in rows
        )
        return math.sqrt(max(0.0, variance))

    def _slope(self, figure: Callable[[Values], float], place: int) -> float:
        low, high = (
            figure([value * math.exp(move if at == place else 0.0) for at, value in enumerate(self.values)])
            for move in (-MOVE, MOVE)
        )
        return math.log(high / low) / (2 * MOVE)


def fitted(rows: Sequence[Row], prior: Prior) -> Fit:
    """Return the coefficients that explain the rows, at least one, and lie near the prior."""
    logs = _scaled(rows, prior)
    penalty = _penalty(prior)
    sums = _sums(rows)
    for _ in range(MAX_ITERATIONS):
        normal, right = _normal(sums, [math.exp(log) for log in logs])
        for row, line in enumerate(penalty):
            for other, weight in enumerate(line):
                normal[row][other] += weight
                right[row] -= weight * (logs[other] - prior.logarithms[other])
        move = solved(normal, right)
        largest = max(map(abs, move))
        shrink = min(1.0, MAX_MOVE / largest) if largest else 1.0
        logs = [before + shrink * step for before, step in zip(logs, move, strict=True)]
        if largest < CONVERGED:
            break
    values = tuple(math.exp(log) for log in logs)
    normal, _ = _normal(sums, values)
    for row, line in enumerate(penalty):
        for other, weight in enumerate(line):
            normal[row][other] += weight
    return Fit(values, normal)


def _scaled(rows: Sequence[Row], prior: Prior) -> list[float]:
    """Return the prior's logarithms, all moved so that the rows come to what they came to."""
    values = [math.exp(logarithm) for logarithm in prior.logarithms]
    sums = sum([sum([x * value for x, value in zip(row.factors, values, strict=True)]) for row in rows])
    by = math.log(sum([row.total for row in rows]) / sums) if sums else 0.0
    return [logarithm + by for logarithm in prior.logarithms]


def _penalty(prior: Prior) -> list[list[float]]:
    """Return the inverse of the prior's covariance: of each by itself, and of a common factor."""
    weights = [deviation**-2 for deviation in prior.deviations]
    # (D + s^2 1 1')^-1 by Sherman and Morrison, which has a limit where s is infinite.
    common, size = sum(weights) + prior.scale**-2, range(len(weights))
    return [
        [(weights[row] if row == other else 0.0) - weights[row] * weights[other] / common for other in size]
        for row in size
    ]


class _Sums(NamedTuple):
    """Weighted sums over the rows: of the products of each two factors, and of each factor with the total."""

    products: list[list[float]]
    totals: list[float]


def _sums(rows: Sequence[Row]) -> _Sums:
    size = range(len(rows[0].factors))
    products, totals = [[0.0 for _ in size] for _ in size], [0.0 for _ in size]
    for row in rows:
        weight = row.deviation**-2
        for place in size:
            line, weighted = products[place], weight * row.factors[place]
            totals[place] += weighted * row.total
            for other in size:
                line[other] += weighted * row.factors[other]
    return _Sums(products, totals)


def _normal(sums: _Sums, values: Values) -> tuple[list[list[float]], list[float]]:
    """Return the normal equations of one iteration, in the logarithms."""
    normal, right = list[list[float]](), list[float]()
    for value, products, total in zip(values, sums.products, sums.totals, strict=True):
        line = [product * other for product, other in zip(products, values, strict=True)]
        normal.append([value * product for product in line])
        right.append(value * (total - sum(line)))
    return normal, right


def inverse(matrix: Sequence[Values]) -> tuple[tuple[float, ...], ...]:
    """Return the inverse of such a system."""
    size = len(matrix)
    unit = [[float(row == other) for other in range(size)] for row in range(size)]
    return tuple(tuple(solved(matrix, column)) for column in unit)

"""The fit itself, to be copied into `kvpressure.simulation.steps`: pure, and without a matrix library.

Seconds of some polls are a sum over six terms, each what was done in them times what that takes:

    fixed     steps
    experts   steps, times the share of the experts' weights that a step reads (0 for a model without experts)
    sequence  tokens decoded
    context   tokens that decoding read
    prompt    prompt tokens computed
    pair      prompt tokens, times those that preceded each

Coefficients are never negative, since their logarithms are fitted: least squares of the seconds, and of how far each
coefficient lies from the prior. The prior says how they lie beside each other (any card), or how large they are (a
known card and model), each with a deviation; what the polls do not tell is left where the prior has it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from kvpressure.simulation.least_squares import inverse, solved

TERMS: Final = ("fixed", "experts", "sequence", "context", "prompt", "pair")
NOISE_RATIO: Final = 0.03
"""Deviation of a row's seconds from what the terms say: steps are no sums of five terms."""
MAX_ITERATIONS: Final = 30
CONVERGED: Final = 1e-4
MOVE: Final = 0.05
"""Of a logarithm, to see what a figure owes to a coefficient."""
MAX_MOVE: Final = 1.0
"""Of a logarithm in one iteration."""


class Row(NamedTuple):
    """What was done between two polls. `boundary` is the seconds that may belong to the polls beside it."""

    seconds: float
    steps: float
    touched: float
    decoded: float
    read: float
    computed: float
    pairs: float
    boundary: float = 0.0

    @property
    def work(self) -> tuple[float, ...]:
        """Return the six factors."""
        return self.steps, self.touched, self.decoded, self.read, self.computed, self.pairs


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Seconds of a step, of reading all experts' weights, of each sequence it decodes, of each token of context these
    read, of each prompt token, and of each prompt token for each one that precedes it.

    `expert_ratio` is the share of its experts that a token goes to, 0 for a model without.
    """

    fixed: float
    experts: float
    sequence: float
    context: float
    prompt: float
    pair: float
    expert_ratio: float = 0.0

    @property
    def values(self) -> tuple[float, ...]:
        """Return the six, in order."""
        return self.fixed, self.experts, self.sequence, self.context, self.prompt, self.pair

    def decode(self, sequences: float, context: float) -> float:
        """Return the seconds of a step that decodes so many sequences of that mean context."""
        experts = self.experts * touched(self.expert_ratio, sequences)
        return self.fixed + experts + sequences * (self.sequence + context * self.context)

    def chunk(self, sequences: float, tokens: float, before: float) -> float:
        """Return the seconds that a chunk adds to a step that decodes so many sequences."""
        experts = touched(self.expert_ratio, sequences + tokens) - touched(self.expert_ratio, sequences)
        return self.experts * experts + tokens * (self.prompt + (before + tokens / 2) * self.pair)


def touched(expert_ratio: float, tokens: float) -> float:
    """Return the share of the experts that any of so many tokens goes to."""
    return 1 - math.pow(1 - expert_ratio, tokens)


@dataclass(frozen=True, slots=True)
class Prior:
    """Logarithms of the coefficients and their deviations. `scale`: deviation of a factor common to all of them.

    An infinite `scale` says that only their ratios are known.
    """

    logarithms: tuple[float, ...]
    deviations: tuple[float, ...]
    scale: float = math.inf
    expert_ratio: float = 0.0


@dataclass(frozen=True, slots=True)
class Fit:
    """Coefficients, and the covariance of their logarithms."""

    coefficients: Coefficients
    covariance: tuple[tuple[float, ...], ...]

    def deviation(self, figure: Callable[[Coefficients], float]) -> float:
        """Return the deviation of the logarithm of a figure that follows from the coefficients."""
        slopes = self.slopes(figure)
        size = range(len(slopes))
        variance = sum(slopes[one] * self.covariance[one][other] * slopes[other] for one in size for other in size)
        return math.sqrt(max(0.0, variance))

    def slopes(self, figure: Callable[[Coefficients], float]) -> list[float]:
        """Return by how much the logarithm of a figure grows with that of each coefficient."""
        return [self._slope(figure, place) for place in range(len(TERMS))]

    def _slope(self, figure: Callable[[Coefficients], float], place: int) -> float:
        low, high = (
            figure(replace(self.coefficients, **{TERMS[place]: self.coefficients.values[place] * math.exp(move)}))
            for move in (-MOVE, MOVE)
        )
        return math.log(high / low) / (2 * MOVE)


def fitted(rows: Sequence[Row], prior: Prior, *, noise: float = NOISE_RATIO) -> Fit:
    """Return the coefficients that explain the rows and lie near the prior. `rows` has at least one."""
    logs = list(_scaled(rows, prior))
    penalty = _penalty(prior)
    for _ in range(MAX_ITERATIONS):
        values = [math.exp(one) for one in logs]
        normal, right = _normal(rows, values, noise)
        for one, line in enumerate(penalty):
            for other, weight in enumerate(line):
                normal[one][other] += weight
                right[one] -= weight * (logs[other] - prior.logarithms[other])
        move = solved(normal, right)
        largest = max(map(abs, move))
        shrink = min(1.0, MAX_MOVE / largest) if largest else 1.0
        logs = [before + shrink * step for before, step in zip(logs, move, strict=True)]
        if largest < CONVERGED:
            break
    covariance = inverse(_with(_normal(rows, [math.exp(one) for one in logs], noise)[0], penalty))
    return Fit(_coefficients(logs, prior.expert_ratio), covariance)


def _coefficients(logs: Sequence[float], expert_ratio: float) -> Coefficients:
    fixed, experts, sequence, context, prompt, pair = map(math.exp, logs)
    return Coefficients(fixed, experts, sequence, context, prompt, pair, expert_ratio)


def _scaled(rows: Sequence[Row], prior: Prior) -> list[float]:
    """Return the prior's logarithms, all moved so that the rows take as long as they did."""
    values = [math.exp(one) for one in prior.logarithms]
    told = sum(sum(x * value for x, value in zip(row.work, values, strict=True)) for row in rows)
    factor = math.log(sum(row.seconds for row in rows) / told) if told else 0.0
    return [one + factor for one in prior.logarithms]


def _penalty(prior: Prior) -> list[list[float]]:
    """Return the inverse of the prior's covariance: of each by itself, and of a common factor."""
    weights = [deviation**-2 for deviation in prior.deviations]
    # (D + s^2 1 1')^-1 by Sherman and Morrison, which has a limit where s is infinite.
    common = sum(weights) + (0.0 if math.isinf(prior.scale) else prior.scale**-2)
    size = range(len(weights))
    return [
        [(weights[one] if one == other else 0.0) - weights[one] * weights[other] / common for other in size]
        for one in size
    ]


def _normal(rows: Sequence[Row], values: Sequence[float], noise: float) -> tuple[list[list[float]], list[float]]:
    """Return the normal equations of one iteration, in the logarithms."""
    size = range(len(values))
    normal, right = [[0.0 for _ in size] for _ in size], [0.0 for _ in size]
    for row in rows:
        slopes = [x * value for x, value in zip(row.work, values, strict=True)]
        weight = 1 / ((noise * row.seconds) ** 2 + row.boundary**2)
        left = row.seconds - sum(slopes)
        for one in size:
            right[one] += weight * slopes[one] * left
            for other in size:
                normal[one][other] += weight * slopes[one] * slopes[other]
    return normal, right


def _with(normal: list[list[float]], penalty: list[list[float]]) -> list[list[float]]:
    return [[a + b for a, b in zip(one, other, strict=True)] for one, other in zip(normal, penalty, strict=True)]


def bunched(rows: Sequence[Row], seconds: float) -> list[Row]:
    """Return rows of about so many seconds each, out of those that follow each other."""
    found: list[Row] = []
    held: list[Row] = []
    for row in rows:
        held.append(row)
        if sum(one.seconds for one in held) >= seconds * 0.99:
            found.append(_added(held))
            held = []
    if held and (not found or sum(one.seconds for one in held) >= seconds / 2):
        found.append(_added(held))
    return found


def _added(rows: Sequence[Row]) -> Row:
    sums = Row(*(sum(values) for values in zip(*rows, strict=True)))
    return sums._replace(boundary=max(row.boundary for row in rows))

"""The package's fit (`kvpressure.simulation.least_squares`), with six terms of a bench's rows.

Seconds of some polls are a sum over six terms, each what was done in them times what that takes:

    fixed     steps
    experts   steps, times the share of the experts' weights that a step reads (0 for a model without experts)
    sequence  tokens decoded
    context   tokens that decoding read
    prompt    prompt tokens computed
    pair      prompt tokens, times those that preceded each

The prior says how they lie beside each other (any card), or how large they are (a known card and model).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from kvpressure.simulation import least_squares
from kvpressure.simulation.least_squares import Prior
from kvpressure.simulation.server import read_ratio

TERMS: Final = ("fixed", "experts", "sequence", "context", "prompt", "pair")
NOISE_RATIO: Final = 0.03
"""Deviation of a row's seconds from what the terms say: steps are no sums of five terms."""


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
        experts = self.experts * read_ratio(self.expert_ratio, sequences)
        return self.fixed + experts + sequences * (self.sequence + context * self.context)

    def chunk(self, sequences: float, tokens: float, before: float) -> float:
        """Return the seconds that a chunk adds to a step that decodes so many sequences."""
        experts = read_ratio(self.expert_ratio, sequences + tokens) - read_ratio(self.expert_ratio, sequences)
        return self.experts * experts + tokens * (self.prompt + (before + tokens / 2) * self.pair)


@dataclass(frozen=True, slots=True)
class Fit:
    """Coefficients, and what was fitted."""

    coefficients: Coefficients
    fit: least_squares.Fit

    def deviation(self, figure: Callable[[Coefficients], float]) -> float:
        """Return the deviation of the logarithm of a figure that follows from the coefficients."""
        ratio = self.coefficients.expert_ratio
        return self.fit.deviation(lambda values: figure(_coefficients(values, ratio)))


def fitted(rows: Sequence[Row], prior: Prior, *, noise: float = NOISE_RATIO) -> Fit:
    """Return the coefficients that explain the rows and lie near the prior. `rows` has at least one."""
    sums = [least_squares.Row(row.seconds, row.work, math.hypot(noise * row.seconds, row.boundary)) for row in rows]
    found = least_squares.fitted(sums, prior)
    return Fit(_coefficients(found.values, prior.expert_ratio), found)


def _coefficients(values: Sequence[float], expert_ratio: float) -> Coefficients:
    fixed, experts, sequence, context, prompt, pair = values
    return Coefficients(fixed, experts, sequence, context, prompt, pair, expert_ratio)


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

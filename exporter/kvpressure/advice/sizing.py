"""The arithmetic behind the advice: how many requests fit, how far to cut, what a memory target costs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvpressure.model.samples import HistogramSample
from kvpressure.model.values import Derived, at, quantile


@dataclass(frozen=True, slots=True)
class Shape:
    """Lengths in tokens of prompts and answers. `recent` is False when they are those since the server's start."""

    prompt_p50: float
    prompt_p95: float
    output_p50: float
    output_p95: float
    recent: bool

    def request_p95(self, longest: float | None) -> float:
        """Return the p95 of the tokens that a request holds at its end, at most the longest one allowed.

        Long prompts seldom get the long answers: where the two have nothing to do with each other, what a request holds
        beyond the typical one grows with the root of the sum of both squares, and not with the sum.
        """
        beyond = math.hypot(self.prompt_p95 - self.prompt_p50, self.output_p95 - self.output_p50)
        return min(self.prompt_p50 + self.output_p50 + beyond, longest or math.inf)


def shape_of(derived: Derived) -> Shape | None:
    """Return lengths over the long window, else since the server's start while too few finished; None without both."""
    recent = [at(derived, family, q) for family in ("prompt_tokens", "output_tokens") for q in ("0.5", "0.95")]
    if (shape := _shape(recent, recent=True)) is not None:
        return shape
    found = (derived.get("request_prompt_tokens"), derived.get("request_output_tokens"))
    histograms = [one for one in found if isinstance(one, HistogramSample)]
    return _shape([quantile(histogram, q) for histogram in histograms for q in (0.5, 0.95)], recent=False)


def _shape(values: list[float | None], *, recent: bool) -> Shape | None:
    numbers = [value for value in values if value is not None and value > 0]
    return Shape(numbers[0], numbers[1], numbers[2], numbers[3], recent) if len(numbers) == 4 else None


def share_above(tokens: float, p50: float, p95: float) -> float:
    """Return the share of requests longer than `tokens`, on the straight line through p50 and p95; 0.05 to 0.5.

    >>> share_above(1500.0, 1000.0, 2000.0)
    0.275
    """
    along = 1.0 if p95 <= p50 else min(1.0, max(0.0, (tokens - p50) / (p95 - p50)))
    return 0.5 - 0.45 * along


def length_above(share: float, p50: float, p95: float) -> float:
    """Return the length that a `share` of the requests exceeds, on the same line.

    >>> length_above(0.275, 1000.0, 2000.0)
    1500.0
    """
    along = min(1.0, max(0.0, (0.5 - share) / 0.45))
    return p50 + along * max(0.0, p95 - p50)


def fits(capacity_tokens: float, tokens_each: float) -> int:
    """Return how many requests of `tokens_each` the pool holds together."""
    return int(capacity_tokens // tokens_each)


def round_up_tokens(tokens: float) -> int:
    """Return tokens rounded up to two significant digits.

    >>> round_up_tokens(937), round_up_tokens(3412), round_up_tokens(64)
    (940, 3500, 64)
    """
    unit = 10.0 ** max(0, math.floor(math.log10(max(1.0, tokens))) - 1)
    return int(math.ceil(tokens / unit) * unit)


@dataclass(frozen=True, slots=True)
class Caps:
    """Token limits at the edge, and how many requests of that size fit."""

    input_tokens: int
    output_tokens: int
    wanted: int


def token_caps(shape: Shape, capacity_tokens: float, running: float, waiting: float, most_refused_ratio: float) -> Caps:
    """Return limits with which twice the batch fits (at most all the demand), while they hit few enough requests.

    Each is between the length that `most_refused_ratio` of them exceed and p95: above that it would not change
    anything. Answers are cut first: a shorter answer costs its user less than a refused prompt.
    """
    wanted = max(2, math.ceil(min(running + waiting, 2.0 * max(1.0, running))))
    each = capacity_tokens / wanted
    shortest_output = length_above(most_refused_ratio, shape.output_p50, shape.output_p95)
    shortest_prompt = length_above(most_refused_ratio, shape.prompt_p50, shape.prompt_p95)
    output = min(max(each - shape.prompt_p50, shortest_output), shape.output_p95)
    prompt = min(max(each - output, shortest_prompt), shape.prompt_p95)
    return Caps(round_up_tokens(prompt), round_up_tokens(output), wanted)

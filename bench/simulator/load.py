"""Who sends what, when: traffic shapes, closed and open loops, and phases that know the truth of what they cause."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Literal

Label = Literal[
    "idle",
    "healthy",
    "kv_cache_pressure",
    "concurrency_bound",
    "compute_bound",
    "host_bound",
    "stuck",
    "restarting",
]
Fault = Literal["", "stuck", "restart"]


@dataclass(frozen=True, slots=True)
class Lengths:
    """A distribution of token counts. `spread_ratio`: half width or deviation over the mean, or sigma of the log."""

    mean: float
    kind: Literal["fixed", "uniform", "normal", "lognormal"] = "fixed"
    spread_ratio: float = 0.0

    def draw(self, rng: random.Random) -> int:
        """One length, at least 1 token; the lognormal keeps `mean` as its mean."""
        match self.kind:
            case "uniform":
                value = self.mean * rng.uniform(1 - self.spread_ratio, 1 + self.spread_ratio)
            case "normal":
                value = rng.gauss(self.mean, self.mean * self.spread_ratio)
            case "lognormal":
                value = self.mean * rng.lognormvariate(-(self.spread_ratio**2) / 2, self.spread_ratio)
            case _:
                value = self.mean
        return max(1, round(value))


@dataclass(frozen=True, slots=True)
class Traffic:
    """The shape of requests.

    A `prefix_share` of them starts with the same `prefix_tokens` tokens (part of the prompt, if that is longer); a
    `stop_share` ends by itself after `output` tokens, having asked for twice as many.
    """

    prompt: Lengths
    output: Lengths
    prefix_tokens: int = 0
    prefix_share: float = 0.0
    stop_share: float = 0.0


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """`clients` that each send, wait for the answer, think (exponential, mean in seconds) and send again.

    Each client starts at a random moment within `start_seconds`.
    """

    traffic: Traffic
    clients: int
    think_seconds: float = 0.0
    start_seconds: float = 0.05


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Poisson arrivals, from `rate` to `rate_end` requests/s over the phase, plus `burst` at once every so often."""

    traffic: Traffic
    rate: float
    rate_end: float | None = None
    burst: int = 0
    burst_every_seconds: float = 60.0

    def rate_at(self, progress: float) -> float:
        """Requests per second when that share of the phase is over."""
        end = self.rate if self.rate_end is None else self.rate_end
        return self.rate + (end - self.rate) * progress

    def next_gap(self, progress: float, rng: random.Random) -> float:
        """Seconds until the next arrival, or until to ask again when nothing arrives soon."""
        rate = self.rate_at(progress)
        return rng.expovariate(rate) if rate > 1e-6 else math.inf


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of load with its true label. Requests left over from the phase before go on, unless it `hangs_up`.

    `frontend_factor` multiplies the API process's own costs; `fault` holds for the phase (a restart takes it all).
    """

    label: Label
    seconds: float
    loads: tuple[ClosedLoop | OpenLoop, ...] = ()
    fault: Fault = ""
    frontend_factor: float = 1.0
    hangs_up: bool = False
    note: str = ""

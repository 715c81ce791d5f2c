"""The traffic: what comes when, and how the engines are started. All of it is drawn from a seed, the same for everyone.

The model is slow on purpose, less than two steps a second: then a half hour of several engines is seconds of CPU.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from tests.lab.clock import BEGIN

SECONDS: Final = 1800
STEP_SECONDS: Final = 0.6
COST: Final[Mapping[str, float]] = {
    "step_seconds": STEP_SECONDS,
    "prefill_token_seconds": 1 / 4000,
    "sequence_seconds": 0.006,
    "context_token_seconds": 3e-6,
}
FLAGS: Final[Mapping[str, Any]] = {
    "num_gpu_blocks": 2048,
    "max_num_seqs": 64,
    "max_num_batched_tokens": 2048,
    "max_model_len": 16384,
    "enable_prefix_caching": False,
}
FIRST_TOKEN_SECONDS: Final = 5.0
FIRST_TOKEN_TOKENS_PER_SECOND: Final = 1000.0
"""Of the objective: the first token comes within 5 s, and a second more for each thousand tokens of the prompt. An
empty engine takes 0.7 s for a short prompt and 4 s for one of 5,000 tokens."""
PER_TOKEN_SECONDS: Final = 2 * STEP_SECONDS
"""Of the objective: mean time between a request's tokens; twice that of an engine with one request."""


@dataclass(slots=True)
class Request:
    """One request as its client sees it; times on the run's clock, None before.

    Its first `shared` tokens are those of its `session`, the others its own. `waits` are the times from and until which
    it waited, `waits_since` is None while it does not.
    """

    arrived: float
    prompt: int
    output: int
    session: int = 0
    shared: int = 0
    first: float | None = None
    ended: float | None = None
    waits_since: float | None = None
    waits: list[tuple[float, float]] = field(default_factory=list)


Written = Literal["first", "second", "later"]
Span = tuple[int, int]
Rate = Callable[[float], float]


@dataclass(frozen=True, slots=True)
class Kind:
    """Requests a second at each time, and the range of each length in tokens (uniform), and of their sessions."""

    rate: Rate
    prompt: Span
    output: Span
    sessions: Span | None = None
    shared: int = 0


@dataclass(frozen=True, slots=True)
class Shape:
    """`written` says when: shapes of a round were written down before its rules, and those of "later" were run once,
    when the rules were done. Whatever a round was not tuned on, the next one has seen. `replicas` are those at the
    start; those in `slower` take as many times as long for a step."""

    name: str
    about: str
    kinds: tuple[Kind, ...]
    flags: Mapping[str, Any] = field(default_factory=dict)
    written: Written = "first"
    seed: int = 1
    seconds: int = SECONDS
    replicas: int = 2
    slower: Mapping[int, float] = field(default_factory=dict)

    def requests(self) -> list[Request]:
        """All requests in the order in which they come."""
        found = (one for number, kind in enumerate(self.kinds) for one in self._of(kind, number))
        return sorted(found, key=lambda one: one.arrived)

    def _of(self, kind: Kind, number: int) -> Iterator[Request]:
        """A Poisson process whose rate changes, by thinning."""
        rng = random.Random(f"{self.name}/{self.seed}/{number}")
        most = max(kind.rate(float(t)) for t in range(self.seconds))
        t = rng.expovariate(most)
        while t < self.seconds:
            if rng.random() * most < kind.rate(t):
                prompt, output = rng.randint(*kind.prompt), rng.randint(*kind.output)
                session = rng.randint(*kind.sessions) if kind.sessions else 0
                yield Request(BEGIN + t, prompt, output, session, kind.shared)
            t += rng.expovariate(most)


def chat(rate: Rate) -> Kind:
    """Prompts of some hundred tokens and answers of some dozen."""
    return Kind(rate, (500, 1300), (20, 48))


def flat(rate: float) -> Rate:
    """Always the same."""
    return lambda _: rate


def hill(low: float, high: float) -> Rate:
    """Up for half of the time and down again, as a day does."""
    return lambda t: low + (high - low) * (1 - math.cos(2 * math.pi * t / SECONDS)) / 2


def ramp(low: float, high: float) -> Rate:
    """Up all the time."""
    return lambda t: low + (high - low) * t / SECONDS


def hills(low: float, high: float) -> Rate:
    """Up and down twice."""
    return lambda t: low + (high - low) * (1 - math.cos(4 * math.pi * t / SECONDS)) / 2


def steps(*changes: tuple[float, float]) -> Rate:
    """From each of these seconds on, the rate beside it."""
    return lambda t: [rate for begin, rate in changes if begin <= t][-1]


SHAPES: Final = (
    Shape("day", "chat that rises and falls", (chat(hill(0.4, 4.0)),)),
    Shape(
        "burst",
        "two bursts of four minutes",
        (chat(steps((0, 0.7), (420, 3.0), (660, 0.7), (1200, 3.0), (1440, 0.7))),),
    ),
    Shape(
        "long-context",
        "prompts become ten times as long: a short queue in front of a full cache",
        (
            Kind(steps((0, 2.0), (600, 0.2)), (200, 500), (20, 40)),
            Kind(steps((0, 0.0), (600, 0.5)), (3500, 5500), (40, 70)),
        ),
    ),
    Shape("prefill", "long prompts, answers of a few tokens", (Kind(hill(0.3, 3.2), (1800, 2600), (2, 6)),)),
    Shape(
        "sequence-cap",
        "short requests on engines started with max_num_seqs 12: the cache stays empty",
        (Kind(hill(0.15, 1.6), (100, 300), (33, 53)),),
        {"max_num_seqs": 12},
    ),
    Shape(
        "decode",
        "long answers: large batches whose steps are slow, with room in the cache",
        (Kind(hill(0.2, 2.4), (50, 150), (80, 130)),),
        {"max_num_seqs": 256, "num_gpu_blocks": 8192},
    ),
    Shape("low", "little traffic for two replicas at the start", (chat(flat(0.25)),)),
    Shape(
        "two-kinds",
        "chat that rises and falls while documents come in waves",
        (
            Kind(hill(0.6, 2.2), (200, 700), (20, 60)),
            Kind(steps((0, 0.05), (300, 0.45), (700, 0.1), (1000, 0.6), (1350, 0.05)), (2500, 4500), (27, 67)),
        ),
        written="second",
    ),
    Shape(
        "staircase",
        "rates that jump up twice and down once, with answers of very different lengths",
        (Kind(steps((0, 0.5), (350, 1.4), (800, 2.6), (1300, 0.6)), (300, 1500), (7, 107)),),
        written="second",
    ),
    Shape(
        "small-steps",
        "engines with a prefill budget of 512 tokens and a cap of 24, in a storm of medium prompts",
        (Kind(steps((0, 0.6), (500, 2.4), (900, 1.2), (1200, 3.0), (1500, 0.6)), (600, 1000), (13, 30)),),
        {"max_num_seqs": 24, "max_num_batched_tokens": 512},
        written="second",
    ),
    Shape("two-peaks", "chat with two peaks", (Kind(hills(0.5, 3.4), (300, 900), (30, 60)),), written="later"),
    Shape(
        "agents",
        "contexts of thousands of tokens, up, down and up again",
        (Kind(steps((0, 0.3), (400, 1.2), (1000, 0.7), (1400, 1.4)), (2000, 6000), (20, 40)),),
        written="later",
    ),
    Shape(
        "reasoning",
        "short prompts, answers that fill the batch",
        (Kind(hill(0.15, 1.0), (100, 300), (150, 300)),),
        written="later",
    ),
    Shape(
        "falling",
        "more than the two at the start can do, and less and less of it",
        (chat(steps((0, 3.2), (600, 2.0), (1000, 1.0), (1400, 0.4))),),
        written="later",
    ),
    Shape(
        "spikes",
        "a little more than a minute of four times as much, every five minutes",
        (chat(steps((0, 0.6), *((t + d, r) for t in range(300, 1600, 300) for d, r in ((0, 2.8), (75, 0.6))))),),
        written="later",
    ),
    Shape(
        "slow-ramp",
        "chat and documents that grow all the time, on engines with a cap of 32",
        (Kind(ramp(0.4, 3.4), (200, 600), (20, 40)), Kind(ramp(0.05, 0.4), (1500, 3000), (30, 60))),
        {"max_num_seqs": 32},
        written="later",
    ),
)

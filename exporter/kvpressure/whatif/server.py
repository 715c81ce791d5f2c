"""What is simulated: a server's limits and the time of its steps, and who asks it for what."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

OPEN_SECONDS: Final = 600.0
MOST_ARRIVALS: Final = 20_000
"""In one run, where requests come at a rate: of more, a shorter time is simulated, the same of all that is tried."""


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Seconds of one step: a fixed part, one for each sequence that decodes, one for each prompt token computed."""

    fixed: float
    sequence: float
    prompt_token: float

    def of(self, sequences: float, prompt_tokens: float) -> float:
        """Seconds of a step of so many."""
        return self.fixed + self.sequence * sequences + self.prompt_token * prompt_tokens

    def scaled(self, by: float) -> StepSeconds:
        """Steps that take so many times as long."""
        return StepSeconds(self.fixed * by, self.sequence * by, self.prompt_token * by)


@dataclass(frozen=True, slots=True)
class Server:
    """One engine (a data-parallel rank). Sizes are tokens.

    `held_back_tokens` is what a request that waits must leave free to be admitted. A request holds
    `footprint_factor` tokens of the pool for each of its own. `reuses` says that a request that was thrown out finds
    what is left of its own blocks again, `keeps_all` that it finds all of them, in a tier outside the pool. Prompts up
    to `first_up_to` tokens go before longer ones; infinity is first come, first served. `cap_prompt` and `cap_output`
    are limits at the edge: a longer prompt is refused, a longer answer ends early; `cap_total` is one of prompt and
    answer together.
    """

    pool_tokens: float
    steps: StepSeconds
    block_tokens: float = 16.0
    max_num_seqs: float = math.inf
    step_tokens: float = 8192.0
    held_back_tokens: float = 0.0
    footprint_factor: float = 1.0
    reuses: bool = True
    keeps_all: bool = False
    first_up_to: float = math.inf
    cap_prompt: float = math.inf
    cap_output: float = math.inf
    cap_total: float = math.inf


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: tokens of its prompt, those of them that no cache holds, and of its answer."""

    prompt: int
    own: int
    output: int


@dataclass(frozen=True, slots=True)
class Apart:
    """Prompts up to so many tokens go to `short` servers, longer ones to `long` others."""

    tokens: float
    short: int
    long: int


@dataclass(frozen=True, slots=True)
class Demand:
    """Who asks. `clients` wait for their answer before they ask again; or, where that is 0, requests come at `rate`.

    Each client keeps to its part of `asked`, which is in the order of prompt length: who sends documents goes on to.
    """

    asked: tuple[Asked, ...]
    clients: int = 0
    rate: float = 0.0
    queue: int = 0
    """Requests that wait already where they come at a rate."""
    seconds: float = OPEN_SECONDS
    """Of requests that come at a rate; the same for all that are compared (`at_rate`)."""
    apart: Apart | None = None

    @staticmethod
    def at_rate(asked: tuple[Asked, ...], rate: float, queue: int = 0) -> Demand:
        """Requests that come at a rate above 0, whoever is answered."""
        return Demand(asked, 0, rate, queue, min(OPEN_SECONDS, MOST_ARRIVALS / rate))

    def times(self, factor: float) -> Demand:
        """So many times as many clients, or requests."""
        return self.divided(1 / factor)

    def divided(self, by: float) -> Demand:
        """The share of it that one of so many servers gets."""
        clients = max(1, round(self.clients / by)) if self.clients else 0
        return Demand(self.asked, clients, self.rate / by, round(self.queue / by), self.seconds, self.apart)

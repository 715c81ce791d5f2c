"""What is simulated: a server's limits and step times, and the requests that it is sent."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass, replace
from typing import Final, NamedTuple, Protocol

from kvpressure.simulation.sessions import Sessions

STEP_TOKENS: Final = 8192.0
"""Of a step where the limit is not known."""
OPEN_SECONDS: Final = 600.0
MAX_ARRIVALS: Final = 2_000
"""Of one run at a request rate. Where more would arrive, a shorter time is simulated, the same for every change."""


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Seconds of a step: a fixed part, and what grows with what is done in it.

    `sequence` for each that decodes, `context_token` for each token that these read, `prompt_token` for each that is
    computed, and `prompt_pair` for each of these and each token that precedes it. `experts` is what reading all experts
    takes, of which each token of a step goes to a share `expert_ratio`; 0 for a model without.
    """

    fixed: float
    sequence: float
    prompt_token: float
    context_token: float = 0.0
    prompt_pair: float = 0.0
    experts: float = 0.0
    expert_ratio: float = 0.0

    def of(
        self, sequences: float, prompt_tokens: float, context_tokens: float = 0.0, preceding_tokens: float = 0.0
    ) -> float:
        """Return the seconds of a step.

        It decodes `sequences` with `context_tokens` in all, and computes `prompt_tokens`; `preceding_tokens` is the sum
        over these of the tokens before each.
        """
        decode = self.fixed + self.sequence * sequences + self.context_token * context_tokens
        if self.experts:
            decode += self.experts * read_ratio(self.expert_ratio, sequences + prompt_tokens)
        return decode + self.prompt_token * prompt_tokens + self.prompt_pair * preceding_tokens

    def function(self) -> Callable[..., float]:
        """Return `of`, made for many calls."""
        fixed = self.fixed
        each = self.sequence
        context = self.context_token
        prompt, pair = self.prompt_token, self.prompt_pair

        def seconds(
            sequences: float, prompt_tokens: float, context_tokens: float = 0.0, preceding_tokens: float = 0.0
        ) -> float:
            decode = fixed + each * sequences + context * context_tokens
            return decode + prompt * prompt_tokens + pair * preceding_tokens

        return self.of if self.experts else seconds

    def scaled(self, by: float) -> StepSeconds:
        """Return step times multiplied by `by`."""
        fixed, sequence, prompt, context, pair, experts = (by * value for value in astuple(self)[:-1])
        return StepSeconds(fixed, sequence, prompt, context, pair, experts, self.expert_ratio)

    def record(self) -> dict[str, object]:
        """Return the terms by their names."""
        return asdict(self)


def read_ratio(expert_ratio: float, tokens: float) -> float:
    """Return the share of its experts that a step of so many tokens reads; each goes to a share `expert_ratio`."""
    return 1.0 - math.pow(1.0 - expert_ratio, tokens)


class StepTimes(Protocol):
    """How long a step takes: by terms, or by the table of a card (`step_table.CardSteps`)."""

    @property
    def prompt_token(self) -> float:
        """Seconds of one more prompt token."""

    def of(
        self, sequences: float, prompt_tokens: float, context_tokens: float = 0.0, preceding_tokens: float = 0.0
    ) -> float:
        """Return the seconds of a step, as `StepSeconds.of`."""

    def scaled(self, by: float) -> StepTimes:
        """Return step times multiplied by `by`."""

    def record(self) -> dict[str, object]:
        """Return what they are, for programs."""


@dataclass(frozen=True, slots=True)
class Server:
    """One engine (a data-parallel rank). Sizes are tokens.

    `watermark_tokens` must stay free when a waiting request is admitted. `reuses`: a preempted request finds what is
    left of its blocks in the prefix cache; `kv_offload`: it finds all of them in a tier outside the pool. Prompts up to
    `priority_max_prompt_tokens` are scheduled before longer ones; infinity is first come, first served. `cap_prompt`,
    `cap_output` and `cap_total` (prompt and answer together) are limits at the edge: a longer prompt is refused, a
    longer answer ends early.
    """

    pool_tokens: float
    steps: StepTimes
    block_tokens: float = 16.0
    max_num_seqs: float = math.inf
    step_tokens: float = 8192.0
    watermark_tokens: float = 0.0
    reuses: bool = True
    kv_offload: bool = False
    priority_max_prompt_tokens: float = math.inf
    cap_prompt: float = math.inf
    cap_output: float = math.inf
    cap_total: float = math.inf
    tier_tokens: float = 0.0
    """What a tier outside the pool keeps of sessions that were evicted."""
    tier_token_seconds: float = 0.0
    """To load one of its tokens; counted as if it held up a step, which is more than it does."""

    def holds(self, tokens: float) -> float:
        """Return the tokens of the pool that so many take, in blocks."""
        return tokens + self.block_tokens / 2

    @property
    def longest_prompt(self) -> float:
        """Tokens of the longest prompt that neither the edge nor the pool refuses."""
        return min(self.cap_prompt, self.cap_total - 1, self.pool_tokens - self.block_tokens / 2)


class RequestShape(NamedTuple):
    """Token counts of one request: its prompt, the part of it (`own`) that no prefix cache has, and its answer."""

    prompt: int
    own: int
    output: int

    @property
    def shared(self) -> int:
        """Prompt tokens of the common beginning, which a prefix cache always has."""
        return self.prompt - self.own


@dataclass(frozen=True, slots=True)
class LengthRouting:
    """Routing by prompt length: up to `tokens` to one of `short` servers, longer ones to one of `long` others."""

    tokens: float
    short: int
    long: int


@dataclass(frozen=True, slots=True)
class Demand:
    """The load. A closed loop of `clients`, each waiting for its answer before the next request; a `rate`; or both.

    Each client draws from its own part of `requests`, which are in order of prompt length: who sends documents goes on
    sending documents. `mixed` says that every client draws from all of them. With `sessions` clients send these
    instead, and `requests` are their like.
    """

    requests: tuple[RequestShape, ...]
    clients: int = 0
    rate: float = 0.0
    queue: int = 0
    """Requests that wait already at the start of an open loop."""
    seconds: float = OPEN_SECONDS
    """Simulated time where some come at a rate; the same for all that are compared (`at_rate`)."""
    counted_seconds: float = math.inf
    """The last of them, that are counted at most: of a queue that grows, what clients get now."""
    grown_seconds: float = 0.0
    """For how long a queue has grown by now, where less is simulated of that: it grows as evenly in the rest."""
    dispersion: float = 1.0
    """Of those at a rate: squared coefficient of variation of the time between two; 0 at constant spacing."""
    rate_deviation_ratio: float = 0.0
    """Standard deviation of the rate, as a share of it."""
    length_routing: LengthRouting | None = None
    sessions: Sessions | None = None
    mixed: bool = False
    busy_ratio: float = 1.0
    """Of the servers among which clients were divided, those that have as many as simulated; the others have none."""

    @staticmethod
    def at_rate(requests: tuple[RequestShape, ...], rate: float, queue: int = 0, clients: int = 0) -> Demand:
        """Return demand of which some arrive at `rate` a second (above 0), whether answered or not."""
        return Demand(requests, clients, rate, queue, min(OPEN_SECONDS, MAX_ARRIVALS / rate))

    @property
    def waits(self) -> bool:
        """Whether all clients wait for their answers."""
        return not self.rate

    def times(self, factor: float) -> Demand:
        """Return `factor` times as many clients, or as high a rate."""
        return self.divided(1 / factor)

    def divided(self, by: float) -> Demand:
        """Return the share of the demand that one of `by` servers gets.

        Clients are whole: where they do not come out even, as many servers as they fill have the larger number. Of
        sessions, which are many, the nearest number.
        """
        share, filled = self.clients / by, by > 1 and self.sessions is None and self.waits
        clients = max(1, math.ceil(share) if filled else round(share)) if self.clients else 0
        busy = self.busy_ratio * share / clients if self.clients and filled else self.busy_ratio
        return replace(self, clients=clients, rate=self.rate / by, queue=round(self.queue / by), busy_ratio=busy)

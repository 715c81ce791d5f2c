"""Sessions that come back: what they keep computed between two turns, where hits collapse, and what serves them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from kvpressure.simulation.config_changes import KV_8_BIT_POOL_FACTOR
from kvpressure.simulation.eviction_cures import FOUND_RATIO, ROOM_FACTOR, cliff_tokens, working_set_tokens
from kvpressure.simulation.scheduler import simulate
from kvpressure.simulation.server import Demand, RequestShape, Server, StepSeconds
from kvpressure.simulation.sessions import Sessions

THINK_RATIO: Final = 5.0
"""Longest over shortest think time: of one length, all sessions would be found or none."""
GROWN: Final = (0.5, 1.5)
"""Of the mean context, at a session's first turn and at its last."""
TURNS: Final = 15
STEPS: Final = StepSeconds(0.03, 0.0005, 1 / 16_000)
"""Of an engine that nobody has measured. Sessions think much longer than they are served, so hits hardly hang on it."""
MAX_SIMULATED: Final = 100
"""Sessions simulated; of more, as many with the same share of the pool each."""
BISECTIONS: Final = 9
MAX_REPLICAS: Final = 64


@dataclass(frozen=True, slots=True)
class SessionLoad:
    """Sessions at a time; tokens of their context on average; seconds between an answer and the next turn; turns."""

    count: int
    context_tokens: float
    think_seconds: float
    answer_tokens: float
    turns: int = TURNS

    @property
    def longest_tokens(self) -> float:
        """Tokens of a context at a session's end."""
        return GROWN[1] * self.context_tokens

    def demand(self, count: int) -> Demand:
        """Return `count` of them, as they are simulated."""
        first, longest = (share * self.context_tokens for share in GROWN)
        words = max(1.0, (longest - first) / max(1, self.turns - 1) - self.answer_tokens)
        begins = max(1.0, first - self.answer_tokens)
        answers = (self.answer_tokens, self.answer_tokens)
        made = Sessions((1.0, THINK_RATIO), (begins, begins), (words, words), answers, (self.turns, self.turns))
        shape = RequestShape(round(self.context_tokens), round(self.context_tokens), round(self.answer_tokens))
        return Demand((shape,), count, sessions=made.thinking(self.think_seconds / made.think_seconds))


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """What serves them. Bytes are on one GPU of an engine, None where a token's are not known.

    `best_hit_ratio` is the share of the prompt tokens that is found if nothing is evicted; below a pool of
    `cliff_tokens` it is less than half of that, and `pool_tokens_needed` are the least that find nine tenths of it.
    `on_pool` is what a given pool finds, None without one and where it holds no context to its end.
    """

    load: SessionLoad
    working_set_tokens: int
    working_set_bytes: float | None
    best_hit_ratio: float
    cliff_tokens: int
    pool_tokens_needed: int
    on_pool: OnPool | None = None


@dataclass(frozen=True, slots=True)
class OnPool:
    """What a pool finds of the prompt tokens, and what serves the sessions beside it.

    `replicas`, `sessions_per_replica` and `offload_tokens` are the least (the most sessions) that find nine tenths of
    what could be found, which is `enough_ratio`; None where none does.
    """

    pool_tokens: int
    hit_ratio: float
    enough_ratio: float
    hit_ratio_in_8_bits: float
    replicas: int | None
    sessions_per_replica: int | None
    offload_tokens: int
    offload_bytes: float | None

    @property
    def serves(self) -> bool:
        """Whether the pool finds enough by itself."""
        return self.hit_ratio >= self.enough_ratio


def plan_sessions(load: SessionLoad, pool_tokens: int | None, bytes_per_token: float | None) -> SessionPlan:
    """Return the plan, and what serves them beside a pool where one is given."""
    scale = max(1.0, load.count / MAX_SIMULATED)
    demand = load.demand(max(1, round(load.count / scale)))
    whole = scale * working_set_tokens((Server(1.0, STEPS), demand))

    def hits(pool: float, *, share: float = 1.0, tier: float = 0.0) -> float:
        some = replace(demand, clients=max(1, round(share * demand.clients)))
        outcome = simulate(Server(pool / scale, STEPS, tier_tokens=tier / scale), some)
        return 0.0 if outcome is None else outcome.hit_ratio or 0.0

    room = max(ROOM_FACTOR * whole, pool_tokens or 0)
    best = hits(room)
    enough = FOUND_RATIO * best
    cliff = cliff_tokens((Server(room / scale, STEPS), demand)) or 0.0

    def beside(pool: int) -> OnPool:
        offload = _least(lambda tier: hits(pool, tier=tier) >= enough, whole / 50, ROOM_FACTOR * whole)
        fewer = next((n for n in _counts(load.count) if hits(pool, share=n / load.count) >= enough), None)
        return OnPool(
            pool_tokens=pool,
            hit_ratio=hits(pool),
            enough_ratio=enough,
            hit_ratio_in_8_bits=hits(KV_8_BIT_POOL_FACTOR * pool),
            replicas=next((n for n in range(1, MAX_REPLICAS + 1) if hits(pool, share=1 / n) >= enough), None),
            sessions_per_replica=fewer,
            offload_tokens=round(offload),
            offload_bytes=None if bytes_per_token is None else offload * bytes_per_token,
        )

    holds_one = pool_tokens is not None and pool_tokens > load.longest_tokens + load.answer_tokens
    return SessionPlan(
        load=load,
        working_set_tokens=round(whole),
        working_set_bytes=None if bytes_per_token is None else whole * bytes_per_token,
        best_hit_ratio=best,
        cliff_tokens=round(cliff * scale),
        pool_tokens_needed=round(_least(lambda pool: hits(pool) >= enough, whole / 50, ROOM_FACTOR * whole)),
        on_pool=beside(pool_tokens) if pool_tokens is not None and holds_one else None,
    )


def _counts(most: int) -> list[int]:
    """Return numbers of sessions from `most` down to 1, about a twentieth apart."""
    counts, count = [], most
    while count >= 1:
        counts.append(count)
        count = min(count - 1, math.floor(0.95 * count))
    return counts


def _least(serves: Callable[[float], bool], low: float, high: float) -> float:
    for _ in range(BISECTIONS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if serves(middle) else (middle, high)
    return high

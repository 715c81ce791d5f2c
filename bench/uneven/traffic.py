"""What comes when, and which replica is slower: all of it is drawn from a seed, the same for every router."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from bench.scaling.replica import Request
from tests.lab.clock import BEGIN

SECONDS: Final = 2400
SKEWED: Final = (600, 1800)
"""What makes traffic skewed lasts from one to the other; a slower card is slower all the time."""
REPLICAS: Final = 4
SESSIONS: Final = 200
CHAT_PREFIX: Final = 300
HOT_SESSION: Final = 3
LONG_SESSIONS: Final = (4, 8)
LONG_EVERY_SECONDS: Final = 75.0
LONG_PROMPT: Final = 14_000


@dataclass(frozen=True, slots=True)
class Traffic:
    """`rate` chat requests a second; `long`: two long contexts; `hot`: requests a second of one session beside it.

    `slower`: by replica, how many times as long its steps take.
    """

    name: str
    rate: float
    long: bool = False
    hot: float = 0.0
    slower: dict[int, float] = field(default_factory=dict)

    def requests(self) -> list[Request]:
        """All of them, in the order in which they come."""
        return sorted((*self._chat(), *self._long(), *self._hot()), key=lambda one: one.arrived)

    def _times(self, rate: float, begin: float, end: float) -> Iterator[tuple[float, random.Random]]:
        rng = random.Random(f"{self.name}/{rate}")
        t = begin + rng.expovariate(rate)
        while t < end:
            yield BEGIN + t, rng
            t += rng.expovariate(rate)

    def _chat(self) -> Iterator[Request]:
        for t, rng in self._times(self.rate, 0, SECONDS):
            session = 100 + rng.randrange(SESSIONS)
            yield Request(t, rng.randint(500, 1300), rng.randint(20, 48), session=session, shared=CHAT_PREFIX)

    def _hot(self) -> Iterator[Request]:
        for t, rng in self._times(self.hot, *SKEWED) if self.hot else ():
            yield Request(t, rng.randint(900, 1300), rng.randint(20, 48), session=HOT_SESSION, shared=800)

    def _long(self) -> Iterator[Request]:
        for number, session in enumerate(LONG_SESSIONS if self.long else ()):
            t = SKEWED[0] + 10.0 * number
            while t < SKEWED[1]:
                yield Request(BEGIN + t, LONG_PROMPT, 150, session=session, shared=LONG_PROMPT - 500)
                t += LONG_EVERY_SECONDS


TRAFFIC: Final = (
    Traffic("equal", 2.0),
    Traffic("equal, nearly full", 3.2),
    Traffic("equal, too much", 4.8),
    Traffic("two long contexts", 1.6, long=True),
    Traffic("two long contexts, busy", 2.4, long=True),
    Traffic("one hot session", 1.2, hot=1.2),
    Traffic("one hot session, busy", 1.6, hot=1.8),
    Traffic("a slower card", 1.6, slower={3: 2.5}),
    Traffic("a slower card, busy", 2.4, slower={3: 2.5}),
)

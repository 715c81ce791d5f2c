"""Sessions that come back with all that was said before."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace

Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Sessions:
    """What each client does: one session after the other. Spans are bounds, between which values lie evenly.

    The first prompt of a session has `first` tokens, every other one all that was said before and `words` more; an
    answer has `answers`. A session ends after `turns`. `think`
    are seconds between an answer and the next prompt, evenly on a logarithmic scale. `shared` tokens begin every
    prompt. Of `replicas` servers this is one, and each turn goes to any of them.
    """

    think: Span
    first: Span
    words: Span
    answers: Span
    turns: Span
    shared: int = 0
    replicas: int = 1

    @property
    def think_seconds(self) -> float:
        """Mean of the think time."""
        low, high = self.think
        return (high - low) / math.log(high / low) if high > low else low

    @property
    def mean_turns(self) -> float:
        """Turns of a session on average."""
        return sum(self.turns) / 2

    @property
    def kept_tokens(self) -> float:
        """Tokens that one session has in the cache between two turns on average, without the common beginning."""
        grown = (sum(self.words) + sum(self.answers)) / 2
        return sum(self.first) / 2 - self.shared + sum(self.answers) / 2 + (self.mean_turns - 1) / 2 * grown

    def thinking(self, factor: float) -> Sessions:
        """Return the same with think times multiplied."""
        return replace(self, think=(factor * self.think[0], factor * self.think[1]))


class Session:
    """One session; `said` are the tokens of its last prompt and answer."""

    __slots__ = ("_left", "_of", "number", "said")

    def __init__(self, of: Sessions, number: int, rng: random.Random) -> None:
        self._of, self.number, self.said = of, number, 0
        self._left = rng.randint(*(round(bound) for bound in of.turns))

    def turn(self, draw: Callable[[], float]) -> tuple[int, int]:
        """Return the tokens of the next turn's prompt and of its answer; `draw` gives a number from 0 to 1."""
        of = self._of
        low, high = of.words if self.said else of.first
        prompt = round(self.said + (low + (high - low) * draw()))
        low, high = of.answers
        answer = round(low + (high - low) * draw())
        return prompt if prompt > of.shared else of.shared + 1, answer if answer > 0 else 1

    def ended_with(self, prompt: int, answer: int) -> bool:
        """Go on from that turn; return whether no further one comes."""
        self.said, self._left = prompt + answer, self._left - 1
        return self._left <= 0


def begun(of: Sessions, number: int, rng: random.Random) -> Session:
    """Return a session that is somewhere between its first turn and its last, as its client is found at any time."""
    session = Session(of, number, rng)
    for _ in range(rng.randrange(max(1, round(of.mean_turns)))):
        if session.ended_with(*session.turn(rng.random)):
            return Session(of, number, rng)
    return session

"""Sessions that come back with all that was said before, and the prefix cache that keeps it or does not."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Sessions:
    """What each client does: one session after the other. Spans are bounds, between which values lie evenly.

    The first prompt of a session has `first` tokens, every other one all that was said before and `words` more; an
    answer has `answers`. A session ends after `turns`, or where its next prompt could be longer than `longest`. `think`
    are seconds between an answer and the next prompt, evenly on a logarithmic scale. `shared` tokens begin every
    prompt. Of `replicas` servers this is one, and each turn goes to any of them.
    """

    think: Span
    first: Span
    words: Span
    answers: Span
    turns: Span
    longest: float = math.inf
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
        turns, grown = sum(self.turns) / 2, (sum(self.words) + sum(self.answers)) / 2
        if math.isinf(self.longest) or not grown:
            return turns
        return max(1.0, min(turns, 1 + (self.longest - sum(self.first) / 2) / grown))

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

    @property
    def over(self) -> bool:
        """Whether no further turn comes."""
        return self._left <= 0 or (self.said > 0 and self.said + self._of.words[1] > self._of.longest)

    def prompt(self, rng: random.Random) -> int:
        """Return the tokens of the next turn's prompt."""
        new = rng.uniform(*(self._of.words if self.said else self._of.first))
        return max(self._of.shared + 1, round(self.said + new))

    def heard(self, prompt: int, answer: int) -> None:
        """Go on from that turn."""
        self.said = prompt + answer
        self._left -= 1


class PrefixCache:
    """Cached tokens of each session that is not running, the least recently used first; `total` is their sum."""

    __slots__ = ("_tokens", "total")

    def __init__(self) -> None:
        self._tokens: dict[int, float] = {}
        self.total = 0.0

    def found(self, session: int) -> float:
        """Return how many tokens of a session are here, from its beginning on."""
        return self._tokens.get(session, 0.0)

    def take(self, session: int) -> float:
        """Remove a session: what it had is in use now."""
        tokens = self._tokens.pop(session, 0.0)
        if tokens:
            self.total -= tokens
        return tokens

    def keep(self, session: int, tokens: float) -> None:
        """Let a session have so many tokens here, as the most recently used."""
        self.take(session)
        if tokens > 0:
            self._tokens[session] = tokens
            self.total += tokens

    def shrink(self, room: float) -> None:
        """Evict until what is left fits: the least recently used session first, and its end before its beginning."""
        tokens, over = self._tokens, self.total - max(0.0, room)
        while tokens and over > 0:
            session = next(iter(tokens))
            if tokens[session] > over:
                tokens[session] -= over
                self.total -= over
                return
            evicted = tokens.pop(session)
            self.total -= evicted
            over -= evicted


def begun(of: Sessions, number: int, rng: random.Random) -> Session:
    """Return a session that is somewhere between its first turn and its last, as its client is found at any time."""
    session = Session(of, number, rng)
    for _ in range(rng.randrange(max(1, round(of.mean_turns)))):
        session.heard(session.prompt(rng), answer(of, rng))
        if session.over:
            return Session(of, number, rng)
    return session


def answer(of: Sessions, rng: random.Random) -> int:
    """Return the tokens of an answer."""
    return max(1, round(rng.uniform(*of.answers)))


def thinking(of: Sessions, rng: random.Random) -> float:
    """Return seconds between an answer and the next prompt."""
    low, high = of.think
    return math.exp(rng.uniform(math.log(low), math.log(high))) if 0 < low < high else low

"""Sessions: turns whose prompt is all that was said before, and new words."""

import math
import random
from typing import Final

from tests.lab.regime import Load, Span

ANSWER: Final = 7
"""The token that every answer consists of."""
GROUP: Final = 2
"""The system prompts of groups consist of this token and those after it."""
OWN: Final = 1_000
"""Words begin with a token from here on that nobody else has, and go on with FILLER."""
FILLER: Final = 1


class Session:
    """One conversation or one agent's task. `said`: prompt and answer of the last turn, or the system prompt."""

    def __init__(self, load: Load, rng: random.Random) -> None:
        self._load, self._rng = load, rng
        self.said = [GROUP + rng.randrange(load.prefix_groups)] * load.prefix
        self.begun = False
        self._left = rng.randint(*map(int, load.turns))

    @property
    def over(self) -> bool:
        """Whether no further turn comes."""
        longest = self._load.longest
        return self._left <= 0 or bool(longest and len(self.said) + self._load.words[1] > longest)

    def prompt(self, number: int) -> list[int]:
        """The next turn's prompt; `number` is one that no other turn has."""
        if self.begun:
            words = _length(self._load.words, self._rng)
        else:
            words = max(1, _length(self._load.prompt, self._rng) - len(self.said))
        return [*self.said, OWN + number, *[FILLER] * (words - 1)]

    def heard(self, prompt: list[int], answer: int) -> None:
        """The turn is answered with so many tokens."""
        self.said = prompt + [ANSWER] * answer
        self.begun = True
        self._left -= 1


def thinking(load: Load, rng: random.Random) -> float:
    """Seconds between an answer and what its client sends next."""
    shortest, longest = load.think
    if longest <= 0:
        return load.think_seconds * rng.uniform(0.5, 1.5)
    return math.exp(rng.uniform(math.log(shortest), math.log(longest)))


def answer_length(load: Load, rng: random.Random) -> int:
    """Tokens that a client wants."""
    return max(1, _length(load.output, rng))


def _length(span: Span, rng: random.Random) -> int:
    return round(rng.uniform(*span))

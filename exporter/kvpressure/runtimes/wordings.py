"""What a runtime's log lines say: the words that tell of trouble, of the cache's size, and of a client's request."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

GIB: Final = 2**30

Wording = tuple[str, str, str]
"""Kind (`environment.LOG_KINDS`), words that a line of it holds, and the pattern that these must be part of ("" for
nothing more); words and pattern in lower case."""


@dataclass
class Facts:
    """What the lines of one start say of the KV cache; of several ranks' the smallest.

    `tokens` are those of one rank, `memory_bytes` what one worker has for them. Where no line says tokens they are
    `blocks` of a size that is solved from `concurrency_tokens`: the requests of the longest length that fit, times
    that length. `overridden` is how many blocks the memory was for, over those there are.
    """

    t: float | None = None
    tokens: int | None = None
    memory_bytes: float | None = None
    blocks: int | None = None
    concurrency_tokens: float | None = None
    overridden: float = 1.0


Note = Callable[[Facts, re.Match[str]], None]


@dataclass(frozen=True, slots=True)
class Wordings:
    """A runtime's log.

    `rows` tell of trouble; a line that matches several kinds is of the first in the order of the kinds. `refusals`
    are words of rows whose message is a ValueError's: of any other row that is a request's own error. `words` are in
    each line that `facts` (pattern, and what notes it) are learned from, `banner` begins a new start. `quotes` matches
    lines that repeat what a client sent.
    """

    rows: tuple[Wording, ...] = ()
    refusals: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    facts: tuple[tuple[re.Pattern[str], Note], ...] = ()
    banner: str = ""
    quotes: str = ""


def whole(text: str) -> int:
    """Return a number of a log, `12,345` or `12345`; 0 for none."""
    digits = text.replace(",", "")
    return int(digits) if digits.isdecimal() else 0

"""PURE: what start-up lines say of the KV cache: tokens it holds, and bytes per token.

Each runtime says it in its own words (`runtimes.runtime.Wordings`), of one rank and of one of its GPUs, so

    bytes per token = memory for the KV cache / tokens

is what one token takes on one GPU of the rank, as its page has it.
"""

from __future__ import annotations

import re
from typing import Final

from kvpressure.runtimes.registry import RUNTIMES
from kvpressure.runtimes.runtime import Facts

WORDS: Final = tuple(dict.fromkeys(words for runtime in RUNTIMES for words in runtime.logs.words))
"""Of these, in lower case, each line that is learned from holds one; the lines of statistics hold none."""
_FACTS: Final = tuple(fact for runtime in RUNTIMES for fact in runtime.logs.facts)
_BANNERS: Final = tuple(runtime.logs.banner for runtime in RUNTIMES if runtime.logs.banner)
_TOGETHER_SECONDS: Final = 120.0
# The block size must come out as a whole number; its error is that of the concurrency, which has two decimals.
_LARGEST_BLOCK: Final = 4096
_WHOLE_WITHIN: Final = 0.25
_REQUEST: Final = re.compile(
    r"\bprompts?: |\bprompts?="
    r"|['\"](?:prompt|messages|input|content)['\"]\s*:|\binput_value=|\bmessages="
    r"|\"[A-Z]{3,10} \S{0,4000} HTTP/\d"
    # Errors of a request alone, whose messages name its parts, its template's complaints and the URLs it asked for.
    r"|\b(?:NotImplementedError|TypeError|KeyError|HTTPException|HTTPError|InvalidURL|UnidentifiedImageError"
    r"|\w{0,40}(?:Client|Template|Undefined|Validation|JSONDecode|BadRequest)\w{0,40}Error): "
    + "".join(f"|{runtime.logs.quotes}" for runtime in RUNTIMES if runtime.logs.quotes),
    re.IGNORECASE,
)


def quotes_request(text: str) -> bool:
    """Whether the line repeats what a client sent: a prompt, an answer, a request's path, its body or its model."""
    return _REQUEST.search(text) is not None


class StartUp:
    """Learns from one log's lines in their order; the newest start counts."""

    def __init__(self) -> None:
        self._start = Facts()
        self._over = True

    def begin(self) -> None:
        """Begin with a new container: the next fact is the first of a new start. Until then the old ones hold."""
        self._over = True

    def take(self, text: str, t: float | None) -> None:
        """Take one line, `t` in unix seconds or None. Facts more than two minutes apart are of different starts."""
        low = text.lower()
        if not any(words in low for words in WORDS) or quotes_request(text):
            return
        if any(banner in low for banner in _BANNERS):
            self._over = True
        for pattern, note in _FACTS:
            if (match := pattern.search(low)) is None:
                continue
            late = t is not None and self._start.t is not None and t - self._start.t > _TOGETHER_SECONDS
            if self._over or late:
                self._start, self._over = Facts(t), False
            note(self._start, match)

    @property
    def capacity_tokens(self) -> float | None:
        """Tokens the cache of one rank holds, None where not known."""
        start = self._start
        if start.tokens is not None:
            return float(start.tokens)
        block = self._block_size()
        return float(start.blocks * block) if block is not None and start.blocks is not None else None

    @property
    def bytes_per_token(self) -> float | None:
        """Bytes one token takes in one worker's cache, None where not known.

        With an override of the number of blocks the memory is that of the blocks before it.
        """
        tokens, memory = self.capacity_tokens, self._start.memory_bytes
        if tokens is None or memory is None or memory <= 0:
            return None
        return memory / (tokens * self._start.overridden)

    def _block_size(self) -> int | None:
        """Tokens in a block: concurrency = blocks * block size / longest request, solved for the block size."""
        start = self._start
        if not start.blocks or not start.concurrency_tokens:
            return None
        size = start.concurrency_tokens / start.blocks
        whole = round(size)
        return whole if 1 <= whole <= _LARGEST_BLOCK and abs(size - whole) <= _WHOLE_WITHIN else None

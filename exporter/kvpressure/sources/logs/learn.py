"""PURE: what start-up lines say of the KV cache: tokens it holds, and bytes per token.

Each worker (one GPU of a tensor or pipeline group) says how much memory it has for the cache, each engine core (a
data-parallel rank), in some versions each worker, how many tokens that makes. Both are numbers of one rank, so

    bytes per token = memory for the KV cache / tokens

is what one token takes on one GPU of the rank, as `cache_config_info` has it. Where ranks differ the smallest values
are taken: the one with the least memory decides for all (vLLM takes the fewest blocks of its workers).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from kvpressure.sources.logs.quoted import quotes_request

GIB: Final = 2**30
WORDS: Final = (
    "api server version",
    "kv cache size: ",
    "available kv cache memory: ",
    "for kv cache",
    " blocks: ",
    "maximum concurrency for ",
    "num_gpu_blocks_override=",
)
"""Of these, in lower case, each line that is learned from holds one; the lines of statistics hold none."""
_TOGETHER_SECONDS: Final = 120.0
_TOKENS: Final = re.compile(r"\bkv cache size: ([\d,]{1,20}) tokens")
_MEMORY: Final = re.compile(
    r"available kv cache memory: (-?\d{1,7}(?:\.\d{1,9})?) ?gib"
    r"|memory reserved for kv cache is (-?\d{1,7}(?:\.\d{1,9})?) ?gib"
    r"|reserved (-?\d{1,7}(?:\.\d{1,9})?) ?gib memory for kv cache as specified by",
)
_BLOCKS: Final = re.compile(r"# (?!cpu)\w{1,20} blocks: (\d{1,12})")
_CONCURRENCY: Final = re.compile(r"maximum concurrency for ([\d,]{1,20}) tokens per request: (\d{1,9}(?:\.\d{1,9})?)x")
_OVERRIDE: Final = re.compile(r"overriding num_gpu_blocks=(\d{1,12}) with num_gpu_blocks_override=(\d{1,12})")
_BANNER: Final = "vllm api server version"
# The block size must come out as a whole number; its error is that of the concurrency, which has two decimals.
_LARGEST_BLOCK: Final = 4096
_WHOLE_WITHIN: Final = 0.25


@dataclass
class _Start:
    """The facts of one start; of several ranks' the smallest."""

    t: float | None = None
    tokens: int | None = None
    memory_bytes: float | None = None
    blocks: int | None = None
    concurrency_tokens: float | None = None
    overridden: float = 1.0


class StartUp:
    """Learns from one log's lines in their order; the newest start counts."""

    def __init__(self) -> None:
        self._start = _Start()
        self._over = True

    def begin(self) -> None:
        """A new container: the next fact is the first of a new start. Until then the old ones hold."""
        self._over = True

    def take(self, text: str, t: float | None) -> None:
        """Take one line, `t` in unix seconds or None. Facts more than two minutes apart are of different starts."""
        low = text.lower()
        if not any(words in low for words in WORDS) or quotes_request(text):
            return
        if _BANNER in low:
            self._over = True
        for pattern, note in _FACTS:
            match = pattern.search(low)
            if match is not None:
                note(self._of_this_start(t), match)

    def _of_this_start(self, t: float | None) -> _Start:
        late = t is not None and self._start.t is not None and t - self._start.t > _TOGETHER_SECONDS
        if self._over or late:
            self._start, self._over = _Start(t), False
        return self._start

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


def _tokens(start: _Start, match: re.Match[str]) -> None:
    if tokens := _count(match[1]):
        start.tokens = min(tokens, start.tokens or tokens)


def _memory(start: _Start, match: re.Match[str]) -> None:
    memory = float(next(group for group in match.groups() if group is not None)) * GIB
    start.memory_bytes = memory if start.memory_bytes is None else min(memory, start.memory_bytes)


def _blocks(start: _Start, match: re.Match[str]) -> None:
    if blocks := _count(match[1]):
        start.blocks = min(blocks, start.blocks or blocks)


def _concurrency(start: _Start, match: re.Match[str]) -> None:
    start.concurrency_tokens = _count(match[1]) * float(match[2])


def _override(start: _Start, match: re.Match[str]) -> None:
    found, wanted = _count(match[1]), _count(match[2])
    start.overridden = found / wanted if found and wanted else 1.0


def _count(text: str) -> int:
    digits = text.replace(",", "")
    return int(digits) if digits.isdecimal() else 0


_FACTS: Final = (
    (_TOKENS, _tokens),
    (_MEMORY, _memory),
    (_BLOCKS, _blocks),
    (_CONCURRENCY, _concurrency),
    (_OVERRIDE, _override),
)

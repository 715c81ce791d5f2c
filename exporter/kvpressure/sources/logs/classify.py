"""PURE: which kind of trouble a log line reports, whichever runtime wrote it. One row per wording.

Only what the server itself says counts. Lines at level INFO or DEBUG are no failures, and neither are access-log lines
and lines that quote a request: what a user typed ("CUDA out of memory") must never look like one.
"""

from __future__ import annotations

import re
from typing import Final

from kvpressure.runtimes.registry import RUNTIMES
from kvpressure.sources.logs import learn
from kvpressure.sources.logs.learn import quotes_request

MAX_LINES_OF_A_WORDING: Final = 200
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_LEVEL: Final = re.compile(r"\b(TRACE|DEBUG|INFO|WARNING|ERROR|CRITICAL|FATAL)\b")
_QUIET_FIELD: Final = re.compile(
    r"['\"](?:level|levelname|log_?level|severity)['\"]\s*:\s*['\"](?:info|debug)|\blevel=(?:info|debug)\b",
    re.IGNORECASE,
)
_LEVEL_WITHIN: Final = 160
_CAPACITY: Final = "kv_capacity"
_REFUSED: Final = re.compile(r"\bvalueerror: ")
_OF_VALUE_ERRORS: Final = ("kv_exhausted", _CAPACITY)
# Of the libraries that every runtime is built on.
_SHARED: Final = (
    ("device_oom", "out of memory", r"(?:cuda|hip|xpu|npu|gpu)(?: error:| failure(?: \d+)?)? '?out of memory"),
    ("device_oom", "outofmemoryerror", r"\boutofmemoryerror\b"),  # torch.OutOfMemoryError, torch.cuda.OutOfMemoryError
    ("device_oom", "cudaerrormemoryallocation", ""),
    ("device_oom", "hiperroroutofmemory", ""),
    ("other", "cuda error: ", ""),
    ("other", "hip error: ", ""),
    ("other", "nccl", r"\bnccl (?:error|warn)|\bnccl\w{0,20}error\b"),
    ("other", "watchdog caught collective operation timeout", ""),
    ("other", "hsa_status_error", ""),
    ("other", "fatal python error: ", ""),
)
# Death before the others: "EngineDeadError: ... OutOfMemoryError(...)" repeats why it died.
_ORDER: Final = ("engine_dead", "device_oom", "preemption", "kv_exhausted", _CAPACITY, "other")
_LOGS: Final = tuple(runtime.logs for runtime in RUNTIMES)
_WORDINGS: Final = sorted((*_SHARED, *(row for log in _LOGS for row in log.rows)), key=lambda row: _ORDER.index(row[0]))
"""Kind, words that a line of it holds, and what these must be part of ("" for nothing more); all in lower case."""

_REFUSALS: Final = frozenset(words for log in _LOGS for words in log.refusals)
_ROWS: Final = tuple((kind, words, re.compile(pattern or re.escape(words))) for kind, words, pattern in _WORDINGS)
_WORDS: Final = tuple({words for _, words, _ in _WORDINGS} | set(learn.WORDS))
_SKIMMED: Final = tuple(words.encode() for words in _WORDS)


def telling_lines(block: bytes) -> list[bytes]:
    """Those lines of a block (without a newline at its end) that hold words of a wording, in their order.

    Of a wording that more than `MAX_LINES_OF_A_WORDING` lines hold, the first and the last of them: a log that repeats
    one costs little, hides no other, and still says when it came last.
    """
    low = block.lower()
    found: dict[int, int] = {}
    for words in _SKIMMED:
        at, left = low.find(words), MAX_LINES_OF_A_WORDING // 2
        while at >= 0 and left > 0:
            left -= 1
            end = _end(low, at)
            found[low.rfind(b"\n", 0, at) + 1] = end
            at = low.find(words, end)
        rest, left = at, MAX_LINES_OF_A_WORDING // 2
        at = low.rfind(words, rest) if rest >= 0 else -1
        while at >= 0 and left > 0:
            left -= 1
            start = low.rfind(b"\n", 0, at) + 1
            found[start] = _end(low, at)
            at = low.rfind(words, rest, start) if start > rest else -1
    return [block[start : found[start]] for start in sorted(found)]


def is_telling(text: str) -> bool:
    r"""Whether a line (with its colours) holds words of a wording.

    >>> is_telling("\x1b[31mEngineDeadError"), is_telling("GET /metrics")
    (True, False)
    """
    low = plain(text).lower()
    return any(words in low for words in _WORDS)


def _end(block: bytes, at: int) -> int:
    """Where the line ends that `at` is in."""
    end = block.find(b"\n", at)
    return len(block) if end < 0 else end


def plain(text: str) -> str:
    """Return the line without colours."""
    return _ESCAPES.sub("", text) if "\x1b" in text else text


def locate(text: str) -> tuple[str, int] | None:
    """Return the kind of a line and where in it the telling words begin."""
    low, quiet = text.lower(), _quiet(text)
    for kind, words, pattern in _ROWS:
        if words in low and (kind == _CAPACITY or not quiet) and (match := pattern.search(low)):
            start = match.start()
            # Part of an address, which a client may have chosen: that of an image, for one.
            in_a_url = "://" in low[low.rfind(" ", 0, start) + 1 : start]
            # The message of a ValueError that no server raises for these words: then a request's own.
            servers_own = kind in _OF_VALUE_ERRORS or words in _REFUSALS
            if in_a_url or (not servers_own and _REFUSED.search(low, 0, start)):
                continue
            return None if quotes_request(text) else (kind, start)
    return None


def _quiet(text: str) -> bool:
    """Whether the server says by the line's level that nothing is wrong; a line without a level says nothing."""
    level = _LEVEL.search(text, 0, _LEVEL_WITHIN)
    if level is not None:
        return level[1] in ("TRACE", "DEBUG", "INFO")
    return _QUIET_FIELD.search(text) is not None

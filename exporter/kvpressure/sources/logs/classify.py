"""PURE: what a log line reports, whichever runtime wrote it: a kind of trouble, or at start the size of the KV cache.

One row per wording. Only what the server itself says counts. Lines at level INFO or DEBUG are no failures, and neither
are access-log lines and lines that quote a request: what a user typed ("CUDA out of memory") must never look like one.

Each runtime says how large its cache is in its own words (`runtimes.runtime.Wordings`), of one rank and of one of its
GPUs, so

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
    # Errors of a request alone, whose messages name its parts, its template's complaints and the URLs it requested.
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
            return start.concurrency_tokens if self._is_of_fewer_layers() else float(start.tokens)
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

    def _is_of_fewer_layers(self) -> bool:
        """Whether the logged number of tokens is not what requests of the longest length fit into.

        Where layers differ (windows, states) some versions log the blocks of one kind of layer; how many requests
        fit is logged beside it, in two decimals.
        """
        start = self._start
        if start.tokens is None or start.concurrency_tokens is None or start.concurrency_error_tokens is None:
            return False
        return (
            start.concurrency_tokens >= 1
            and abs(start.concurrency_tokens - start.tokens) > start.concurrency_error_tokens
        )

    def _block_size(self) -> int | None:
        """Return tokens in a block: concurrency = blocks * block size / longest request, solved for the block size."""
        start = self._start
        if not start.blocks or not start.concurrency_tokens:
            return None
        size = start.concurrency_tokens / start.blocks
        whole = round(size)
        return whole if 1 <= whole <= _LARGEST_BLOCK and abs(size - whole) <= _WHOLE_WITHIN else None


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
    # Ray kills workers of a node that runs short of memory: that of the host, whatever its error is called.
    ("host_oom", "ray.exceptions.outofmemoryerror", ""),
    ("host_oom", "low on memory", r"due to the node running low on memory"),
    ("host_oom", "memory pressure (oom)", r"killed due to memory pressure \(oom\)"),
    ("host_oom", "exceeds the memory usage threshold", r"exceeds the memory usage threshold of .{0,20} ray killed"),
    # Of systemd and of the kernel, in a unit's journal.
    ("host_oom", "killed by the oom killer", ""),
    ("host_oom", "oom-kill", r"failed with result 'oom-kill'"),
    ("host_oom", "out of memory: killed process ", ""),
    ("host_oom", "cannot allocate memory", r"\[errno 12\] cannot allocate memory"),
    ("host_oom", "defaultcpuallocator: ", r"defaultcpuallocator: (?:can't allocate|not enough) memory"),
    (
        "device_oom",
        "out of memory",
        r"(?:cuda|hip|xpu|npu|gpu)(?: driver| runtime)?(?: error:| failure(?: \d+)?)? '?out of memory",
    ),
    ("device_oom", "out of memory", r"\btriton error \[\w{2,8}\]: out of memory"),
    ("device_oom", "out of memory", r"\b(?:cuda|hip)malloc\w{0,20}\b.{0,200}\bout of memory"),
    ("device_oom", "out of memory", r"\bresource_?exhausted: .{0,80}\bout of memory"),  # XLA
    ("device_oom", "insufficient gpu memory", r"creation failed due to insufficient gpu memory"),
    ("device_oom", "pt_devmem allocation failed", ""),  # Gaudi
    ("device_oom", "_error_out_of_memory", r"\bcuda_error_out_of_memory\b"),
    ("device_oom", "_error_out_of_device_memory", ""),  # Level Zero and Unified Runtime
    ("device_oom", "_status_alloc_failed", r"\b(?:cu|hip|roc)\w{2,12}_status_alloc_failed\b"),  # BLAS, DNN, solvers
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
_ORDER: Final = ("engine_dead", "host_oom", "device_oom", "preemption", "kv_exhausted", _CAPACITY, "other")
_LOGS: Final = tuple(runtime.logs for runtime in RUNTIMES)
_REMEDIES: Final = tuple(remedy for log in _LOGS for remedy in log.remedies)
_WORDINGS: Final = sorted((*_SHARED, *(row for log in _LOGS for row in log.rows)), key=lambda row: _ORDER.index(row[0]))
"""Kind, words that a line of it holds, and what these must be part of ("" for nothing more); all in lower case."""

_REFUSALS: Final = frozenset(words for log in _LOGS for words in log.refusals)
_ROWS: Final = tuple((kind, words, re.compile(pattern or re.escape(words))) for kind, words, pattern in _WORDINGS)
_WORDS: Final = tuple({words for _, words, _ in _WORDINGS} | set(WORDS))
_SKIMMED: Final = tuple(words.encode() for words in _WORDS)


def telling_lines(block: bytes) -> list[bytes]:
    """Return those lines of a block (without a newline at its end) that hold words of a wording, in their order.

    Of a wording that more than `MAX_LINES_OF_A_WORDING` lines hold, the first and the last of them: a log that repeats
    one costs little, hides no other, and still says when it came last.
    """
    low = block.lower()
    kind_of_line: dict[int, int] = {}
    for words in _SKIMMED:
        at, left = low.find(words), MAX_LINES_OF_A_WORDING // 2
        while at >= 0 and left > 0:
            left -= 1
            end = _end(low, at)
            kind_of_line[low.rfind(b"\n", 0, at) + 1] = end
            at = low.find(words, end)
        rest, left = at, MAX_LINES_OF_A_WORDING // 2
        at = low.rfind(words, rest) if rest >= 0 else -1
        while at >= 0 and left > 0:
            left -= 1
            start = low.rfind(b"\n", 0, at) + 1
            kind_of_line[start] = _end(low, at)
            at = low.rfind(words, rest, start) if start > rest else -1
    return [block[start : kind_of_line[start]] for start in sorted(kind_of_line)]


def is_telling(text: str) -> bool:
    r"""Whether a line (with its colours) holds words of a wording.

    >>> is_telling("\x1b[31mEngineDeadError"), is_telling("GET /metrics")
    (True, False)
    """
    low = plain(text).lower()
    return any(words in low for words in _WORDS)


def _end(block: bytes, at: int) -> int:
    """Return where the line ends that `at` is in."""
    end = block.find(b"\n", at)
    return len(block) if end < 0 else end


def plain(text: str) -> str:
    """Return the line without colours."""
    return _ESCAPES.sub("", text) if "\x1b" in text else text


def locate(text: str) -> tuple[str, int] | None:
    """Return the kind of a line and where in it the words of the kind begin."""
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


def remedy(text: str) -> str:
    """Return the flag with which a server would start that refuses to in this line, "" where it names no number.

    >>> remedy("ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (856).")
    '--max-num-seqs 856'
    """
    matches = ((flag, pattern.search(text.lower())) for pattern, flag in _REMEDIES)
    return next((f"{flag} {match[1]}" for flag, match in matches if match and int(match[1])), "")


def _quiet(text: str) -> bool:
    """Whether the server says by the line's level that nothing is wrong; a line without a level says nothing."""
    level = _LEVEL.search(text, 0, _LEVEL_WITHIN)
    if level is not None:
        return level[1] in ("TRACE", "DEBUG", "INFO")
    return _QUIET_FIELD.search(text) is not None

r"""PURE: bytes of a log file to whole lines of text, whatever the container runtime wrapped around them.

The format of each line is its own: the CRI's `2024-01-01T00:00:00.000000000Z stdout F text`, where `P` marks a piece
whose line goes on in the next one of its stream; docker's `{"log":"text\n","stream":"stdout","time":"..."}`, where a
piece has no newline at its end; or plain text, which has no time.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

MAX_RAW_BYTES: Final = 128 * 1024
"""Longest line of a file; the rest of a longer one is dropped, never read as a line of its own."""
MAX_TEXT_BYTES: Final = 16 * 1024
"""Longest line of text after its pieces are joined; the rest is dropped."""

_CRI: Final = re.compile(
    rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)) (stdout|stderr) ([FP])(?::\S{0,99})?(?: |$)"
)
_DOCKER: Final = b'{"log":'
_CRI_PIECE: Final = re.compile(rb" std(?:out|err) P(?:[ :\r\n]|\Z)")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of text; `stamp` is the time its runtime gave it, "" where there is none."""

    text: str
    stamp: str = ""

    @property
    def t(self) -> float | None:
        """Unix seconds, None without a (readable) time."""
        try:
            return datetime.fromisoformat(self.stamp).timestamp()
        except (ValueError, OverflowError):
            return None


class Assembler:
    """Takes a log's bytes as they are read, in pieces of any size, and gives its lines.

    `skim` gives of a block of lines (without a newline at its end) those that matter; only they are taken apart.
    It uses memory of at most `MAX_RAW_BYTES` and twice `MAX_TEXT_BYTES`.
    """

    def __init__(self, skim: Callable[[bytes], Iterable[bytes]] | None = None) -> None:
        self._skim = skim
        self._rest = b""
        self._dropping = False
        self._pieces: dict[str, bytes] = {}
        self._headless: set[str] = set()

    def feed(self, data: bytes) -> Iterator[Line]:
        """Yield the lines that `data` completes."""
        end = data.rfind(b"\n")
        if end < 0:
            self._keep(data)
            return
        block = self._rest + data[:end]
        if self._dropping:  # the line before this block's first newline is lost, or was cut already
            block = self._rest + data[data.index(b"\n") : end]
        self._rest, self._dropping = b"", False
        self._keep(data[end + 1 :])
        for raw in self._chosen(block):
            yield from self._take(raw[:MAX_RAW_BYTES].rstrip(b"\r"))
        self._headless.clear()

    def cut(self) -> None:
        """Drop what is incomplete: the next bytes are from elsewhere in the log, in the middle of a line.

        So is the first line of each stream: it may be the end of one that began as a prompt.
        """
        self._rest, self._dropping = b"", True
        self._pieces.clear()
        self._headless = {"stdout", "stderr"}

    def end(self) -> Iterator[Line]:
        """Yield a last line without newline when the file ends: it may be the last words of a process."""
        rest = self._rest
        self._rest = b""
        self._dropping = False
        if rest:
            yield from self._take(rest.rstrip(b"\r"))

    def clear(self) -> None:
        """Forget what is incomplete: the next bytes are the first of another file."""
        self._rest, self._dropping = b"", False
        self._pieces.clear()
        self._headless.clear()

    def _chosen(self, block: bytes) -> Iterable[bytes]:
        # A word may be split over two pieces of a line, which skimming could miss: then every line is taken.
        if block.startswith(_DOCKER) or b"\n" + _DOCKER in block:
            has_pieces = block.count(b'\\n","') < block.count(b"\n") + 1
        else:
            has_pieces = _CRI_PIECE.search(block) is not None
        if self._skim is None or self._pieces or self._headless or has_pieces:
            return block.split(b"\n")
        return self._skim(block)

    def _keep(self, data: bytes) -> None:
        if self._dropping:
            return
        self._rest += data
        if len(self._rest) > MAX_RAW_BYTES:
            self._rest, self._dropping = self._rest[:MAX_RAW_BYTES], True

    def _take(self, raw: bytes) -> Iterator[Line]:
        match = _CRI.match(raw)
        if match is not None:
            stamp, stream = match[1].decode(), match[2].decode()
            yield from self._piece(stream, raw[match.end() :], stamp, whole=match[3] == b"F")
        elif raw.startswith(_DOCKER):
            yield from self._docker(raw)
        elif raw:
            yield Line(_text(raw))

    def _docker(self, raw: bytes) -> Iterator[Line]:
        try:
            record = json.loads(raw)
            log = str(record["log"])
            stream, stamp = (str(record.get(name, "")) for name in ("stream", "time"))
        except (ValueError, KeyError, AttributeError, RecursionError):
            return  # cut short: not to be read as if it were text
        piece = log.removesuffix("\n").removesuffix("\r").encode("utf-8", "replace")
        yield from self._piece("stderr" if stream == "stderr" else "stdout", piece, stamp, whole=log.endswith("\n"))

    def _piece(self, stream: str, piece: bytes, stamp: str, *, whole: bool) -> Iterator[Line]:
        joined = (self._pieces.pop(stream, b"") + piece)[:MAX_TEXT_BYTES]
        if not whole:
            self._pieces[stream] = joined
        elif stream in self._headless:
            self._headless.remove(stream)
        else:
            yield Line(_text(joined), stamp)


def _text(raw: bytes) -> str:
    return raw[:MAX_TEXT_BYTES].decode("utf-8", "replace")

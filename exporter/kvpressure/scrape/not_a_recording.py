"""What a file is that was given as a recording and is none: one sentence instead of an error for each of its lines."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from kvpressure.config.regular_file import NotAFileError, require_regular

_HEAD_BYTES: Final = 64 * 1024
_PACKED: Final = {".gz": (b"\x1f\x8b", "gzip"), ".xz": (b"\xfd7zXZ\x00", "xz")}
_BYTES_OF_NO_TEXT: Final = frozenset(range(32)) - frozenset(b"\t\n\r\f\x1b")


def sentence(path: Path, why: str) -> str:
    """The sentence; `why` is what reading it ended with, where nothing better can be said of it. Raises nothing."""
    return f"{path} is no recording, as `kvpressure record` writes it: {_seems(path) or why}"


def _seems(path: Path) -> str:
    """What it is instead, "" where its beginning does not tell."""
    try:
        require_regular(path)
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except NotAFileError as error:
        return f"{error.strerror}"
    except OSError:
        return ""
    if not head:
        return "it is empty"
    for suffix, (magic, program) in _PACKED.items():
        if path.suffix == suffix:
            return "" if head.startswith(magic) else f"its name ends in {suffix}, and it is not {program}"
        if head.startswith(magic):
            return f"it is {program}; let its name end in .jsonl{suffix}"
    return _text(head)


def _text(head: bytes) -> str:
    begun = head.lstrip()
    if not begun:
        return "it is empty"
    if _BYTES_OF_NO_TEXT.intersection(head):
        return "it is no text"
    if begun.startswith(b"[") and b'"vendor"' in begun:
        return (
            "it is what `record --gpus` alone writes of this machine's GPU libraries, for a bug report, and holds no "
            "page of an engine; record the engine with its URL, and --gpus beside it"
        )
    if begun.startswith((b"# HELP", b"# TYPE")):
        return (
            "it is one metrics page; a recording has many, with their times: `kvpressure record URL -o FILE.jsonl.xz`"
        )
    return ""

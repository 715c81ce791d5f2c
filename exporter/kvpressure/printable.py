"""PURE: foreign text made safe to show: nothing in it moves the cursor, hides a character or turns text around.

Names of models, pods and files, labels, log lines and the errors that quote them come from anyone who may write them.
The one place that says which characters may be shown.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, Final

# `str.isprintable` refuses controls (C0 with its escapes, DEL, C1), bidirectional marks, zero-width spaces and joiners,
# line and paragraph separators, and what is not assigned. These are left: letters and marks that are drawn as nothing.
_BLANK: Final = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)
_IN_ITS_PLACE: Final = "?"


def clean(text: str) -> str:
    """Return one line: every character that is not drawn as itself is a question mark."""
    if not text.isprintable():
        text = "".join(c if c.isprintable() else _IN_ITS_PLACE for c in text)
    return text if text.isascii() else _BLANK.sub(_IN_ITS_PLACE, text)


def clean_lines(text: str) -> str:
    """Return the same as `clean` with its line ends."""
    return "\n".join(map(clean, text.split("\n")))


def distinct(text: str, longest: int | None = None) -> str:
    """Return the same as a label's value; what was changed or cut ends in a hash of the whole: two stay two series."""
    shown = clean(text)
    if shown == text and (longest is None or len(text) <= longest):
        return text
    digest = hashlib.blake2s(text.encode("utf-8", "replace"), digest_size=4).hexdigest()
    return f"{shown if longest is None else shown[: longest - 9]}~{digest}"


def json_text(value: Any, *, indent: int | None = None, separators: tuple[str, str] | None = None) -> str:
    """Return a value as JSON that any parser reads the same, and plain ASCII without controls to a terminal."""
    # The library escapes all but this one, which JSON lets stand.
    return json.dumps(value, indent=indent, separators=separators).replace("\x7f", "\\u007f")


def brief(text: object, limit: int = 160) -> str:
    """Return foreign text made safe for a sentence: one line, printable characters, at most `limit` of them."""
    line = " ".join(str(text)[: 4 * limit].split())
    shown = clean(line)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"

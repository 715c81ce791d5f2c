"""Control flow of a shell script, and loops that only wait: these change nothing that is read after them."""

from __future__ import annotations

import re
from typing import Final

CONTROL: Final = (
    *("if", "then", "elif", "else", "fi", "while", "until", "for", "select", "do", "done", "case", "esac"),
    *("{", "}", "!", "function", "coproc"),
)
"""Words that are control flow where a command begins."""

_LOOP: Final = re.compile(r"[^;\n]{1,500}[;\n]\s*do\b(?P<body>.{0,2000}?)[;\n]\s*done\b", re.DOTALL)
# Assignments, other control flow, built-in commands that change variables or arguments, and starts of servers.
_CHANGES: Final = re.compile(
    r"(?:^|[;&|(\s])[A-Za-z_][A-Za-z0-9_]*\+?="
    r"|\$\{[^}]*[:=]|<<|(?:^|\s)\.\s"
    r"|\b(?:if|case|for|while|until|select|function|coproc|read|mapfile|readarray|getopts|let|printf|unset)\b"
    r"|\b(?:export|declare|typeset|local|readonly|eval|source|set|shift|exec|break|serve|launch\w*|python3?)\b"
)


def end_of_wait(word: str, text: str, at: int) -> int | None:
    """Return the position behind `done` of a loop whose first `word` ends at that position; None for any other.

    Its words must leave no quote open: then its `done` is none of a text.
    """
    found = _LOOP.match(text, at) if word in {"while", "until"} else None
    if found is None or _CHANGES.search(found[0]) or any(found[0].count(quote) % 2 for quote in "'\"`"):
        return None
    return found.end()

"""Variables in compose files: docker compose puts them in before it looks at anything else."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

_VARIABLE: Final = re.compile(r"\$(?:(\$)|([A-Za-z_]\w*)|\{([A-Za-z_]\w*)((?::?[-?+])?))", re.ASCII)
_BRACE: Final = re.compile(r"[{}]")
_NUMBER: Final = re.compile(r"[0-9]{1,9}")
_DEEPEST: Final = 8


def interpolated(value: Any, variables: Mapping[str, str]) -> Any:
    """Return the value with every text in it interpolated; numbers among the results are numbers.

    `${VAR:-default}` is the default where nobody sets VAR. `${VAR}` that nobody sets stays, as `${VAR?}`: what the
    machine sets is not known, and no variable of the container stands in for it.
    """
    if isinstance(value, dict):
        return {key: interpolated(one, variables) for key, one in value.items()}
    if isinstance(value, list):
        return [interpolated(one, variables) for one in value]
    if not isinstance(value, str) or "$" not in value:
        return value
    found = _text(value, variables, _DEEPEST)
    return int(found) if _NUMBER.fullmatch(found) else found


def _text(text: str, variables: Mapping[str, str], depth: int) -> str:
    parts, at = [], 0
    while (match := _VARIABLE.search(text, at)) is not None:
        parts.append(text[at : match.start()])
        at = match.end()
        if match[1]:
            parts.append("$")
            continue
        rest = ""
        if match[3]:
            start, at = at, _end(text, at)
            rest = text[start : at - 1]
        parts.append(_value(match[2] or match[3], match[4] or "", rest, variables, depth))
    return "".join([*parts, text[at:]])


def _end(text: str, at: int) -> int:
    """Behind the brace that closes."""
    depth = 1
    for brace in _BRACE.finditer(text, at):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return brace.end()
    return len(text) + 1


def _value(name: str, operator: str, rest: str, variables: Mapping[str, str], depth: int) -> str:
    found = variables.get(name)
    given = found is not None and (found or not operator.startswith(":"))
    if operator.endswith("-") and not given and depth:
        return _text(rest, variables, depth - 1)
    if operator.endswith("+"):
        return _text(rest, variables, depth - 1) if given and depth else f"${{{name}?}}"
    return found if given and found is not None else f"${{{name}?}}"

"""Words of start-ups: variables are filled in where they are stated beside them, and nothing is run.

Whatever else a word has (`$(...)`, a variable that is stated nowhere, twice or under a condition) stays as written, see
`options.unresolved`. Everything read or made is charged to one `Budget`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

STEP: Final = 24
"""Cost of a word or a variable beside its characters, in characters."""

WORK: Final = 1 << 18
"""For one pod, in characters read or made: some milliseconds and a megabyte, many times what manifests contain."""

MAX_ENTRIES: Final = WORK // STEP + 1
"""A list of as many entries always exceeds a pod's budget."""

NESTING: Final = 4
"""Depth of defaults in defaults, and of scripts in scripts, that are read."""

MORE: Final = "="
"""A name that no variable can have: an environment with it may have variables that are not listed."""


GPUS: Final = "=gpus"
"""Likewise: the number of GPUs that a script gets, which it may ask nvidia-smi for."""


class BudgetExceededError(Exception):
    """There is more than may be read. What was read before is true, but the rest may contradict it."""


class Budget:
    """What is left, in characters: one object, passed to everything that reads a part of the same input."""

    __slots__ = ("left",)

    def __init__(self, work: int = WORK) -> None:
        self.left = work

    def take(self, characters: int = 0, steps: int = 1) -> None:
        """Charge before reading or making something. Raises BudgetExceededError where it is exceeded, then always."""
        self.left -= characters + STEP * steps
        if self.left < 0:
            raise BudgetExceededError


class Word(str):
    """A word in which variables were filled in: `written` is it before that.

    `unless` are those whose value another place may set too; `perhaps`: a condition decides whether the word is there.
    """

    __slots__ = ("perhaps", "unless", "written")
    written: str
    unless: tuple[str, ...]
    perhaps: bool


Words = tuple[str, ...]
"""A program and its arguments."""

Variables = Mapping[str, str | None]
"""Values by name, None for those whose value is not known."""


def as_written(word: str) -> str:
    """Return a word before variables were filled in."""
    return word.written if isinstance(word, Word) else word


def unless(word: str) -> tuple[str, ...]:
    """Return the variables in a word that another place may set too."""
    return word.unless if isinstance(word, Word) else ()


def filled_word(text: str, written: str, names: Sequence[str] = (), *, perhaps: bool = False) -> str:
    """Return the text as a word that was written in another way; itself where it was not."""
    if text == written and not names and not perhaps:
        return text
    word = Word(text)
    word.written = written
    word.unless = tuple(dict.fromkeys(names))
    word.perhaps = perhaps
    return word


def split(text: str) -> list[str]:
    """Return the words of a text as a shell splits them; by blanks where its quotes do not close."""
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


_KUBERNETES: Final = re.compile(r"\$\$|\$\(([A-Za-z_][-A-Za-z0-9_.]*)\)")


def expand(text: str, env: Variables, budget: Budget) -> str:
    """Expand `$(VAR)` as Kubernetes does: `$$` is a dollar, and a variable that is not set stays as written."""
    budget.take(len(text))
    if "$" not in text:
        return text
    parts, at = [], 0
    for match in _KUBERNETES.finditer(text):
        value = "$" if match[0] == "$$" else env.get(match[1])
        value = match[0] if value is None else value
        budget.take(len(value))
        parts += [text[at : match.start()], value]
        at = match.end()
    return filled_word("".join([*parts, text[at:]]), as_written(text), unless(text))


def settle(env: Variables, budget: Budget) -> dict[str, str | None]:
    """Return the environment with `$(VAR)` expanded as Kubernetes does, from the variables listed before each."""
    settled: dict[str, str | None] = {}
    for name, value in env.items():
        budget.take()
        settled[name] = None if value is None else str(expand(value, settled, budget))
    return settled


_VARIABLE: Final = re.compile(
    r"\$(?:(\$)|([A-Za-z_]\w*|[0-9@*])|\{([A-Za-z_]\w*|[0-9@*])(\[[@*]\])?(:?[-=?+])?)", re.ASCII
)
_BRACE: Final = re.compile(r"[{}]")


@dataclass(frozen=True, slots=True)
class Filling:
    """The variables of one place; with `dollars` two dollars are one, as compose writes them."""

    values: Variables
    budget: Budget
    dollars: bool = False

    def fill(self, text: str, depth: int = NESTING) -> tuple[str, list[str]]:
        """Return the text with its variables, and the names of those that another place may set too."""
        self.budget.take(len(text))
        if "$" not in text:
            return text, []
        parts: list[str] = []
        names: list[str] = []
        at = 0
        while (match := _VARIABLE.search(text, at)) is not None:
            parts.append(text[at : match.start()])
            at = match.end()
            if match[1]:
                parts.append("$" if self.dollars else "$$")
                continue
            inner = ""
            if match[3]:
                start, at = at, closing(text, at, self.budget)
                inner = text[start : at - 1]
            value, more = (None, []) if match[4] else self._value(match[2] or match[3], match[5] or "", inner, depth)
            if value is None:
                # Not a variable of the container, whatever that has: see `_value`.
                value = f"${{{match[2] or match[3]}?}}" if self.dollars else text[match.start() : at]
            parts.append(value)
            names += more
            self.budget.take(len(parts[-1]))
        return "".join([*parts, text[at:]]), names

    def word(self, text: str) -> str:
        """Return the text as one word."""
        value, names = self.fill(text)
        return filled_word(value, as_written(text), (*unless(text), *names))

    def _value(self, name: str, sign: str, inner: str, depth: int) -> tuple[str | None, list[str]]:
        """Return the value of a variable, None where it is not known, and the names that may be set elsewhere."""
        known = self.values.get(name)
        if (inner and not sign) or (sign == "?" and not inner):
            return None, []  # an operator such as ${NAME%%/*}; a variable that compose leaves open
        if known is not None and (known or sign[:1] != ":"):
            if sign[-1:] != "+":
                return str(known), [*unless(known)]
            return self.fill(_unquoted(inner), depth - 1) if depth else (None, [])
        hidden = (known is None and name in self.values) or MORE in self.values
        if hidden or sign[-1:] not in {"-", "="} or not depth:
            return None, []
        value, names = self.fill(inner if self.dollars else _unquoted(inner), depth - 1)
        return value, [*names, *([name] if known is None else unless(known))]


def _unquoted(text: str) -> str:
    """Return the default of a variable without the quotes around it."""
    return text[1:-1] if text[:1] in {"'", '"'} and text[:1] == text[-1:] and text.count(text[0]) == 2 else text


def closing(text: str, at: int, budget: Budget) -> int:
    """Return the position behind the brace that closes one; one behind the text where none does."""
    depth = 1
    for brace in _BRACE.finditer(text, at):
        budget.take()
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return brace.end()
    budget.take(len(text) - at)
    return len(text) + 1

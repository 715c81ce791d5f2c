"""Finds the programs that a container's command runs, through shells, `eval` and scripts given in place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kvpressure.commandline.budget import NESTING, Budget, BudgetExceededError
from kvpressure.commandline.shell import Script, Words, expand

SHELLS: Final = frozenset(("sh", "bash", "dash", "ash", "zsh", "ksh"))
_SHELL_FLAGS: Final = re.compile(r"-[abd-z]*c[a-z]*")
_SHELL_FLAGS_WITH_VALUE: Final = frozenset(("-o", "+o", "-O", "--rcfile", "--init-file"))
# Programs that run the words behind them as they are.
_STARTERS: Final = frozenset(("exec", "tini", "dumb-init", "nohup"))
# Programs that take the words of a launch as text: what follows them starts nothing.
_TALKERS: Final = frozenset(
    ("echo", "printf", "grep", "egrep", "pgrep", "pkill", "pip", "pip3", "curl", "wget", "which", "test", "[", "[[")
)


@dataclass(frozen=True, slots=True)
class Program:
    """One program that a command runs, and why its words are not certain, "" where they are (see `Script`)."""

    words: Words
    unreadable: str = ""


@dataclass(frozen=True, slots=True)
class Launch:
    """One start of a server: the words after its program or module, and which of its runtime's it was."""

    arguments: Words
    module: str = ""


def programs(
    command: Sequence[str],
    args: Sequence[str],
    env: Mapping[str, str],
    budget: Budget,
    files: Mapping[str, str] | None = None,
) -> Iterator[Program]:
    """Yield every program that the container's command runs, through shells, `eval` and scripts given in place.

    `env` is settled; `files` are the texts of mounted files by path, scripts among them. Raises BudgetExceededError,
    after what was found until then.
    """
    words = tuple(expand(word, env, budget) for word in (*command, *args))
    yield from _unwrap(Program(words), Script("", env, budget), budget, NESTING, files or {})


def settle(env: Mapping[str, str], budget: Budget) -> dict[str, str]:
    """Return the environment with `$(VAR)` in its values expanded as Kubernetes does: from the variables above."""
    settled: dict[str, str] = {}
    for name, value in env.items():
        budget.take()
        settled[name] = expand(value, settled, budget) if "$" in value else value
    return settled


def _unwrap(program: Program, outer: Script, budget: Budget, depth: int, files: Mapping[str, str]) -> Iterator[Program]:
    script = _script(program.words, budget, files)
    if script is None:
        if program.words:
            yield program
        return
    if depth == 0:
        raise BudgetExceededError
    text, positional = script
    env = outer.handed_down(program.words[: len(program.words) - len(positional or ())])
    inner = Script(text, env, budget, outer.positional if positional is None else positional, outer.unreadable)
    for words in inner.commands():
        yield from _unwrap(Program(words, inner.unreadable), inner, budget, depth - 1, files)
    if positional is None:
        outer.continue_behind(inner)


def _script(words: Words, budget: Budget, files: Mapping[str, str]) -> tuple[str, Words | None] | None:
    """Return the script of `sh -c SCRIPT $0 $1...`, of `eval`, or of a mounted file; None for any other program.

    With its arguments, None where they are those of the script around it.
    """
    if words[:1] == ("eval",):
        budget.take(sum(map(len, words)))
        return " ".join(words[1:]), None
    own = next((i for i, word in enumerate(words) if word != "--" and base(word) not in _STARTERS), 0)
    if words and words[own] in files:
        return files[words[own]], words[own:]
    start = next((i for i, word in enumerate(words) if base(word) in SHELLS), None)
    if start is None or words[0] in _TALKERS:
        return None
    at, seen = start + 1, False
    while at < len(words) and words[at][:1] in {"-", "+"}:
        flag = words[at]
        at += 1
        seen |= _SHELL_FLAGS.fullmatch(flag) is not None
        if flag == "--":
            break
        # `-euo pipefail -c`: flags in a row, of which the o wants a word.
        if flag in _SHELL_FLAGS_WITH_VALUE or re.fullmatch(r"-[a-z]*o", flag):
            at += 1
    if at < len(words) and not seen and words[at] in files:
        return files[words[at]], words[at:]
    return (words[at], words[at + 1 :]) if seen and at < len(words) else None


def talks(words: Words) -> bool:
    """Return whether the program takes the words behind it as text, so that they start nothing; or there is none."""
    return not words or base(words[0]) in _TALKERS


def base(word: str) -> str:
    """Return the name of a program without its folder."""
    return word[word.rfind("/") + 1 :]

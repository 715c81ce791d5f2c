"""Finds the programs that a container's command runs: through shells, `eval`, inline scripts and mounted ones."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kvpressure.commandline.budget import NESTING, Budget, BudgetExceededError
from kvpressure.commandline.shell import Script, Words

_REFERENCE: Final = re.compile(r"\$\$|\$\(([A-Za-z_][-A-Za-z0-9_.]*)\)")
SHELLS: Final = frozenset(("sh", "bash", "dash", "ash", "zsh", "ksh"))
_SHELL_FLAGS: Final = re.compile(r"-[abd-z]*c[a-z]*")
_SHELL_FLAGS_WITH_VALUE: Final = frozenset(("-o", "+o", "-O", "--rcfile", "--init-file"))
_CONTAINERS: Final = frozenset(("docker", "podman", "nerdctl"))
# Options of `docker run` that take no value; of short ones it may stand in the same word.
_NO_VALUE: Final = re.compile(
    r"-[a-zA-Z].+|-[ditPq]|--.*=.*"
    r"|--(detach|help|init|interactive|no-healthcheck|privileged|publish-all|quiet|read-only|replace|rm|tty)"
)
# Programs that run their arguments as a command.
_WRAPPERS: Final = frozenset(("exec", "tini", "dumb-init", "nohup"))
# Programs whose arguments may look like a launch, and start nothing.
_TEXT_PROGRAMS: Final = frozenset(
    ("echo", "printf", "grep", "egrep", "pgrep", "pkill", "pip", "pip3", "curl", "wget", "which", "test", "[", "[[")
)


@dataclass(frozen=True, slots=True)
class Program:
    """One program that a command runs; `unreadable` is why its words are not certain, "" where they are."""

    words: Words
    unreadable: str = ""


@dataclass(frozen=True, slots=True)
class Launch:
    """One start of a server: the arguments of its program, and its Python module where the runtime has several."""

    arguments: Words
    module: str = ""


def programs(
    command: Sequence[str],
    args: Sequence[str],
    env: Mapping[str, str],
    budget: Budget,
    files: Mapping[str, str] | None = None,
) -> Iterator[Program]:
    """Yield every program that the container's command runs.

    `env` is the result of `settle`; `files` are the texts of mounted files by path, scripts among them. Raises
    BudgetExceededError after the programs found before it.
    """
    words = tuple(expand(word, env, budget) for word in (*command, *args))
    yield from _unwrap(Program(words), Script("", env, budget), budget, NESTING, files or {})


def expand(text: str, env: Mapping[str, str], budget: Budget) -> str:
    """Expand `$(VAR)` as Kubernetes does: `$$` is a dollar, and a variable that is not set stays as written."""
    budget.take(len(text))
    parts, at = [], 0
    for match in _REFERENCE.finditer(text):
        value = "$" if match[0] == "$$" else env.get(match[1], match[0])
        budget.take(len(value))
        parts += [text[at : match.start()], value]
        at = match.end()
    return "".join([*parts, text[at:]]) if parts else text


def settle(env: Mapping[str, str], budget: Budget) -> dict[str, str]:
    """Return the environment with `$(VAR)` expanded as Kubernetes does, from the variables listed before each."""
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
    env = outer.child_environment(program.words[: len(program.words) - len(positional or ())])
    inner = Script(text, env, budget, outer.positional if positional is None else positional, outer.unreadable)
    for words in inner.commands():
        yield from _unwrap(Program(words, inner.unreadable), inner, budget, depth - 1, files)
    if positional is None:
        outer.continue_after(inner)


def _script(words: Words, budget: Budget, files: Mapping[str, str]) -> tuple[str, Words | None] | None:
    """Return the text of `sh -c SCRIPT $0 $1...`, of `eval` or of a mounted script, None for any other program.

    With it come its arguments, None where they are those of the enclosing script.
    """
    if words[:1] == ("eval",):
        budget.take(sum(map(len, words)))
        return " ".join(words[1:]), None
    own = next((i for i, word in enumerate(words) if word != "--" and base(word) not in _WRAPPERS), 0)
    if words and words[own] in files:
        return files[words[own]], words[own:]
    start = next((i for i, word in enumerate(words) if base(word) in SHELLS), None)
    if start is None or words[0] in _TEXT_PROGRAMS:
        return None
    at, is_inline = start + 1, False
    while at < len(words) and words[at][:1] in {"-", "+"}:
        flag = words[at]
        at += 1
        is_inline |= _SHELL_FLAGS.fullmatch(flag) is not None
        if flag == "--":
            break
        # `-euo pipefail -c`: in combined flags, the o takes a word.
        if flag in _SHELL_FLAGS_WITH_VALUE or re.fullmatch(r"-[a-z]*o", flag):
            at += 1
    if at < len(words) and not is_inline and words[at] in files:
        return files[words[at]], words[at:]
    return (words[at], words[at + 1 :]) if is_inline and at < len(words) else None


def image_of(words: Words) -> tuple[str, Words]:
    """Return the image that `docker run` starts, and what is passed to it; "" for any other program."""
    at = 1 if words[:1] == ("sudo",) else 0
    if "run" not in words[at + 1 : at + 3] or base(words[at]) not in _CONTAINERS:
        return "", ()
    at = words.index("run") + 1
    while at < len(words) and words[at].startswith("-"):
        at += 1 if _NO_VALUE.fullmatch(words[at]) else 2
    return (words[at], words[at + 1 :]) if at < len(words) else ("", ())


def talks(words: Words) -> bool:
    """Return whether there is no program, or one whose arguments are text, such as `echo`, and start nothing."""
    return not words or base(words[0]) in _TEXT_PROGRAMS


def base(word: str) -> str:
    """Return the name of a program without its directory."""
    return word[word.rfind("/") + 1 :]

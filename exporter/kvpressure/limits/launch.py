"""Finds vLLM servers among the commands that a container runs, with the arguments that each gets."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kvpressure.limits.shell import MAX_CHARS, Words, commands, expand

MODULES: Final = frozenset(("vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server"))
"""Modules that `python -m` starts a server with; the second has no metrics page in old versions."""

KSERVE_MODULE: Final = "huggingfaceserver"

SHELLS: Final = frozenset(("sh", "bash", "dash", "ash", "zsh", "ksh"))
_MAX_DEPTH: Final = 4
_MAX_WORDS: Final = 4096
_SHELL_FLAGS: Final = re.compile(r"-[a-z]*c[a-z]*")
_SHELL_FLAGS_WITH_VALUE: Final = frozenset(("-o", "+o", "-O", "--rcfile", "--init-file"))
# Programs that take the words of a launch as text: what follows them starts nothing.
_TALKERS: Final = frozenset(
    ("echo", "printf", "grep", "egrep", "pgrep", "pkill", "pip", "pip3", "curl", "wget", "which", "test", "[", "[[")
)


@dataclass(frozen=True, slots=True)
class Launch:
    """One start of a server: the words after `vllm serve` (or after the module)."""

    arguments: Words
    module: str = "vllm"


def launches(command: Sequence[str], args: Sequence[str], env: Mapping[str, str]) -> tuple[Launch, ...]:
    """Every server that the container's command starts; none where the image's own entrypoint decides."""
    return tuple(launch for words in programs(command, args, env) if (launch := _launch(words)) is not None)


def programs(command: Sequence[str], args: Sequence[str], env: Mapping[str, str]) -> list[Words]:
    """Every program that the container's command runs, through shells, `eval` and scripts given in place."""
    settled = settle(env)
    words = tuple(expand(word, settled) for word in (*command, *args)[:_MAX_WORDS])
    return list(_unwrap(words, settled, _MAX_DEPTH))


def settle(env: Mapping[str, str]) -> dict[str, str]:
    """The environment with `$(VAR)` in its values expanded, as Kubernetes does: from what stands above."""
    settled: dict[str, str] = {}
    for name, value in env.items():
        settled[name] = expand(value, settled)[:MAX_CHARS]
    return settled


def _unwrap(words: Words, env: Mapping[str, str], depth: int) -> Iterator[Words]:
    if not words:
        return
    script = _script(words)
    if script is None or depth == 0:
        yield words
        return
    text, positional = script
    for inner in commands(text, env, positional):
        yield from _unwrap(inner, env, depth - 1)


def _script(words: Words) -> tuple[str, Words] | None:
    """The script of `sh -c SCRIPT $0 $1...`, or of `eval`; None for any other program."""
    if words[0] == "eval":
        return " ".join(words[1:]), ()
    start = next((i for i, word in enumerate(words) if base(word) in SHELLS), None)
    if start is None or words[0] in _TALKERS:
        return None
    rest = list(words[start + 1 :])
    seen = False
    while rest and rest[0][:1] in {"-", "+"}:
        flag = rest.pop(0)
        seen |= _SHELL_FLAGS.fullmatch(flag) is not None
        if flag == "--":
            break
        # `-euo pipefail -c`: flags in a row, of which the o wants a word.
        if rest and (flag in _SHELL_FLAGS_WITH_VALUE or re.fullmatch(r"-[a-z]*o", flag)):
            rest.pop(0)
    return (rest[0], tuple(rest[1:])) if seen and rest else None


def _launch(words: Words) -> Launch | None:
    if base(words[0]) in _TALKERS:
        return None
    for at, word in enumerate(words[:-1]):
        following = words[at + 1]
        if base(word) == "vllm" and following == "serve":
            return Launch(words[at + 2 :])
        if word == "-m" and (following in MODULES or following == KSERVE_MODULE):
            return Launch(words[at + 2 :], "vllm" if following in MODULES else following)
        if word.endswith("vllm/entrypoints/openai/api_server.py"):
            return Launch(words[at + 1 :])
    return None


def base(word: str) -> str:
    """The name of a program without its folder."""
    return word.rsplit("/", 1)[-1]

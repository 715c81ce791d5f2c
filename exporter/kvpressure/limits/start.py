"""What one container starts: read once, and then asked whether it is an engine, for its port and for its limits."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kvpressure.limits.arguments import Options, read_options
from kvpressure.limits.budget import Budget, SpentError
from kvpressure.limits.launch import Launch, launch, programs, settle
from kvpressure.limits.shell import Words

# Read by start scripts: KServe appends the first to `vllm serve`, SageMaker makes options of the others.
_EXTRA_ARGUMENTS: Final = "VLLM_ADDITIONAL_ARGS"
_OPTION_VARIABLES: Final = "SM_VLLM_"
# What is later told of a server takes as long as some dozen words.
_SERVER: Final = 64


@dataclass(frozen=True, slots=True)
class Server:
    """One start of a server: its words, and the options among them."""

    words: Words = ()
    module: str = "vllm"
    options: Options = field(default_factory=Options)


@dataclass(frozen=True, slots=True)
class Start:
    """What a container's command comes to, as far as it could be read; `command` and `args` are as written.

    `servers` are those that it starts (`seen`), else the one that the image's entrypoint or the first program may be;
    `only` says that it is not one program among several. `cut` says that there is more than can be read: whatever was
    read may be contradicted there.
    """

    command: Words = ()
    args: Words = ()
    servers: tuple[Server, ...] = ()
    seen: bool = False
    only: bool = False
    cut: bool = False


def read_start(
    command: Sequence[str],
    args: Sequence[str],
    env: Mapping[str, str],
    budget: Budget,
    files: Mapping[str, str] | None = None,
) -> Start:
    """Read what a container starts. Never raises: where the budget does not suffice the reading is `cut`.

    `env` holds the variables with plain values in the order of the manifest, `files` the texts of files mounted from
    ConfigMaps by their path in the container.
    """
    count = 0
    first: Words = ()
    launched: list[Launch] = []
    servers: list[Server] = []
    cut = False
    try:
        settled = settle(env, budget)
        for words in programs(command, args, settled, budget):
            count, first = count + 1, first or words
            launched += [one] if (one := launch(words)) is not None else []
        for one in launched or [Launch(first if command or count < 2 else ())]:
            budget.take(steps=_SERVER)
            words = one.arguments if command else _completed(one.arguments, args, settled, budget)
            servers.append(Server(words, one.module, read_options(words, files or {}, budget)))
    except SpentError:
        cut = True
        servers += [Server(one.arguments, one.module) for one in launched[len(servers) :]]
    return Start(tuple(command), tuple(args), tuple(servers), bool(launched), not command or count < 2, cut)


def _completed(words: Words, args: Sequence[str], env: Mapping[str, str], budget: Budget) -> Words:
    """What an image's own entrypoint makes of its arguments."""
    return (*_from_env(env), *words, *_appended(env, args, budget))


def _appended(env: Mapping[str, str], args: Sequence[str], budget: Budget) -> list[str]:
    text = env.get(_EXTRA_ARGUMENTS, "")
    if any(_EXTRA_ARGUMENTS in word for word in args):
        return []
    budget.take(steps=len(text))
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _from_env(env: Mapping[str, str]) -> Iterator[str]:
    for name, value in env.items():
        if name.startswith(_OPTION_VARIABLES) and len(name) > len(_OPTION_VARIABLES):
            yield f"--{name.removeprefix(_OPTION_VARIABLES).lower()}"
            yield value

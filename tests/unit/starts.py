"""The starts of containers read in one call each, with a budget of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvpressure.limits import declared, recognise, shell
from kvpressure.limits.budget import Budget
from kvpressure.limits.launch import Launch, launch, programs, settle
from kvpressure.limits.shell import Words
from kvpressure.limits.start import read_start
from kvpressure.model.workload import LIMIT_NAMES, DeclaredLimit

Env = Mapping[str, str]


def commands(script: str, env: Env, positional: Sequence[str] = ()) -> list[Words]:
    return list(shell.commands(script, env, Budget(), positional))


def expand(text: str, env: Env) -> str:
    return shell.expand(text, env, Budget())


def launches(command: Sequence[str], args: Sequence[str], env: Env) -> list[Launch]:
    budget = Budget()
    return [one for words in programs(command, args, settle(env, budget), budget) if (one := launch(words))]


def read_limits(
    command: Sequence[str], args: Sequence[str], env: Env, annotations: Env, files: Env | None = None
) -> declared.Reading:
    return declared.annotated(declared.read_limits(read_start(command, args, env, Budget(), files)), annotations)


def declared_limits(
    command: Sequence[str], args: Sequence[str], env: Env, annotations: Env, files: Env | None = None
) -> tuple[DeclaredLimit, ...]:
    found = read_limits(command, args, env, annotations, files).limits
    return tuple(found[name] for name in LIMIT_NAMES if name in found)


def is_vllm(image: str, command: Sequence[str], args: Sequence[str], env: Env | None = None) -> bool:
    return recognise.is_vllm(image, read_start(command, args, env or {}, Budget()))


def serving_port(command: Sequence[str], args: Sequence[str], env: Env, files: Env | None = None) -> int | None:
    return recognise.serving_port(read_start(command, args, env, Budget(), files))

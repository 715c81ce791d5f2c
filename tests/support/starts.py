"""The starts of containers read in one call each, with a budget of their own."""

from collections.abc import Mapping, Sequence

from kvpressure import launch as declared
from kvpressure.commandline.programs import Launch, programs
from kvpressure.commandline.words import Budget, Script, Words, settle
from kvpressure.launch import launch, read_start
from kvpressure.model.environment import LIMIT_NAMES, DeclaredLimit

Env = Mapping[str, str | None]
Texts = Mapping[str, str]


def commands(script: str, env: Env, positional: Sequence[str] = ()) -> list[Words]:
    return [command.words for command in Script(script, env, Budget(), tuple(positional)).commands()]


def launches(command: Sequence[str], args: Sequence[str], env: Env) -> list[Launch]:
    budget = Budget()
    found = (launch(program.words) for program in programs(command, args, settle(env, budget), budget))
    return [one[1] for one in found if one is not None]


def read_limits(
    command: Sequence[str], args: Sequence[str], env: Env, annotations: Texts, files: Texts | None = None
) -> declared.Reading:
    return declared.annotated(declared.read_limits(read_start(command, args, env, Budget(), files)), annotations)


def declared_limits(
    command: Sequence[str], args: Sequence[str], env: Env, annotations: Texts, files: Texts | None = None
) -> tuple[DeclaredLimit, ...]:
    found = read_limits(command, args, env, annotations, files).limits
    return tuple(found[name] for name in LIMIT_NAMES if name in found)


def is_engine(image: str, command: Sequence[str], args: Sequence[str], env: Env | None = None) -> bool:
    return declared.runtime_of(image, read_start(command, args, env or {}, Budget())) is not None


def serving_port(command: Sequence[str], args: Sequence[str], env: Env, files: Texts | None = None) -> int | None:
    return declared.serving_port(read_start(command, args, env, Budget(), files))

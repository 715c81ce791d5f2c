"""What one container starts: read once, and then asked whether it is an engine, for its port and for its limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from kvpressure.commandline.budget import Budget, BudgetExceededError
from kvpressure.commandline.options import Options, read_options
from kvpressure.commandline.programs import Launch, programs, settle, talks
from kvpressure.commandline.shell import Words
from kvpressure.runtimes.registry import ASSUMED, RUNTIMES
from kvpressure.runtimes.runtime import Runtime
from kvpressure.runtimes.starting import Flags

TOO_MUCH: Final = "the start command expands to more than can be read"
"""Why a start is cut that is longer than its budget."""

# What is later told of a server takes as long as some dozen words.
_SERVER: Final = 64


@dataclass(frozen=True, slots=True)
class Server:
    """One start of a server: its words, the options among them, and the runtime that it is of."""

    words: Words = ()
    runtime: Runtime = ASSUMED
    module: str = ""
    options: Options = field(default_factory=Options)

    @property
    def is_worker(self) -> bool:
        """Whether the server only works for another one, and has no API."""
        return self.runtime.starting.worker(self.options)

    @property
    def flags(self) -> Flags:
        """The runtime's options."""
        return self.runtime.starting.flags


@dataclass(frozen=True, slots=True)
class Start:
    """What a container's command comes to, as far as it could be read; `command` and `args` are as written.

    `servers` are those that it starts (`seen`), else the one that the image's entrypoint or the first program may be,
    read as the assumed runtime's; `only` says that it is not one program among several. `cut` says why not everything
    could be read, as a sentence without a full stop: whatever was read may be contradicted there.
    """

    command: Words = ()
    args: Words = ()
    servers: tuple[Server, ...] = ()
    seen: bool = False
    only: bool = False
    cut: str = ""


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
    launched: list[tuple[Runtime, Launch]] = []
    servers: list[Server] = []
    cut = unreadable = ""
    try:
        settled = settle(env, budget)
        for program in programs(command, args, settled, budget, files):
            count, first = count + 1, first or program.words
            unreadable = unreadable or program.unreadable
            if (one := launch(program.words)) is not None:
                launched.append(one)
                cut = cut or program.unreadable
        cut = cut if launched else unreadable
        for runtime, started in launched or [(ASSUMED, Launch(first if command or count < 2 else ()))]:
            budget.take(steps=_SERVER)
            own = runtime.starting
            words = started.arguments if command else own.completed(started.arguments, args, settled, budget)
            options = read_options(words, files or {}, budget, own.flags.dialect)
            servers.append(Server(words, runtime, started.module, options))
    except BudgetExceededError:
        cut = TOO_MUCH
        servers += [Server(one.arguments, runtime, one.module) for runtime, one in launched[len(servers) :]]
    return Start(tuple(command), tuple(args), tuple(servers), bool(launched), not command or count < 2, cut)


def launch(words: Words) -> tuple[Runtime, Launch] | None:
    """Return the server that a program starts, None for any other."""
    if talks(words):
        return None
    found = ((runtime, runtime.starting.launch(words)) for runtime in RUNTIMES)
    return next(((runtime, one) for runtime, one in found if one is not None), None)


def runtime_of(image: str, start: Start) -> Runtime | None:
    """Return the runtime that this container serves, by its command or its image's entrypoint; None for any other.

    Workers of a multi-node engine are none: they serve no page. Never raises.
    """
    if start.seen:
        serving = (s for s in start.servers if s.runtime.starting.serves(s.module, s.options, image))
        return next((server.runtime for server in serving), None)
    options = [server.options for server in start.servers]
    return next((one for one in RUNTIMES if one.starting.image_serves(image, start.command, start.args, options)), None)


def serving_port(start: Start) -> int | None:
    """Return the port of the servers' own arguments; None where they give none or several, or may give another."""
    ports = {one.runtime.starting.port(one.module, one.options) for one in start.servers if not one.is_worker}
    return ports.pop() if len(ports) == 1 and not start.cut else None

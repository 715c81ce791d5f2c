"""What one container starts, read once: whether it is an engine, its port, and its declared limits."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from kvpressure.commandline.options import Given, Options, human, read_options, unknown_names
from kvpressure.commandline.programs import (
    ContainerRun,
    Launch,
    Program,
    container_run,
    container_runs,
    programs,
    talks,
)
from kvpressure.commandline.words import Budget, BudgetExceededError, Variables, Words, filled_word, settle
from kvpressure.model.environment import LIMIT_NAMES, DeclaredLimit
from kvpressure.runtimes.registry import ASSUMED, RUNTIMES
from kvpressure.runtimes.runtime import Runtime
from kvpressure.runtimes.starting import DYNAMO, Flags, Starting

TOO_MUCH: Final = "the start command expands to more than can be read"
"""Why a start is cut that is longer than its budget."""

# What is later read of a server takes as long as some dozen words.
_SERVER: Final = 64


@dataclass(frozen=True, slots=True)
class Server:
    """One start of a server: its words, the options among them, and the runtime that it is of.

    `program` is what runs it, with the condition around it.
    """

    words: Words = ()
    runtime: Runtime = ASSUMED
    module: str = ""
    options: Options = field(default_factory=Options)
    program: Program = field(default_factory=lambda: Program(()))

    @property
    def is_worker(self) -> bool:
        """Whether the server only works for another one, and has no API."""
        return self.runtime.starting.worker(self.options)

    @property
    def behind_frontend(self) -> bool:
        """Whether another program serves the API for it, and its metrics are on a port of their own (Dynamo)."""
        return self.module.startswith(DYNAMO)

    @property
    def flags(self) -> Flags:
        """The runtime's options."""
        return self.runtime.starting.flags


_MODEL_NAME: Final = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}")
"""ORG/NAME, as the hub has them."""


@dataclass(frozen=True, slots=True)
class Start:
    """What a container's command comes to, as far as it could be read; `command` and `args` are as written.

    `servers` are those that it starts (`is_known`), else the one that the image's entrypoint or the first program may
    be, read as one of the image's runtime or of the assumed one; `only`: it is not one program among several. `cut`
    says why not everything could be read, as a sentence without a full stop: what was read may be contradicted there.
    `written` are the texts that here-documents of its scripts write, by path.
    """

    command: Words = ()
    args: Words = ()
    servers: tuple[Server, ...] = ()
    is_known: bool = False
    only: bool = False
    cut: str = ""
    written: Mapping[str, str] = field(default_factory=dict)


def read_start(
    command: Sequence[str],
    args: Sequence[str],
    env: Variables,
    budget: Budget,
    files: Mapping[str, str] | None = None,
    image: str = "",
) -> Start:
    """Read what a container starts. Never raises: where the budget does not suffice the reading is `cut`.

    `env` holds the variables in the order of the manifest, None for those whose value is not known, `files` the texts
    of files mounted from ConfigMaps by their path in the container; options are read as those of the server that the
    `image` itself starts.
    """
    own_start = tuple(command), tuple(args)
    count = 0
    first: Words = ()
    launched: list[tuple[Runtime, Launch, Program]] = []
    servers: list[Server] = []
    written: dict[str, str] = {}
    cut = ""
    try:
        settled = settle(env, budget)
        for program in programs(command, args, settled, budget, files):
            count, first = count + 1, first or program.words
            written.update(program.files)
            if (launch_of_program := launch(program.words)) is not None:
                launched.append((*launch_of_program, program))
        own_image = (
            each for each in RUNTIMES if not command and each.starting.image_serves(image, (), own_start[1], ())
        )
        whose = ASSUMED if launched else next(own_image, ASSUMED)
        alone = Launch(first if command or count < 2 else ())
        for runtime, started, program in launched or [(whose, alone, Program((), env=settled, files=files or {}))]:
            budget.take(steps=_SERVER)
            servers.append(_server(runtime, started, program, None if command else args, budget))
    except BudgetExceededError:
        cut = TOO_MUCH
        servers += [Server(each.arguments, runtime, each.module) for runtime, each, _ in launched[len(servers) :]]
    for path in files or {}:
        written.pop(path, None)
    return Start(*own_start, tuple(servers), bool(launched), not command or count < 2, cut, written)


def _server(runtime: Runtime, started: Launch, program: Program, args: Sequence[str] | None, budget: Budget) -> Server:
    """Read the options of a server; `args` are those of the image's own entrypoint, None where a command is given."""
    run, own = started.container or container_run(program.words), runtime.starting
    env = {**program.env, **run.env()} if run is not None else program.env
    words = started.arguments
    if run is not None or args is not None:
        known = {name: value for name, value in env.items() if value is not None}
        words = own.completed(words, args or (), known, budget)
    if run is not None:
        words = (*(own.variables(run.image, env) or ()), *words)
    options = read_options(words, program.files, budget, own.flags.dialect)
    container = run or program.container
    return Server(words, runtime, started.module, options, replace(program, env=env, container=container))


def launch(words: Words) -> tuple[Runtime, Launch] | None:
    """Return the server that a program starts, None for any other."""
    if talks(words):
        return None
    launches = ((runtime, runtime.starting.launch(words)) for runtime in RUNTIMES)
    known = ((runtime, started) for runtime, started in launches if started is not None)
    return next(known, None) or _launched_image(words)


def _launched_image(words: Words) -> tuple[Runtime, Launch] | None:
    """Return the server that an image's own entrypoint starts in `docker run`: by its name, else by its options."""
    runs = container_runs(words)
    named = [(run, False) for at, run in enumerate(runs) if not at or "/" in run.image or ":" in run.image]
    for run, by_options in (*named, *((run, True) for run in runs)):
        for runtime in RUNTIMES:
            if _image_starts(runtime.starting, run, by_options=by_options):
                return runtime, Launch(run.arguments, container=run)
    return None


def _image_starts(own: Starting, run: ContainerRun, *, by_options: bool) -> bool:
    options = []
    if by_options:
        first, dialect = next(iter(run.arguments), ""), own.flags.dialect
        if first[:2] != "--" or dialect.full_name(first[2:].partition("=")[0]) is None:
            return False
        options.append(read_options(run.arguments, {}, Budget(), dialect))
    elif own.variables(run.image, {}) is not None:
        return True
    return own.image_serves(run.image, run.entrypoint, run.arguments, options)


def runtime_of(image: str, start: Start) -> Runtime | None:
    """Return the runtime that this container serves, by its command or its image's entrypoint; None for any other.

    Workers of a multi-node engine are none: they serve no page. Never raises.
    """
    if start.is_known:
        serving = (s for s in start.servers if s.runtime.starting.serves(s.module, s.options, image))
        return next((server.runtime for server in serving), None)
    options = [server.options for server in start.servers]
    return next(
        (runtime for runtime in RUNTIMES if runtime.starting.image_serves(image, start.command, start.args, options)),
        None,
    )


def serving_port(start: Start) -> int | None:
    """Return the port of the servers' own arguments; None where they give none or several, or may give another."""
    serving = (server for server in start.servers if not (server.is_worker or server.behind_frontend))
    ports = {server.runtime.starting.port(server.module, server.options) for server in serving}
    return ports.pop() if len(ports) == 1 and not start.cut else None


ANNOTATION_PREFIX: Final = "kvpressure.io/"

ANNOTATIONS: Final[Mapping[str, str]] = {
    "max_input_tokens": f"{ANNOTATION_PREFIX}max-input-tokens",
    "max_output_tokens": f"{ANNOTATION_PREFIX}max-output-tokens",
}
"""Limits that a gateway keeps to, written on the pod."""

NO_VALUE: Final = "that is not a value"
CHOOSES: Final = "chooses the value"

_DIFFER: Final = "the command starts several servers that differ in it"
_AUTOMATIC: Final = frozenset(("auto", "-1"))
_CONDITION: Final = "a condition decides about"
_SHOWN: Final = 80
_SHOWN_WORDS: Final = 2
_MOST_NAMES: Final = 6
_UNJUDGED: Final = frozenset(("port", "http-port", "served-model-name"))
"""Options that no limit depends on."""


@dataclass(frozen=True, slots=True)
class Reading:
    """All that is known of an engine's limits.

    `unclear` says of a limit that is given, and of an option that several servers differ in, why its value is not
    known; `hidden` why others may be given that could not be read. `options` are the options behind them, by name
    without dashes; `model` is what is served, "" where not given. They were read as options of `runtime`. `notes` say
    which conditions and variables all that depends on.
    """

    limits: Mapping[str, DeclaredLimit] = field(default_factory=dict)
    unclear: Mapping[str, str] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()
    options: Mapping[str, Given] = field(default_factory=dict)
    model: str = ""
    runtime: Runtime = ASSUMED
    notes: tuple[str, ...] = ()


def read_limits(start: Start) -> Reading:
    """Return the limits that the container's command declares; none where the reading was cut. Never raises."""
    if start.cut:
        return Reading(hidden=(start.cut,), runtime=start.servers[0].runtime if start.servers else ASSUMED)
    serving = [server for server in start.servers if start.is_known and not server.is_worker]
    readings = [_read(server) for server in serving or (start.servers if start.only else [Server()])]
    reading = readings[0] if len(readings) == 1 else _agreed(readings)
    if start.is_known or not start.command:
        return reading
    # The first word is a program and no model, and what it passes to the server is not known.
    started = " ".join((*start.command, *start.args)[:_SHOWN_WORDS])[:_SHOWN]
    return replace(reading, hidden=(*reading.hidden, f"what {started} starts is not known from the manifest"), model="")


def annotated(reading: Reading, annotations: Mapping[str, str]) -> Reading:
    """Return the reading with the limits of the pod's annotations, which win."""
    limits, unclear = dict(reading.limits), dict(reading.unclear)
    for name, annotation in ANNOTATIONS.items():
        if annotation in annotations:
            text = annotations[annotation]
            _note(name, Given(text, f"annotation {annotation}"), human(text), limits, unclear, reading.runtime.title)
    return replace(reading, limits=limits, unclear=unclear)


def declared(reading: Reading, *, command_is_known: bool) -> tuple[DeclaredLimit, ...] | None:
    """Return the limits in the order of `LIMIT_NAMES`; None where there are none but some may be hidden.

    `command_is_known` means that the server's command line is known.
    """
    limits = tuple(reading.limits[name] for name in LIMIT_NAMES if name in reading.limits)
    return limits if limits or (command_is_known and not reading.hidden and not reading.unclear) else None


def _read(server: Server) -> Reading:
    flags, title = server.flags, server.runtime.title
    # Without a value it sizes nothing: `--kv-cache-memory-bytes=${BYTES-}`.
    options = {name: given for name, given in server.options.given.items() if given.text or name != flags.sizes_pool}
    limits: dict[str, DeclaredLimit] = {}
    unclear = {name: f"{_CONDITION} --{name}" for name in server.options.perhaps}
    options = {name: given for name, given in options.items() if name not in unclear}
    for name, (option, read) in flags.limits.items():
        if option in unclear:
            unclear[name] = unclear[option]
        elif option in options:
            _note(name, options[option], read(options[option].text), limits, unclear, title)
    if flags.sizes_pool in options:
        limits.pop("gpu_memory_utilization", None)
    if flags.capacity is not None and (capacity := flags.capacity(options)) is not None:
        tokens, where = capacity
        limits["kv_capacity_tokens"] = DeclaredLimit("kv_capacity_tokens", tokens, where[:200])
    if flags.role is not None and (role := flags.role(options)) is not None:
        code, where = role
        limits["kv_role"] = DeclaredLimit("kv_role", code, where[:200])
    for cap in server.options.new_tokens:
        _note("max_output_tokens", cap, human(cap.text), limits, unclear, title)
    model = _model(server.words, options, flags.model)
    return Reading(
        limits, unclear, server.options.hidden, options, model, server.runtime, tuple(_notes(server, options))
    )


def _notes(server: Server, options: Mapping[str, Given]) -> Iterator[str]:
    """Yield what the values depend on: a condition, and variables."""
    program = server.program
    if program.only_if:
        yield f"only if {program.only_if}"
    if program.times != 1:
        yield "a loop starts it" if program.times is None else f"a loop starts it {program.times} times"
    if names := dict.fromkeys(name for key, given in options.items() if key not in _UNJUDGED for name in given.unless):
        yield f"as stated here, unless set elsewhere: {_listed([f'${name}' for name in names])}"
    every, told = {**server.options.given, **server.options.perhaps}, server.words[:1]
    judged = (*told, *(given.text for name, given in every.items() if name not in _UNJUDGED), *server.options.hidden)
    of_judged = {name for word in judged for name in unknown_names(word)}
    names = dict.fromkeys(name for word in server.words for name in unknown_names(word) if name in of_judged)
    if names:
        yield f"not known: {_listed([*names])}"
    unjudged = {name for word in program.words for name in unknown_names(word)} - names.keys()
    uncertain = {name: condition for name, condition in program.uncertain.items() if f"${name}" not in unjudged}
    for name, condition in list(uncertain.items())[:_MOST_NAMES]:
        yield f"only if {condition}: ${name}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def _model(words: Sequence[str], options: Mapping[str, Given], option: str) -> str:
    """Return the model of its option, or the first word behind the program.

    A value of a variable is said where it looks like the name of a model, and by the variable's name elsewhere.
    """
    if option in options:
        given = options[option]
        model = filled_word(given.text, given.value_as_written)
    else:
        model = words[0] if words and not words[0].startswith("-") else ""
    return str(model) if _MODEL_NAME.fullmatch(model) else model


def _note(
    name: str, source: Given, value: float | None, limits: dict[str, DeclaredLimit], unclear: dict[str, str], title: str
) -> None:
    where = f"{source.written} in {source.file}" if source.file else source.written
    if source.perhaps:
        limits.pop(name, None)
        unclear[name] = f"{_CONDITION} {where.partition(' ')[0]}"
    elif value is not None and math.isfinite(value):
        limits[name] = DeclaredLimit(name, value, where[:200])
        unclear.pop(name, None)
    else:
        limits.pop(name, None)  # an earlier value is overridden, whatever this one is
        unknown = ", ".join(unknown_names(source.text))
        why = f"not known: {unknown}" if unknown else f"{NO_VALUE} {title} can use"
        unclear[name] = f"{where[:200]}: {f'{title} {CHOOSES}' if source.text.strip().lower() in _AUTOMATIC else why}"


def _agreed(readings: Sequence[Reading]) -> Reading:
    """Return what all servers of one command declare alike; what they declare differently is unclear."""
    first = readings[0]
    limits, unclear = {}, {name: why for reading in readings for name, why in reading.unclear.items()}
    for name in {name for reading in readings for name in reading.limits}:
        declared_limits = [reading.limits.get(name) for reading in readings]
        if (
            first.limits.get(name) is not None
            and len({None if limit is None else limit.value for limit in declared_limits}) == 1
        ):
            limits[name] = first.limits[name]
        else:
            unclear[name] = _DIFFER
    options, of_limits = {}, {option for option, _ in first.runtime.starting.flags.limits.values()}
    for name in {name for reading in readings for name in reading.options}:
        if len({given.text if (given := reading.options.get(name)) else None for reading in readings}) == 1:
            options[name] = first.options[name]
        elif name not in of_limits:
            unclear[name] = f"{_DIFFER}: --{name}"
    return Reading(
        limits,
        {name: why for name, why in unclear.items() if name not in limits},
        tuple(dict.fromkeys(why for reading in readings for why in reading.hidden)),
        options,
        first.model if len({reading.model for reading in readings}) == 1 else "",
        first.runtime,
        tuple(dict.fromkeys(note for reading in readings for note in reading.notes)),
    )

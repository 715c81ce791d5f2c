"""Finds the programs that a container's command runs: through shells, inline scripts, mounted ones, `docker run`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from kvpressure.commandline.options import unresolved
from kvpressure.commandline.scripts import PERHAPS, Script
from kvpressure.commandline.words import (
    NESTING,
    Budget,
    BudgetExceededError,
    Variables,
    Words,
    as_written,
    expand,
    split,
)

GPU_TYPE: Final = "--gpu-type"
"""The option of a run that names the GPU."""
SHELLS: Final = frozenset(("sh", "bash", "dash", "ash", "zsh", "ksh"))
_SHELL_FLAGS: Final = re.compile(r"-[abd-z]*c[a-z]*")
_SHELL_FLAGS_WITH_VALUE: Final = frozenset(("-o", "+o", "-O", "--rcfile", "--init-file"))
_OF_MACHINE: Final = frozenset(("apptainer", "singularity"))
_CONTAINERS: Final = frozenset(("docker", "podman", "nerdctl", *_OF_MACHINE))
_MOST_IMAGES: Final = 16
_SINGULARITY: Final = re.compile(r"(?:_([\w.-]*))?\.sif$")
"""The tag in the name of a file that Singularity makes of an image."""
_RUNPOD: Final = "runpodctl"
_RUNPOD_OPTIONS: Final = {"--gpuCount": "--gpus", "--gpuType": GPU_TYPE, "--env": "--env"}
"""RunPod's options of a pod, and what they are called here."""
# Options of `docker run` that take no value; of short ones it may stand in the same word.
_NO_VALUE: Final = re.compile(
    r"-[a-zA-Z].+|-[ditPq]|--.*=.*"
    r"|--(detach|help|init|interactive|no-healthcheck|privileged|publish-all|quiet|read-only|replace|rm|tty)"
)
_NO_VALUE_OF_MACHINE: Final = re.compile(
    r"-[BHSWo].+|-[aceCfinpuw]+|--.*=.*|--(no-.*|nv|nvccli|rocm|contain(all)?|cleanenv|compat|fakeroot|writable(-tmpfs)?)"
)
# Programs that run their arguments as a command, and those that run one of them, or what follows, as a script.
_WRAPPERS: Final = frozenset(("exec", "tini", "dumb-init", "nohup", "sudo", "env", "time"))
_OWN_VARIABLES: Final = 16
"""Words behind `env` that may be variables."""
_BATCH: Final = "sbatch"
_RUN_TEXT: Final = frozenset((_BATCH, "eval", "ssh", "tmux", "screen", "su"))
# Programs whose arguments may look like a launch, and start nothing.
_TEXT_PROGRAMS: Final = frozenset(
    (
        *("echo", "printf", "grep", "egrep", "pgrep", "pkill", "pip", "pip3", "curl", "wget", "which"),
        *("test", "[", "[[", "cat", "tee", "sed", "awk", "export", "alias", "cp"),
        *("kill", "log", "logger", "apt", "apt-get"),
    )
)


@dataclass(frozen=True, slots=True)
class Program:
    """One program that a command runs.

    `only_if` is the condition around it, `uncertain` are the variables that a condition may have set, with it. `env` is
    its environment as far as it is stated, `files` are the texts that here-documents wrote before, by path, and
    `container` is the one whose command is a script that runs it. `lines` are its first and its last in the text. Loops
    run it so many `times`, None where that is not known, and set the variables `over`.
    """

    words: Words
    only_if: str = ""
    uncertain: Mapping[str, str] = field(default_factory=dict)
    env: Variables = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    container: ContainerRun | None = None
    lines: tuple[int, int] = (1, 1)
    times: int | None = 1
    over: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Launch:
    """One start of a server: the arguments of its program, and its Python module where the runtime has several.

    `container` is the one whose image starts it by itself.
    """

    arguments: Words
    module: str = ""
    container: ContainerRun | None = None


def programs(
    command: Sequence[str],
    args: Sequence[str],
    env: Variables,
    budget: Budget,
    files: Mapping[str, str] | None = None,
) -> Iterator[Program]:
    """Yield every program that the container's command runs.

    `env` is the result of `settle`; `files` are the texts of mounted files by path, scripts among them. Raises
    BudgetExceededError after the programs found before it.
    """
    words = tuple(expand(word, env, budget) for word in (*command, *args))
    yield from _unwrap(Program(words, env=env, files=files or {}), budget, NESTING, set(), 0)


def _unwrap(program: Program, budget: Budget, depth: int, ran: set[str], begin: int | None) -> Iterator[Program]:
    """Yield the programs that one comes to.

    `ran` are the scripts that ran; `begin` is the line before a script in the whole text, None within a command.
    """
    runs = container_runs(program.words)
    inside = ((run, nested) for run in runs if (nested := _script(run.started, budget, program.files)) is not None)
    run, nested = next(inside, (None, None))
    if run is not None:
        program = replace(program, env={**program.env, **run.env()}, container=run)
    elif not runs:
        nested = _script(program.words, budget, program.files)
    if nested is None:
        if program.words:
            # What a condition adds within a word leaves the word open.
            words = (as_written(word).replace(PERHAPS, "") if PERHAPS in word else word for word in program.words)
            yield replace(program, words=tuple(words))
        return
    if depth == 0:
        raise BudgetExceededError
    text, positional = nested
    ran.add(text)
    own = (word.partition("=") for word in program.words[: _OWN_VARIABLES if program.words[0] == "env" else 0])
    script = Script(text, {**program.env, **{name: value for name, equals, value in own if equals}}, budget, positional)
    for command in script.commands():
        if not command.words:
            continue
        inner = Program(
            command.words,
            command.only_if or program.only_if,
            {**program.uncertain, **command.uncertain},
            {**script.values, **command.sets},
            {**program.files, **script.files},
            program.container,
            program.lines if begin is None else (begin + command.lines[0], begin + command.lines[1]),
            None if None in {program.times, command.times} else (program.times or 0) * (command.times or 0),
            program.over | command.over,
        )
        yield from _unwrap(inner, budget, depth - 1, ran, None)
    for path, written in script.files.items():
        is_input = path.startswith("<<")  # of a command, such as `ssh HOST`
        if is_input or (written not in ran and (path.endswith(".sh") or written.startswith("#!"))):
            line = None if begin is None else begin + script.begins[path]
            env = script.values if is_input else program.env
            inner = replace(program, words=("sh", "-c", written), env=env)
            yield from _unwrap(inner, budget, depth - 1, ran, line)


def _script(words: Words, budget: Budget, files: Mapping[str, str]) -> tuple[str, Words] | None:
    """Return the text and the arguments of `sh -c SCRIPT $0 $1...`, or of a known file; None for any other program."""
    own = next((i for i, word in enumerate(words) if word != "--" and base(word) not in _WRAPPERS), 0)
    if words and words[own] in files:
        return files[words[own]], words[own:]
    if talks(words):
        return None
    if base(words[own]) in _RUN_TEXT:
        budget.take(sum(map(len, words)))
        text = " ".join(words[own + 1 :]) if words[own] == "eval" else max(words[own + 1 :], key=len, default="")
        text = ContainerRun("", (), words).value("--wrap") if base(words[own]) == _BATCH else text
        return (text, ()) if any(blank in text for blank in " \n") else None
    start = next((i for i, word in enumerate(words) if base(word) in SHELLS), None)
    if start is None:
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


@dataclass(frozen=True, slots=True)
class ContainerRun:
    """What `docker run` starts: the image, the arguments after it, and the options before it.

    `of_machine`: it has the machine's devices and shared memory, as Apptainer's have. `has_unknown`: there may be more
    options than these.
    """

    image: str
    arguments: Words
    options: Words
    of_machine: bool = False
    has_unknown: bool = False

    @property
    def entrypoint(self) -> Words:
        """The program in place of the image's own, () where none is given."""
        return tuple(split(self.value("--entrypoint")))

    @property
    def started(self) -> Words:
        """The command in it, as far as it is given."""
        return (*self.entrypoint, *self.arguments)

    def value(self, option: str) -> str:
        """Return the value of an option, "" where it is not given."""
        return next(iter(self.values(option)), "")

    def values(self, *names: str) -> Iterator[str]:
        """Yield the values of an option, by any of its names."""
        for word, following in zip(self.options, (*self.options[1:], ""), strict=False):
            name, equals, value = word.partition("=")
            if name in names:
                yield (value if equals else following).strip("\"'")

    def env(self) -> dict[str, str | None]:
        """Return the variables that it sets, None for those of the machine."""
        pairs = (text.partition("=") for text in self.values("-e", "--env"))
        return {name: value if equals else None for name, equals, value in pairs}


def container_run(words: Words) -> ContainerRun | None:
    """Return the container that a program starts, None for any other program."""
    return next(iter(container_runs(words)), None)


def container_runs(words: Words) -> list[ContainerRun]:
    """Return the container that `docker run`, Apptainer or RunPod's command line starts, [] for any other program.

    Where something unknown comes before the image (`$OPTIONS`), it is the first of those that it may be.
    """
    if words and base(words[0]) == _RUNPOD and "create" in words[1:3]:
        return [run] if (run := _runpod(words)) is not None else []
    at = next((i for i, word in enumerate(words[:4]) if base(word) in _CONTAINERS), None)
    if at is None:
        return []
    of_machine, is_instance = base(words[at]) in _OF_MACHINE, words[at + 1 : at + 2] == ("instance",)
    alone = of_machine and words[at + 1 : at + 2] != () and words[at + 1].endswith(".sif")
    if "run" not in words[at + 1 : at + 3] and not alone:
        return []
    at = start = at + 1 if alone else words.index("run", at) + 1
    no_value = _NO_VALUE_OF_MACHINE if of_machine else _NO_VALUE
    found: list[ContainerRun] = []
    while at < len(words) and len(found) < _MOST_IMAGES:
        if words[at].startswith("-"):
            at += 1 if no_value.fullmatch(words[at]) else 2
            continue
        image = _SINGULARITY.sub(r":\1", words[at]).rstrip(":") if of_machine else words[at]
        found.append(ContainerRun(image, words[at + 1 + is_instance :], words[start:at], of_machine, bool(found)))
        at += 1
        if not unresolved(found[0].image):
            break
    return found


def _runpod(words: Words) -> ContainerRun | None:
    given = ContainerRun("", (), words)
    options = (
        word for option, name in _RUNPOD_OPTIONS.items() for value in given.values(option) for word in (name, value)
    )
    image = given.value("--imageName")
    return ContainerRun(image, tuple(split(given.value("--args"))), tuple(options)) if image else None


def talks(words: Words) -> bool:
    """Return whether there is no program, or one whose arguments are text, such as `echo`, and start nothing."""
    return not words or base(words[0]) in _TEXT_PROGRAMS


def base(word: str) -> str:
    """Return the name of a program without its directory."""
    return word[word.rfind("/") + 1 :]

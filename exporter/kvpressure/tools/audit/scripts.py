"""Engines that a start script runs: a file of its own, or SkyPilot's `run`, which has the GPUs beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from kvpressure.commandline.words import Budget, BudgetExceededError
from kvpressure.commandline.options import whole
from kvpressure.commandline.programs import base, image_of, programs
from kvpressure.commandline.words import Words
from kvpressure.launch import ANNOTATION_PREFIX, launch
from kvpressure.tools.audit import pods
from kvpressure.tools.audit.engine import Engine, Replicas, counted
from kvpressure.tools.audit.manifests import Item, Manifests, Source, get, mapping, strings, text
from kvpressure.tools.audit.model import Problem

SCRIPT: Final = "script"
_TASK: Final = "run"
_ANNOTATED: Final = re.compile(rf"^#\s*({re.escape(ANNOTATION_PREFIX)}[\w-]+):\s*(.+?)\s*$", re.MULTILINE)
_OF_MACHINE: Final = "the machine's own /dev/shm"
_NO_NUMBER: Final = "a script starts one server, and how often it is run is not known here"


def read_script(script: str, name: str) -> Manifests:
    """Return a shell script as an object that holds it; `name` is its file's."""
    lines = script.split("\n")
    source = Source(name, lines, {(): 1, (SCRIPT,): 1}, len(lines))
    return Manifests((Item("", "", base(name), {SCRIPT: script}, source),))


def engines(item: Item, given: Manifests) -> Iterator[Engine | Problem]:
    """Yield the server that a script starts, with the annotations in its comments."""
    script = item.data.get(SCRIPT)
    if not isinstance(script, str) or len(item.data) > 1:
        return
    for engine in _started(item, given, (SCRIPT,), script, {}):
        words = _container(script)
        yield replace(
            engine,
            title=f"script/{item.name}",
            annotations=(annotations := dict(_ANNOTATED.findall(script))),
            image=image_of(words)[0] if words else "",
            gpu=pods.gpu_text({}, annotations),
            gpus=_gpus(words) if words else "all",
            gpu_key="",
            shared_memory=_shared(words) if words else _OF_MACHINE,
        )


def task(item: Item, given: Manifests) -> Iterator[Engine | Problem]:
    """Yield the server that a SkyPilot task runs."""
    script = item.data.get(_TASK)
    if not isinstance(script, str):
        return
    gpu, count = _accelerators(get(item.data, "resources", "accelerators"))
    env = strings(item.data.get("envs")) | ({} if count is None else {"SKYPILOT_NUM_GPUS_PER_NODE": str(count)})
    fixed, least = ("service", "replicas"), ("service", "replica_policy", "min_replicas")
    for engine in _started(item, given, (_TASK,), script, env):
        path = least if get(item.data, *least) is not None else fixed
        yield replace(
            engine,
            title=f"task/{text(item.data.get('name')) or base(item.source.name)}",
            replicas=counted(item, path) if isinstance(item.data.get("service"), dict) else engine.replicas,
            gpu=gpu,
            gpus=count,
            gpu_key="",
            shared_memory=_OF_MACHINE,
        )


def _started(item: Item, given: Manifests, at: tuple[str], script: str, env: Mapping[str, str]) -> Iterator[Engine]:
    spec = {"command": ["sh", "-c", script], "env": [{"name": key, "value": value} for key, value in env.items()]}
    read = pods.container(spec, {}, item, given, at)
    if read.runtime is not None:
        engine = pods.engine_in(read, {}, (), Replicas(None, _NO_NUMBER), {})
        yield replace(engine, container=engine.runtime.name, resources_at=())


def _accelerators(value: Any) -> tuple[str, int | None]:
    """Return name and number of the GPUs of SkyPilot's `A100:8` or `{A100: 8}`; of several that it may choose, none."""
    one = value if isinstance(value, str) else ":".join(f"{name}:{count}" for name, count in mapping(value).items())
    name, _, number = one.partition(":")
    if not one or number.count(":"):
        return "", None
    count = whole(number or "1")
    return name, None if count is None else int(count)


def _container(script: str) -> Words:
    """Return the words of the command that runs the server's container, () where it is in none."""
    try:
        found = [one.words for one in programs(("sh", "-c", script), (), {}, Budget())]
    except BudgetExceededError:
        return ()
    return next((words for words in found if image_of(words)[0] and launch(words)), ())


def _value(words: Words, option: str) -> str:
    """Return the value of the container's option, "" where it is not given."""
    for word, following in zip(words, (*words[1:], ""), strict=True):
        name, equals, value = word.partition("=")
        if name == option:
            return (value if equals else following).strip("\"'")
    return ""


def _gpus(words: Words) -> int | str | None:
    # AMD's driver, or all of a CDI vendor.
    if any(word.endswith(("/dev/kfd", "/gpu=all")) for word in words):
        return "all"
    value = _value(words, "--gpus")
    devices = value.partition("device=")[2]
    if devices and devices != "all":
        return devices.count(",") + 1
    count = whole(value)
    return int(count) if count is not None else "all" if value else None


def _shared(words: Words) -> str:
    given = ((option, _value(words, option)) for option in ("--ipc", "--shm-size"))
    return next((f"{option}={value}" for option, value in given if value and value != "private"), "")

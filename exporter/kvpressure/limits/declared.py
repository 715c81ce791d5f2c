"""The limits that somebody wrote down for an engine, whatever way they were spelled."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kvpressure.limits.arguments import Given, given, hidden, parse_json
from kvpressure.limits.launch import Launch, launches, programs, settle
from kvpressure.limits.numbers import human, share, whole
from kvpressure.limits.shell import unresolved
from kvpressure.surroundings import LIMIT_NAMES, DeclaredLimit

ANNOTATION_PREFIX: Final = "kvpressure.io/"

OPTIONS: Final[Mapping[str, tuple[str, Callable[[str], float | None]]]] = {
    "max_model_len": ("max-model-len", human),
    "max_num_seqs": ("max-num-seqs", whole),
    "max_num_batched_tokens": ("max-num-batched-tokens", human),
    "gpu_memory_utilization": ("gpu-memory-utilization", share),
}
"""Limits that are one option of `vllm serve`, and how its value is read."""

ANNOTATIONS: Final[Mapping[str, str]] = {
    "max_input_tokens": f"{ANNOTATION_PREFIX}max-input-tokens",
    "max_output_tokens": f"{ANNOTATION_PREFIX}max-output-tokens",
}
"""Limits that a gateway keeps, written on the pod for those who look at it."""

# Read by start scripts: KServe appends the first to `vllm serve`, SageMaker makes options of the others.
_EXTRA_ARGUMENTS: Final = "VLLM_ADDITIONAL_ARGS"
_OPTION_VARIABLES: Final = "SM_VLLM_"


@dataclass(frozen=True, slots=True)
class Reading:
    """All that can be said of an engine's limits.

    `unclear` says of a limit that is given why its value is not known; `hidden` why others may be given unseen.
    `options` are the options behind them, by name without dashes; `model` is what is served, "" where that is not said.
    """

    limits: Mapping[str, DeclaredLimit]
    unclear: Mapping[str, str]
    hidden: tuple[str, ...]
    options: Mapping[str, Given]
    model: str = ""


def declared_limits(
    command: Sequence[str],
    args: Sequence[str],
    env: Mapping[str, str],
    annotations: Mapping[str, str],
    files: Mapping[str, str] | None = None,
) -> tuple[DeclaredLimit, ...]:
    """The limits that are declared, in the order of `LIMIT_NAMES`. Never raises.

    `env` holds the variables with plain values in the order of the manifest, `annotations` those of the pod, and
    `files` the texts of files mounted from ConfigMaps by their path in the container.
    """
    found = read_limits(command, args, env, annotations, files).limits
    return tuple(found[name] for name in LIMIT_NAMES if name in found)


def read_limits(
    command: Sequence[str],
    args: Sequence[str],
    env: Mapping[str, str],
    annotations: Mapping[str, str],
    files: Mapping[str, str] | None = None,
) -> Reading:
    """What `declared_limits` finds, with what was given but could not be read. Never raises."""
    readings = [_read(launch.arguments, annotations, files or {}) for launch in _servers(command, args, env)]
    return readings[0] if len(readings) == 1 else _agreed(readings)


def _servers(command: Sequence[str], args: Sequence[str], env: Mapping[str, str]) -> list[Launch]:
    """The servers that are started; without one that can be seen, the arguments that the image's entrypoint gets."""
    found = [one for one in launches(command, args, env) if "headless" not in given(one.arguments)]
    if not found:
        words = programs((), args, env) if not command else programs(command, args, env)
        found = [Launch(words[0] if len(words) == 1 else ())]
    return found if command else [Launch((*_from_env(env), *one.arguments, *_extra(env, args))) for one in found]


def _extra(env: Mapping[str, str], args: Sequence[str]) -> list[str]:
    text = settle(env).get(_EXTRA_ARGUMENTS, "")
    if any(_EXTRA_ARGUMENTS in word for word in args):
        return []
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _from_env(env: Mapping[str, str]) -> list[str]:
    named = {name.removeprefix(_OPTION_VARIABLES): value for name, value in settle(env).items() if _is_option(name)}
    return [word for name, value in named.items() for word in (f"--{name.lower()}", value)]


def _is_option(name: str) -> bool:
    return name.startswith(_OPTION_VARIABLES) and len(name) > len(_OPTION_VARIABLES)


def _read(words: Sequence[str], annotations: Mapping[str, str], files: Mapping[str, str]) -> Reading:
    options = given(words, files)
    limits: dict[str, DeclaredLimit] = {}
    unclear: dict[str, str] = {}
    for name, (option, read) in OPTIONS.items():
        if option in options:
            _note(name, options[option], read(options[option].text), limits, unclear)
    if "kv-cache-memory-bytes" in options:
        # vLLM then sizes the pool by that alone, whatever the utilization says.
        limits.pop("gpu_memory_utilization", None)
    _capacity(options, limits)
    _output(options, files, limits, unclear)
    for name, annotation in ANNOTATIONS.items():
        if annotation in annotations:
            value, text = human(annotations[annotation]), annotations[annotation]
            _note(name, Given(text, f"annotation {annotation}"), value, limits, unclear)
    return Reading(limits, unclear, tuple(one.why for one in hidden(words, files)), options, _model(words, options))


def _model(words: Sequence[str], options: Mapping[str, Given]) -> str:
    """What `--model` says, or the first word of `vllm serve`."""
    if "model" in options:
        return options["model"].text
    return words[0] if words and not words[0].startswith("-") else ""


def _note(
    name: str, source: Given, value: float | None, limits: dict[str, DeclaredLimit], unclear: dict[str, str]
) -> None:
    where = f"{source.written} in {source.file}" if source.file else source.written
    if value is not None and math.isfinite(value):
        limits[name] = DeclaredLimit(name, value, where[:200])
        unclear.pop(name, None)
    else:
        why = "its value is not set in the manifest" if unresolved(source.text) else "that is not a value vLLM can use"
        unclear[name] = f"{where[:200]}: {'vLLM chooses the value' if _automatic(source.text) else why}"


def _automatic(text: str) -> bool:
    return text.strip().lower() in {"auto", "-1"}


def _capacity(options: Mapping[str, Given], limits: dict[str, DeclaredLimit]) -> None:
    """Blocks times block size, without block 0, which vLLM keeps to itself; only where both are given."""
    blocks, size = options.get("num-gpu-blocks-override"), options.get("block-size")
    if blocks is None or size is None:
        return
    count, tokens = whole(blocks.text), whole(size.text)
    if count is not None and tokens is not None and count > 1:
        where = f"{blocks.written} {size.written}"
        limits["kv_capacity_tokens"] = DeclaredLimit("kv_capacity_tokens", (count - 1) * tokens, where[:200])


def _output(
    options: Mapping[str, Given],
    files: Mapping[str, str],
    limits: dict[str, DeclaredLimit],
    unclear: dict[str, str],
) -> None:
    """`max_new_tokens` of the generation config caps every request's output; the override wins over the file."""
    folder, override = options.get("generation-config"), options.get("override-generation-config")
    if folder is not None and folder.text not in {"auto", "vllm", ""}:
        path = f"{folder.text.rstrip('/')}/generation_config.json"
        if path in files:
            _new_tokens(Given(files[path], f"max_new_tokens of {path}"), limits, unclear)
    if override is not None:
        _new_tokens(override, limits, unclear)


def _new_tokens(source: Given, limits: dict[str, DeclaredLimit], unclear: dict[str, str]) -> None:
    config = parse_json(source.text)
    if not isinstance(config, dict):
        if unresolved(source.text):
            _note("max_output_tokens", source, None, limits, unclear)
        return
    value = config.get("max_new_tokens")
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        _note("max_output_tokens", source, human(str(value).removesuffix(".0")), limits, unclear)


def _agreed(readings: Sequence[Reading]) -> Reading:
    """Several servers in one command: what all of them say; what they say differently is unclear."""
    first = readings[0]
    limits, unclear = {}, {name: why for reading in readings for name, why in reading.unclear.items()}
    for name in {name for reading in readings for name in reading.limits}:
        found = [reading.limits.get(name) for reading in readings]
        if first.limits.get(name) is not None and len({None if one is None else one.value for one in found}) == 1:
            limits[name] = first.limits[name]
        else:
            unclear[name] = "the command starts several servers that differ in it"
    unseen = tuple(dict.fromkeys(why for reading in readings for why in reading.hidden))
    return Reading(limits, {n: w for n, w in unclear.items() if n not in limits}, unseen, first.options, first.model)

"""Models, GPUs and sizes of memory as they are given to `plan` and `audit`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Final

import click

from kvpressure.capacity.arithmetic import GIB
from kvpressure.capacity.gpus import GPUS, Gpu, gpu_named, nearest_gpus
from kvpressure.capacity.known_models import file_of
from kvpressure.cli.say import CliError
from kvpressure.net.open_files import open_regular

MAX_CONFIG_BYTES: Final = 4 << 20
_UNITS = {"gib": GIB, "gb": 1e9, "mib": GIB / 1024, "mb": 1e6, "": GIB}


def size_bytes(text: str) -> float:
    """Return the bytes of a size such as 80GiB, 80GB or 81559MiB; a bare number is GiB. Raises click.BadParameter."""
    given = text.strip().lower()
    amount = given.rstrip("gimb ")
    try:
        size = float(amount) * _UNITS[given[len(amount) :].strip()]
    except (ValueError, KeyError):
        size = -1.0
    if not 0 < size < 2**60:
        raise click.BadParameter(f"{text!r} is not a size such as 80GiB, 80GB or 81559MiB")
    return size


def plain_bytes(text: str) -> float:
    """Return the bytes as `size_bytes` does, but of a bare number as bytes, like the server's own option."""
    return size_bytes(f"{float(text) / GIB}GiB" if text.strip().isdigit() else text)


def known_gpu(text: str) -> Gpu:
    """Return the GPU of that name. Raises click.BadParameter."""
    if (gpu := gpu_named(text)) is None:
        near = " or ".join(nearest_gpus(text))
        meant = f"did you mean {near}? " if near else ""
        meant = "an A100 is A100-40 or A100-80. " if "a100" in text.lower() else meant
        raise click.BadParameter(f"{text!r} is not known; {meant}Known are {', '.join(GPUS)}")
    return replace(gpu, given=text)


def read_config(path: Path) -> Mapping[str, Any]:
    """Return the object in a `config.json`. Raises CliError."""
    try:
        with open_regular(path) as file:
            text = file.read(MAX_CONFIG_BYTES + 1)
        if len(text) > MAX_CONFIG_BYTES:
            raise CliError(f"{path}: is larger than {MAX_CONFIG_BYTES >> 20} MiB: that is no model's config.json")
        config = json.loads(text)
    except OSError as error:
        raise CliError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise CliError(f"{path}: is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise CliError(f"{path}: must hold one JSON object, as a model's config.json does")
    return config


def known_model(served: str) -> Mapping[str, Any] | None:
    """Return the configuration of a model by the name it is served as, None where it is not known."""
    file = file_of(served)
    return None if file is None else _read(file)


@cache
def _read(file: str) -> Mapping[str, Any]:
    text = resources.files("kvpressure.capacity").joinpath("models", f"{file}.json").read_text("utf-8")
    config: Mapping[str, Any] = json.loads(text)
    return config

"""Configurations of public models that come with the package."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from kvpressure.capacity.known_models import file_of


def known_model(served: str) -> Mapping[str, Any] | None:
    """Return the configuration of a model by the name it is served under, None for one that is not among them."""
    file = file_of(served)
    return None if file is None else _read(file)


@cache
def _read(file: str) -> Mapping[str, Any]:
    text = resources.files("kvpressure.capacity").joinpath("models", f"{file}.json").read_text("utf-8")
    config: Mapping[str, Any] = json.loads(text)
    return config

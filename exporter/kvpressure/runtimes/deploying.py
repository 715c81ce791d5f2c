"""How a runtime is deployed by others: Helm charts that write its command line, and KServe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Chart:
    """What the values of a Helm chart call a runtime's options.

    In the entry of a model `config` holds what becomes options: `flags` by its keys, and the words under `extra`,
    which come after them, as written. `command` starts the server in the container `container`.
    """

    config: str
    extra: str
    flags: Mapping[str, str]
    command: tuple[str, ...]
    container: str


def _never(model: Mapping[str, Any]) -> bool:  # noqa: ARG001 - one of several
    return False


@dataclass(frozen=True, slots=True)
class KServe:
    """`serves` says of a predictor's `model` whether KServe serves it with this runtime.

    `arguments` is the variable that more options are given in to an LLMInferenceService, "" where there is none;
    `by_default` is true where one without a container of its own runs this runtime.
    """

    serves: Callable[[Mapping[str, Any]], bool] = _never
    arguments: str = ""
    by_default: bool = False

"""Checks data against a model and reports every problem in the house's words, at the place it came from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from kvpressure.config import strict_yaml
from kvpressure.config.settings.keys import keys, section_of, suggestion
from kvpressure.config.strict_yaml import ConfigError, Problem, shown

_NOT_SHOWN: Final = "is wrong too"  # looking for the key that was meant takes longer than all else
M = TypeVar("M", bound=BaseModel)
Locate = Callable[[strict_yaml.Path, str], Problem]

_MESSAGES: Final = {
    "missing": "is required",
    "greater_than": "must be more than {gt:g}, got {got}",
    "greater_than_equal": "must be at least {ge:g}, got {got}",
    "less_than": "must be less than {lt:g}, got {got}",
    "less_than_equal": "must be at most {le:g}, got {got}",
    "float_type": "must be a number, got {got}",
    "finite_number": "must be a finite number, got {got}",
    "int_type": "must be a whole number, got {got}",
    "bool_type": "must be true or false, got {got}",
    "string_type": "must be a string, got {got}; quote it",
    "literal_error": "must be {expected}, got {got}",
    "path_type": "must be a path",
    "tuple_type": "must be a list, got {got}",
    "dict_type": "must be a mapping of keys to values, got {got}",
    "model_type": "must be a mapping of keys to values, got {got}",
    "model_attributes_type": "must be a mapping of keys to values, got {got}",
}


def validate(model: type[M], data: Any, locate: Locate, extra: Sequence[tuple[strict_yaml.Path, str]] = ()) -> M:
    """Make a `model` of `data`. Raises ConfigError with all problems, those in `extra` included."""
    problems = [locate(path, message) for path, message in extra]
    try:
        result = model.model_validate(data)
    except ValidationError as error:
        # A default that depends on a field in error is that field's problem, which is in the list already.
        found = [item for item in error.errors() if item["type"] != "default_factory_not_called"]
        problems += [
            locate(item["loc"], _message(model, item) if number < strict_yaml.MAX_PROBLEMS else _NOT_SHOWN)
            for number, item in enumerate(found)
        ]
    if problems:
        raise ConfigError(problems)
    return result


def require_mapping(document: strict_yaml.Document) -> dict[str, Any]:
    """Give the top-level mapping of a document; an empty file is an empty mapping. Raises ConfigError."""
    if document.data is None:
        return {}
    if not isinstance(document.data, dict):
        raise ConfigError([document.problem((), "must be a mapping of keys to values at the top level")])
    return document.data


def prune(value: Any) -> Any:
    """Drop keys without a value, which means: the default. A section whose keys are all commented out is such a key."""
    if isinstance(value, dict):
        return {key: prune(inner) for key, inner in value.items() if inner is not None}
    return [prune(item) for item in value] if isinstance(value, list) else value


def _message(model: type[BaseModel], error: ErrorDetails) -> str:
    kind = error["type"]
    if kind == "extra_forbidden":
        return "unknown key" + _did_you_mean(model, error["loc"])
    if kind == "value_error":
        return str(error["ctx"]["error"])
    context = {**error.get("ctx", {}), "got": shown(error["input"])}
    return _MESSAGES[kind].format(**context) if kind in _MESSAGES else error["msg"]


def _did_you_mean(model: type[BaseModel], path: strict_yaml.Path) -> str:
    inner: type[BaseModel] | None = model
    for part in path[:-1]:
        if inner is not None and isinstance(part, str):
            inner, _ = section_of(inner.model_fields[part])
    known = list(inner.model_fields) if inner is not None else []
    return suggestion(str(path[-1]), known, [".".join(key.path) for key in keys(model)])

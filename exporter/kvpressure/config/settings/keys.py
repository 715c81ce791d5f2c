"""The keys of a model: what environment variables, suggestions and the reference are made from."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from kvpressure.config import strict_yaml
from kvpressure.config.settings.types import Gpus, ListenAddresses, SdPatterns, Vendors
from kvpressure.config.strict_yaml import ConfigError, Problem, gone, shown

ENV_PREFIX: Final = "KVPRESSURE_"
_SCALARS: Final = {str: "string", Path: "path", float: "number", int: "integer", bool: "boolean"}
_LISTS: Final = {
    ListenAddresses: "address or list",
    Gpus: "`all` or list",
    Vendors: "`auto` or list",
    SdPatterns: "list of paths",
}


@dataclass(frozen=True, slots=True)
class Key:
    """One key that holds a value; a list of sections is a key too, and its sections' keys follow with `[]`."""

    path: tuple[str, ...]
    field: FieldInfo
    section: str
    type: str
    is_text: bool

    @property
    def in_list(self) -> bool:
        """Whether the key is of a list's entries, which have no environment variable of their own."""
        return any(part.endswith("[]") for part in self.path[:-1])

    @property
    def env(self) -> str:
        """The environment variable that sets it."""
        return ENV_PREFIX + "__".join(self.path).upper()


@cache
def keys(model: type[BaseModel]) -> tuple[Key, ...]:
    """Return all keys of `model` in the order of declaration; cached, as walking them takes milliseconds."""
    return tuple(_walk(model, ()))


def _walk(model: type[BaseModel], path: tuple[str, ...]) -> Iterator[Key]:
    for name, info in model.model_fields.items():
        inner, is_list = section_of(info)
        if inner is not None and not is_list:
            yield from _walk(inner, (*path, name))
            continue
        text = type_name(info)
        is_text = text in ("string", "path") or text.startswith("one of")
        yield Key((*path, name), info, (model.__doc__ or "").strip(), text, is_text)
        if inner is not None:
            yield from _walk(inner, (*path, f"{name}[]"))


def section_of(info: FieldInfo) -> tuple[type[BaseModel] | None, bool]:
    """Give the model behind a section, or behind the entries of a list of sections, and whether it is a list."""
    kind = _bare(info.annotation)
    is_list = typing.get_origin(kind) is tuple
    item = _bare(typing.get_args(kind)[0]) if is_list else kind
    return (item, is_list) if isinstance(item, type) and issubclass(item, BaseModel) else (None, False)


def type_name(info: FieldInfo) -> str:
    """Name a field's type for the documentation."""
    kind = _bare(info.annotation)
    for known, name in _LISTS.items():
        if kind == _bare(known):
            return name
    if typing.get_origin(kind) is Literal:
        return "one of " + ", ".join(typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        return "list"
    return _SCALARS.get(kind, "mapping")


def suggestion(name: str, known: list[str], elsewhere: list[str] | None = None) -> str:
    """Say `; did you mean 'x'?` for a key close to `name`, the same in another section, or `section_key` like it."""
    paths = {path.replace(".", "_"): path for path in elsewhere or []}
    moved = [path for path in paths.values() if path.rpartition(".")[2] == name]
    close = get_close_matches(name, known, 1, 0.6)
    begun = [key for key in close if key.startswith(name)]
    close_names = begun or moved or close or [paths[each] for each in get_close_matches(name, paths, 1, 0.7)]
    return f"; did you mean {close_names[0]!r}?" if close_names else ""


def _bare(kind: Any) -> Any:
    # Optional[X] and Annotated[X, ...] are X here.
    if typing.get_origin(kind) is typing.Annotated:
        return _bare(typing.get_args(kind)[0])
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return _bare(next(arg for arg in typing.get_args(kind) if arg is not type(None)))
    return kind


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


def validate(model: type[M], data: Any, locate: Locate, extra: Sequence[Problem] = ()) -> M:
    """Make a `model` of `data`. Raises ConfigError with all problems, those in `extra` included."""
    problems = list(extra)
    try:
        result = model.model_validate(data)
    except ValidationError as error:
        # A default that depends on a field in error is that field's problem, which is in the list already.
        errors = [item for item in error.errors() if item["type"] != "default_factory_not_called"]
        problems += [
            locate(item["loc"], _message(model, item) if number < strict_yaml.MAX_PROBLEMS else _NOT_SHOWN)
            for number, item in enumerate(errors)
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
        return gone(error["loc"]) or "unknown key" + _did_you_mean(model, error["loc"])
    if kind == "value_error":
        return str(error["ctx"]["error"])
    context = {**error.get("ctx", {}), "got": shown(error["input"])}
    text = _MESSAGES[kind].format(**context) if kind in _MESSAGES else error["msg"]
    if kind == "model_type" and isinstance(error["input"], str):
        required = [name for name, field in _fields(model, error["loc"]).items() if field.is_required()]
        scheme = "" if "://" in error["input"] else "http://"
        text += f"; write url: {scheme}{error['input']}" if required == ["url"] else ""
    return text


def _did_you_mean(model: type[BaseModel], path: strict_yaml.Path) -> str:
    return suggestion(str(path[-1]), list(_fields(model, path[:-1])), [".".join(key.path) for key in keys(model)])


def _fields(model: type[BaseModel], path: strict_yaml.Path) -> dict[str, FieldInfo]:
    """Return the fields of the section at `path`."""
    inner: type[BaseModel] | None = model
    for part in path:
        if inner is not None and isinstance(part, str):
            inner, _ = section_of(inner.model_fields[part])
    return inner.model_fields if inner is not None else {}

"""A section of settings: a frozen record, read from plain data so that everything wrong with it is told at once.

Pure. A field's type says what it takes: a scalar, `Path`, `Literal`, `X | None`, `tuple[X, ...]`, a mapping or another
section. In `Annotated[X, ...]` a `Before` turns what is written into an X, any other rule takes and returns an X.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from abc import ABC
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, dataclass_transform

from kvpressure.config import strict_yaml
from kvpressure.config.strict_yaml import shown

REQUIRED: Final = dataclasses.MISSING
"""The default of a field that must be given."""

WRONG: Final = object()
"""What is returned for a value that is a problem."""


class Before(NamedTuple):
    """Turns a value as it is written into one of the annotated type. Raises ValueError."""

    read: Callable[[Any], Any]


class Within(NamedTuple):
    """Bounds of a number; `above` excludes the lower one."""

    low: float
    high: float
    above: bool = False

    def __call__(self, value: float) -> float:
        """Return the value. Raises ValueError."""
        if value < self.low or (self.above and value == self.low):
            least = "more than" if self.above else "at least"
            raise ValueError(f"must be {least} {self.low:g}, got {value:.15g}")
        if value > self.high:
            raise ValueError(f"must be at most {self.high:g}, got {value:.15g}")
        return value


class Derived(NamedTuple):
    """A default that other keys of the section decide, and how the documentation says so."""

    words: str
    of: Callable[[Any], Any]


def derived(words: str, of: Callable[[Any], Any]) -> Any:
    """Return a `Derived` default, whatever the field's type."""
    return Derived(words, of)


@dataclass_transform(kw_only_default=True, field_specifiers=(dataclasses.field,))
class Section(ABC):  # noqa: B024 - without a metaclass mypy takes no class as the key of a cache
    """A frozen group of settings; unknown keys are errors. Fields whose names begin with `_` are no keys."""

    def __init_subclass__(cls) -> None:
        """Make a record of each kind of section."""
        dataclasses.dataclass(frozen=True, kw_only=True)(cls)

    def __post_init__(self) -> None:
        """Put values in place of derived defaults, in the order of declaration."""
        for name in fields_of(type(self)):
            if isinstance(value := getattr(self, name), Derived):
                object.__setattr__(self, name, value.of(self))

    @classmethod
    def completed(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Return what was written, with what one key says of another."""
        return data

    def conflicts(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """Yield keys that do not go together, "" first where no single one is to blame, and why."""
        yield from ()


class Field(NamedTuple):
    """One key of a section: the type with its rules, and the default or `REQUIRED`."""

    kind: Any
    default: Any


@cache
def fields_of(section: type[Section]) -> Mapping[str, Field]:
    """Return the keys of a section in the order of declaration."""
    kinds = typing.get_type_hints(section, include_extras=True)
    return {
        each.name: Field(kinds[each.name], {} if each.default_factory is not REQUIRED else each.default)
        for each in dataclasses.fields(section)  # type: ignore[arg-type] # every kind of section is one
        if not each.name.startswith("_")
    }


class Found(NamedTuple):
    """A problem at `path`; of an unknown key without a message, with the section that lacks it."""

    path: strict_yaml.Path
    message: str
    section: type[Section] | None = None


def read(kind: Any, value: Any, path: strict_yaml.Path, problems: list[Found]) -> Any:
    """Return `value` as the type `kind`, or WRONG; what is wrong with it or within it is added to `problems`."""
    try:
        return _read(kind, value, path, problems)
    except ValueError as error:
        problems.append(Found(path, str(error)))
        return WRONG


def bare(kind: Any) -> Any:
    """Return X of `Annotated[X, ...]` and of `X | None`."""
    if typing.get_origin(kind) is Annotated:
        return bare(typing.get_args(kind)[0])
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return bare(next(arg for arg in typing.get_args(kind) if arg is not type(None)))
    return kind


def _read(kind: Any, value: Any, path: strict_yaml.Path, problems: list[Found]) -> Any:  # noqa: PLR0911 - for each kind of type
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return _annotated(args[0], args[1:], value, path, problems)
    if origin in (typing.Union, types.UnionType):
        return (
            None if value is None else read(next(arg for arg in args if arg is not type(None)), value, path, problems)
        )
    if origin is Literal:
        return value if value in args else _refuse(_alternatives(args), value)
    if origin is tuple:
        items = value if isinstance(value, list | tuple) else _refuse("a list", value)
        return tuple(read(args[0], item, (*path, position), problems) for position, item in enumerate(items))
    if kind in _SCALARS:
        return _scalar(kind, value)
    if isinstance(kind, type) and isinstance(value, kind):
        return value
    data = value if isinstance(value, dict) else _refuse_mapping(kind, value)
    if origin is not None:
        return {key: read(args[1], item, (*path, key), problems) for key, item in data.items()}
    return _section(kind, data, path, problems)


def _annotated(kind: Any, rules: tuple[Any, ...], value: Any, path: strict_yaml.Path, problems: list[Found]) -> Any:
    for rule in rules:
        value = rule.read(value) if isinstance(rule, Before) else value
    value = read(kind, value, path, problems)
    for rule in rules:
        value = value if isinstance(rule, Before) or value is WRONG else rule(value)
    return value


def _section(kind: type[Section], data: dict[str, Any], path: strict_yaml.Path, problems: list[Found]) -> Any:
    data, fields = kind.completed(data), fields_of(kind)
    problems += [Found((*path, key), "", kind) for key in data if key not in fields]
    given = {
        name: read(field.kind, data[name], (*path, name), problems) for name, field in fields.items() if name in data
    }
    missing = [name for name, field in fields.items() if name not in data and field.default is REQUIRED]
    problems += [Found((*path, name), "is required") for name in missing]
    wrong = {name for name, value in given.items() if value is WRONG}
    if missing or any(fields[name].default is REQUIRED for name in wrong):
        return WRONG
    made = kind(**{name: value for name, value in given.items() if name not in wrong})
    for keys, message in made.conflicts():
        if not wrong.intersection(keys):
            problems.append(Found((*path, *filter(None, keys[:1])), message))
    return made


def _refuse(what: str, value: Any) -> Any:
    raise ValueError(f"must be {what}, got {shown(value)}")


def _refuse_mapping(kind: Any, value: Any) -> Any:
    hint = ""
    if isinstance(value, str) and isinstance(kind, type):
        required = [name for name, field in fields_of(kind).items() if field.default is REQUIRED]
        scheme = "" if "://" in value else "http://"
        hint = f"; write url: {scheme}{value}" if required == ["url"] else ""
    raise ValueError(f"must be a mapping of keys to values, got {shown(value)}{hint}")


def _alternatives(words: tuple[str, ...]) -> str:
    *others, last = map(repr, words)
    return f"{', '.join(others)} or {last}" if others else last


_SCALARS: Final[Mapping[Any, tuple[tuple[type, ...], str]]] = {
    float: ((int, float), "a number"),
    int: ((int,), "a whole number"),
    bool: ((bool,), "true or false"),
    str: ((str,), "a string"),
    Path: ((str, Path), "a path"),
}
"""What is taken for each, and its name."""


def _scalar(kind: Any, value: Any) -> Any:
    taken, name = _SCALARS[kind]
    if not isinstance(value, taken) or (isinstance(value, bool) and kind is not bool):
        raise ValueError(f"must be {name}, got {shown(value)}" + "; quote it" * (kind is str))
    scalar = kind(value)
    return scalar if kind is not float or isfinite(scalar) else _refuse("a finite number", value)

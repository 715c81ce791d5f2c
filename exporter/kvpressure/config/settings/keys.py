"""The keys of a model: what environment variables, suggestions and the reference are made from."""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, cast

from kvpressure.config import strict_yaml
from kvpressure.config.settings.section import Field, Found, Section, bare, fields_of, read
from kvpressure.config.strict_yaml import ConfigError, Problem, gone

ENV_PREFIX: Final = "KVPRESSURE_"


@dataclass(frozen=True, slots=True)
class Key:
    """One key that holds a value; a list of sections is a key too, and its sections' keys follow with `[]`."""

    path: tuple[str, ...]
    field: Field
    section: type[Section]

    @property
    def is_text(self) -> bool:
        """Whether a variable's text is the value, whatever YAML would make of it."""
        kind = bare(self.field.kind)
        return kind in (str, Path) or typing.get_origin(kind) is Literal

    @property
    def in_list(self) -> bool:
        """Whether the key is of a list's entries, which have no environment variable of their own."""
        return any(part.endswith("[]") for part in self.path[:-1])

    @property
    def env(self) -> str:
        """The environment variable that sets it."""
        return ENV_PREFIX + "__".join(self.path).upper()


@cache
def keys(section: type[Section]) -> tuple[Key, ...]:
    """Return all keys of the settings `section` in the order of declaration; walking them takes milliseconds."""
    return tuple(_walk(section, ()))


def _walk(section: type[Section], path: tuple[str, ...]) -> Iterator[Key]:
    for name, field in fields_of(section).items():
        kind = bare(field.kind)
        is_list = typing.get_origin(kind) is tuple
        item = bare(typing.get_args(kind)[0]) if is_list else kind
        inner = item if isinstance(item, type) and issubclass(item, Section) else None
        if inner is not None and not is_list:
            yield from _walk(inner, (*path, name))
            continue
        yield Key((*path, name), field, section)
        if inner is not None:
            yield from _walk(inner, (*path, f"{name}[]"))


def suggestion(name: str, known: list[str], elsewhere: list[str] | None = None) -> str:
    """Say `; did you mean 'x'?` for a key close to `name`, the same in another section, or `section_key` like it."""
    paths = {path.replace(".", "_"): path for path in elsewhere or []}
    moved = [path for path in paths.values() if path.rpartition(".")[2] == name]
    close = get_close_matches(name, known, 1, 0.6)
    begun = [key for key in close if key.startswith(name)]
    close_names = begun or moved or close or [paths[each] for each in get_close_matches(name, paths, 1, 0.7)]
    return f"; did you mean {close_names[0]!r}?" if close_names else ""


_NOT_SHOWN: Final = "is wrong too"  # looking for the key that was meant takes longer than all else
S = TypeVar("S", bound=Section)
Locate = Callable[[strict_yaml.Path, str], Problem]


def _unlocated(path: strict_yaml.Path, message: str) -> Problem:
    return Problem("settings", None, strict_yaml.dotted(path), message)


def validate(section: type[S], data: Any, locate: Locate = _unlocated, extra: Sequence[Problem] = ()) -> S:
    """Make a `section` of `data`. Raises ConfigError with all problems, those in `extra` included."""
    problems: list[Found] = []
    made = cast("S", read(section, data, (), problems))
    if problems or extra:
        shown = [locate(each.path, _message(section, each)) for each in problems[: strict_yaml.MAX_PROBLEMS]]
        more = [locate(each.path, _NOT_SHOWN) for each in problems[strict_yaml.MAX_PROBLEMS :]]
        raise ConfigError([*extra, *shown, *more])
    return made


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


def _message(section: type[Section], problem: Found) -> str:
    if problem.section is None:
        return problem.message
    if text := gone(problem.path):
        return text
    everywhere = [".".join(key.path) for key in keys(section)]
    return "unknown key" + suggestion(str(problem.path[-1]), list(fields_of(problem.section)), everywhere)

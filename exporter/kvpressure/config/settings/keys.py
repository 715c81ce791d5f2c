"""The keys of a model: what environment variables, suggestions and the reference are made from."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from kvpressure.config.settings.types import Gpus, ListenAddresses, SdPatterns, Vendors

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
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind, False
    if typing.get_origin(kind) is tuple:
        item = _bare(typing.get_args(kind)[0])
        if isinstance(item, type) and issubclass(item, BaseModel):
            return item, True
    return None, False


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
    """Say `; did you mean 'x'?` for a key close to `name`, or for the same key in another section."""
    close = get_close_matches(name, known, 1, 0.6)
    moved = [path for path in elsewhere or [] if path.rpartition(".")[2] == name]
    found = moved or close
    return f"; did you mean {found[0]!r}?" if found else ""


def _bare(kind: Any) -> Any:
    # Optional[X] and Annotated[X, ...] are X here.
    if typing.get_origin(kind) is typing.Annotated:
        return _bare(typing.get_args(kind)[0])
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        return _bare(next(arg for arg in typing.get_args(kind) if arg is not type(None)))
    return kind

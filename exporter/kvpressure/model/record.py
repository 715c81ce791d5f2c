"""The decorator of the records that travel between rooms."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Any, Final, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """Make a dataclass with slots that is read-only for the type checker, but not frozen at run time.

    Hundreds are made at every poll, and one that is frozen at run time takes five times as long to make.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)


def changed(original: T, **changes: Any) -> T:
    """Return a record with other values of some fields, as `dataclasses.replace` does it in a third of the time."""
    kind = original.__class__
    if kind not in _READERS:
        names = tuple(each.name for each in fields(kind))  # type: ignore[arg-type]
        _READERS[kind] = names, attrgetter(*names)
    names, values_of = _READERS[kind]
    return kind(**{**dict(zip(names, values_of(original), strict=True)), **changes})


_READERS: Final[dict[type[Any], tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]]] = {}
"""Of kinds of records with several fields: their names, and what reads them all at once."""

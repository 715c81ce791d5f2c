"""The decorator of the records that travel between rooms."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """Make a dataclass with slots that is read-only for the type checker, but not frozen at run time.

    Hundreds are made at every poll, and one that is frozen at run time takes five times as long to make.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)

"""The decorator of the records that travel between rooms."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """A dataclass with slots that nobody writes to: the type checker forbids it, and not each of its instances.

    Hundreds are made at every poll, and one that is frozen at run time takes five times as long to make.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)

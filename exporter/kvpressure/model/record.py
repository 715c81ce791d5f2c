"""The decorator of the records that travel between rooms, what registers itself, and a failed reading of the world."""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """Make a dataclass with slots that is read-only for the type checker, but not frozen at run time.

    Hundreds are made at every poll, and one that is frozen at run time takes five times as long to make.
    """
    return dataclass(slots=True, unsafe_hash=True)(cls)


def exported(package: str, name: str) -> tuple[Any, ...]:
    """Return what the modules of a package export as `name`, those that do, by the modules' names.

    So what is added later is registered by its own file, and by no list elsewhere.
    """
    found = (import_module(f"{package}.{one.name}") for one in pkgutil.iter_modules(import_module(package).__path__))
    return tuple(getattr(module, name) for module in found if hasattr(module, name))


class SourceError(Exception):
    """One failed reading: a stable word for counting and a sentence for people.

    The sentence says what happened, where and what to do; it holds no secrets and no unbounded foreign text
    (pass foreign text through `printable.brief`).
    """

    def __init__(self, reason: str, sentence: str) -> None:
        super().__init__(sentence)
        self.reason = reason
        self.sentence = sentence

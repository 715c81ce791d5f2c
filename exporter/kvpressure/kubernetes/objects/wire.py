"""PURE: splits the JSON of lists and watches into objects, which are made one at a time.

The author of a pod writes most of its object, and in Python a value of two bytes takes a hundred. So a list is split
without making what is in it, and an object with too many values is not made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from msgspec import Raw, Struct, field
from msgspec.json import Decoder, decode

MAX_VALUES: Final = 30_000
"""Of one object, counted before it is made: each takes a hundred bytes or two in memory, and two in JSON."""

MAX_OBJECT_BYTES: Final = 1 << 20
_SMALL_OBJECT_BYTES: Final = 64 << 10
_LARGEST_NAME_BYTES: Final = 1024


class _ListMeta(Struct):
    version: str = field(name="resourceVersion", default="")
    following: str = field(name="continue", default="")


class _List(Struct):
    kind: str
    metadata: _ListMeta
    items: list[Raw] | None = None


class _Event(Struct):
    type: str
    object: Raw


class _Name(Struct):
    name: Raw = Raw()
    namespace: Raw = Raw()
    uid: Raw = Raw()
    version: Raw = field(name="resourceVersion", default=Raw())


class _Named(Struct):
    metadata: _Name


_LISTS: Final = Decoder(_List)
_EVENTS: Final = Decoder(_Event)
_NAMES: Final = Decoder(_Named)


@dataclass(frozen=True, slots=True)
class Page:
    """One page of a list. `items` yields one object at a time, None for anything else.

    Of an object with too many values it yields only `metadata`, with the name.
    """

    version: str
    next_page: str
    items: Iterator[Mapping[str, Any] | None]


def read_page(text: bytes) -> Page:
    """Return the page of a list. Raises ValueError for anything else."""
    try:
        page = _LISTS.decode(text)
    except RecursionError as error:
        raise ValueError("nested without end") from error
    if not page.kind.endswith("List"):  # it would read as an empty list
        raise ValueError(f"a {page.kind or 'thing of no kind'}")
    return Page(page.metadata.version, page.metadata.following, map(read_object, page.items or ()))


def read_event(line: bytes) -> tuple[str, Mapping[str, Any] | None]:
    """Return kind and object of one event of a watch. Raises ValueError for a line that is no event."""
    try:
        event = _EVENTS.decode(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"no event: {error}") from error
    return event.type, read_object(event.object)


def read_object(text: bytes | Raw) -> Mapping[str, Any] | None:
    """Return one object, only its name where it is too large; None for anything else."""
    try:
        document = _name_of(text) if _is_too_much(bytes(text)) else decode(text)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _is_too_much(text: bytes) -> bool:
    if len(text) <= _SMALL_OBJECT_BYTES or len(text) > MAX_OBJECT_BYTES:
        return len(text) > MAX_OBJECT_BYTES
    return sum(map(text.count, (b",", b"[", b"{"))) > MAX_VALUES


def _name_of(text: bytes | Raw) -> dict[str, Any]:
    meta = _NAMES.decode(text).metadata
    parts = {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid, "resourceVersion": meta.version}
    kept = {key: bytes(part) for key, part in parts.items()}
    return {"metadata": {key: decode(part) for key, part in kept.items() if 0 < len(part) <= _LARGEST_NAME_BYTES}}

"""PURE: splits the JSON of lists and watches into objects, which are parsed one at a time.

The author of a pod writes most of its object, and in Python a value of two bytes takes a hundred. So a list is split
without parsing it, by regular expressions that read every byte a few times at most, and an object with too many values
is not parsed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

MAX_VALUES: Final = 30_000
"""Of one object, counted before parsing: each takes a hundred bytes or two in memory, and two in JSON."""

MAX_OBJECT_BYTES: Final = 1 << 20
_SMALL_OBJECT_BYTES: Final = 64 << 10
_LARGEST_NAME_BYTES: Final = 1024
_MAX_DEPTH: Final = 200
"""Objects of the API server nest some twenty levels deep."""

_LIST_META: Final = ("resourceVersion", "continue")
_KEPT: Final = frozenset({"name", "namespace", "uid", "resourceVersion"})

# Possessive throughout: nothing is tried twice, so hostile text costs what ordinary text does.
_SPACE: Final = rb"[ \t\r\n]*+"
_STRING: Final = rb'"(?:[^"\\]++|\\.)*+"'
_PLAIN: Final = rb'[^"\[\]{}]*+(?:' + _STRING + rb'[^"\[\]{}]*+)*+'


def _run(levels: int) -> bytes:
    """Return the pattern of everything up to a bracket, past lists and objects nested at most `levels` deep."""
    inner = rb"[\[{]" + _run(levels - 1) + rb"[\]}]" if levels else rb"(?!)"
    return _PLAIN + rb"(?:" + inner + _PLAIN + rb")*+"


_RUN: Final = re.compile(_run(5), re.DOTALL)
_SCALAR: Final = re.compile(_STRING + rb'|[^"\[\]{},:\s]++', re.DOTALL)
_KEY: Final = re.compile(_SPACE + rb"(" + _STRING + rb")" + _SPACE + rb":" + _SPACE, re.DOTALL)
_SPACES: Final = re.compile(_SPACE)
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")


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
    cursor, spans = _Cursor(text), list[slice]()
    kind, meta = "", None
    for key in cursor.members():
        if key == "kind":
            kind = str(_made(cursor.value()))
        elif key == "metadata":
            meta = _made(cursor.value())
        elif key == "items" and text[cursor.at : cursor.at + 1] == b"[":
            spans = [cursor.skip() for _ in cursor.elements()]
        elif key == "items" and _made(cursor.value()) is not None:
            raise ValueError("items that are no list")
    if cursor.at < len(text) or not kind.endswith("List"):  # it would read as an empty list
        raise ValueError(f"a {kind or 'thing of no kind'}")
    version, following = (meta.get(name, "") if isinstance(meta, dict) else None for name in _LIST_META)
    if not isinstance(version, str) or not isinstance(following, str):
        raise ValueError("metadata that are none")
    return Page(version, following, (read_object(text[span]) for span in spans))


def read_event(line: bytes) -> tuple[str, Mapping[str, Any] | None]:
    """Return kind and object of one event of a watch. Raises ValueError for a line that is no event."""
    if not _is_too_much(line):
        event = _made(line)
        if not isinstance(event, dict) or not isinstance(event.get("type"), str) or "object" not in event:
            raise ValueError("no event")
        found = event["object"]
        return event["type"], found if isinstance(found, dict) else None
    cursor, kind, at = _Cursor(line), "", 0
    for key in cursor.members():
        if key == "type":
            kind = _made(cursor.value())
        elif key == "object":
            at = cursor.at
        if kind and at and isinstance(kind, str):
            return kind, _name_of(_Cursor(line, at))
    raise ValueError("no event")


def read_object(text: bytes) -> Mapping[str, Any] | None:
    """Return one object, only its name where it is too large; None for anything else."""
    try:
        found = _name_of(_Cursor(text)) if _is_too_much(text) else _made(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _is_too_much(text: bytes) -> bool:
    if len(text) <= _SMALL_OBJECT_BYTES or len(text) > MAX_OBJECT_BYTES:
        return len(text) > MAX_OBJECT_BYTES
    return sum(map(text.count, (b",", b"[", b"{"))) > MAX_VALUES


def _name_of(cursor: _Cursor) -> dict[str, Any]:
    meta: dict[str, Any] = {}
    for key in cursor.members():
        if key == "metadata":
            for name in cursor.members():
                if name in _KEPT and len(value := cursor.value()) <= _LARGEST_NAME_BYTES:
                    meta[name] = _made(value)
                if meta.keys() == _KEPT:
                    break
            break
    return {"metadata": meta}


def _made(text: bytes) -> Any:
    try:
        found = json.loads(text.decode(), parse_constant=_refuse)
        if _SURROGATE.search(text):
            json.dumps(found, ensure_ascii=False).encode()  # half a surrogate pair cannot be encoded
    except RecursionError as error:
        raise ValueError("nested without end") from error
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} in JSON")


class _Cursor:
    """A position in JSON text; raises ValueError for other text."""

    def __init__(self, text: bytes, at: int = 0) -> None:
        self.text, self.at = text, at
        self._space()

    def members(self) -> Iterator[str]:
        """Yield the keys of the object here, with the cursor before each value; a value that is not read is skipped."""
        yield from self._entries(b"{", b"}")

    def elements(self) -> Iterator[str]:
        """Yield "" for each element of the list here, as `members` does for an object."""
        yield from self._entries(b"[", b"]")

    def value(self) -> bytes:
        """Return the text of the value here."""
        return self.text[self.skip()]

    def skip(self) -> slice:
        """Move past the value here and return its slice."""
        start, depth = self.at, 0
        if self.text[start : start + 1] not in (b"{", b"["):
            if (scalar := _SCALAR.match(self.text, start)) is None:
                raise self._no_json()
            self.at = scalar.end()
            return slice(start, self.at)
        while True:
            depth += {b"{": 1, b"[": 1, b"}": -1, b"]": -1}.get(self.text[self.at : self.at + 1], _MAX_DEPTH + 1)
            if depth > _MAX_DEPTH:
                raise self._no_json()
            self.at += 1
            if not depth:
                return slice(start, self.at)
            run = _RUN.match(self.text, self.at)
            self.at = self.at if run is None else run.end()

    def _entries(self, opening: bytes, closing: bytes) -> Iterator[str]:
        separator = opening
        while self._take(separator):
            if separator == opening and self._take(closing):
                return
            key = ""
            if opening == b"{":
                if (found := _KEY.match(self.text, self.at)) is None:
                    raise self._no_json()
                key, self.at = str(_made(found[1])), found.end()
            start = self.at
            yield key
            if self.at == start:
                self.skip()
            if self._take(closing):
                return
            separator = b","
        raise self._no_json()

    def _take(self, token: bytes) -> bool:
        self._space()
        if self.text[self.at : self.at + 1] != token:
            return False
        self.at += 1
        self._space()
        return True

    def _space(self) -> None:
        found = _SPACES.match(self.text, self.at)
        self.at = self.at if found is None else found.end()

    def _no_json(self) -> ValueError:
        return ValueError(f"no JSON at byte {self.at}")

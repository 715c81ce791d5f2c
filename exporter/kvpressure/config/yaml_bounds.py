"""PURE: whether a YAML text is more than it looks: nesting, aliases that multiply, tags. Asked before it is composed.

Composing recurses and takes a kilobyte for every value, so what a text would hold with its aliases expanded is counted
over the parser's events, which come one at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import yaml

MAX_DEPTH: Final = 32

_OPENS: Final = (yaml.MappingStartEvent, yaml.SequenceStartEvent)
_CLOSES: Final = (yaml.MappingEndEvent, yaml.SequenceEndEvent)


class BoundsError(ValueError):
    """What is too much, and in which line."""

    def __init__(self, message: str, line: int | None) -> None:
        super().__init__(message)
        self.message, self.line = message, line


class TagError(BoundsError):
    """A tag, which may make anything of a value."""


def check_bounds(
    text: str, loader: Any, *, max_values: int, max_chars: int, charge: Callable[[int], None] = lambda _: None
) -> None:
    """Raise BoundsError for more keys and values, or characters in them, than that; yaml.YAMLError for bad syntax.

    `charge` is called at each event; what it raises ends the reading.
    """
    count = _Count(max_values, max_chars)
    for event in yaml.parse(text, Loader=loader):
        charge(0)
        if (tag := getattr(event, "tag", None)) is not None:
            raise TagError(f"tag {tag!r} is not supported: write plain values", _line(event))
        if problem := count.take(event):
            raise BoundsError(problem, _line(event))


def _line(event: yaml.Event) -> int | None:
    return event.start_mark.line + 1 if event.start_mark else None


class _Count:
    """Keys and values, and characters in them, aliases expanded."""

    def __init__(self, max_values: int, max_chars: int) -> None:
        self._max_values, self._max_chars = max_values, max_chars
        self._values = self._chars = 0
        self._open: list[tuple[str | None, int, int]] = []
        self._sizes: dict[str, tuple[int, int]] = {}

    def take(self, event: yaml.Event) -> str:
        """Count one event; what is wrong with it, "" for nothing."""
        if isinstance(event, yaml.ScalarEvent) and event.anchor is None:  # most are
            self._values += 1
            self._chars += len(event.value)
        elif isinstance(event, _OPENS):
            self._open.append((event.anchor, self._values, self._chars))
            self._add(1, 0)
        elif isinstance(event, _CLOSES):
            self._name(*self._open.pop())
        elif isinstance(event, yaml.ScalarEvent):
            before = event.anchor, self._values, self._chars
            self._add(1, len(event.value))
            self._name(*before)
        elif isinstance(event, yaml.AliasEvent):
            if any(event.anchor == anchor for anchor, _, _ in self._open):
                return "an alias contains itself"
            self._add(*self._sizes.get(str(event.anchor), (1, 0)))  # composing tells of one that is not there
        return self._problem()

    def _add(self, values: int, chars: int) -> None:
        self._values += values
        self._chars += chars

    def _name(self, anchor: str | None, values_before: int, chars_before: int) -> None:
        if anchor is not None:
            self._sizes[anchor] = self._values - values_before, self._chars - chars_before

    def _problem(self) -> str:
        if len(self._open) > MAX_DEPTH:
            return f"is nested deeper than {MAX_DEPTH} levels"
        if self._values > self._max_values:
            return f"holds more than {self._max_values} keys and values, aliases expanded"
        if self._chars > self._max_chars:
            return f"holds more than {self._max_chars} characters, aliases expanded"
        return ""

"""Records of the audit: places in files, verdicts, and reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Status = Literal["pass", "fail", "unknown"]
Level = Literal["error", "warning", "note"]
Once = Literal["", "engine", "all"]

LEVELS: Final[tuple[Level, ...]] = ("note", "warning", "error")
"""The mildest first."""
STATUSES: Final[tuple[Status, ...]] = ("pass", "fail", "unknown")


@dataclass(frozen=True, slots=True)
class Place:
    """A file (or "cluster") and a line counted from 1, None where there are no lines."""

    file: str
    line: int | None

    def __str__(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that could not be read."""

    message: str
    place: Place

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check says of one engine: why, the text to paste that fixes it, and where (None: at the check's place).

    `once` is what it says the same of, and is said once of: an "engine" whose command is not known whole, or "all" that
    one option, one file or one annotation more would tell.
    """

    status: Status
    reason: str
    fix: str = ""
    place: Place | None = None
    once: Once = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict with the check it comes from."""

    check: str
    level: Level
    status: Status
    reason: str
    place: Place
    fix: str

"""Records of the audit: places in files, verdicts, and reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from kvpressure.model.environment import DeclaredLimit

Status = Literal["pass", "fail", "unknown"]
Level = Literal["error", "warning", "note"]

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
    """What a check says of one engine: why, where (None: at the engine), and the text to paste that fixes it."""

    status: Status
    reason: str
    place: Place | None = None
    fix: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """A verdict with the check it comes from."""

    check: str
    level: Level
    status: Status
    reason: str
    place: Place
    fix: str


@dataclass(frozen=True, slots=True)
class Reviewed:
    """One engine and its findings, in the order of the checks."""

    title: str
    kind: str
    namespace: str
    name: str
    container: str
    place: Place
    limits: Mapping[str, DeclaredLimit]
    findings: Sequence[Finding]


@dataclass(frozen=True, slots=True)
class Report:
    """All engines with their findings, and what could not be read."""

    engines: tuple[Reviewed, ...]
    problems: tuple[Problem, ...]

    def count(self, status: Status) -> int:
        """Return how many findings have this status."""
        return sum(finding.status == status for engine in self.engines for finding in engine.findings)

    def exit_code(self, least: Level = "warning") -> int:
        """Return 1 when something of this level or above failed, 0 when nothing did, 2 when no engine was found."""
        if not self.engines:
            return 2
        counted = LEVELS[LEVELS.index(least) :]
        return int(any(one.status == "fail" and one.level in counted for e in self.engines for one in e.findings))

"""Text of manifests to objects with their lines; a YAML document that cannot be read hides no other."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final

import yaml

from kvpressure.commandline.words import Budget
from kvpressure.config import strict_yaml
from kvpressure.config.strict_yaml import ConfigError, Path
from kvpressure_planner.audit.formats import (
    SCRIPT,
    Hcl,
    HclError,
    code_blocks,
    is_foreign,
    kubernetes_objects,
    looks_like_hcl,
    named_format,
    read_unit,
)
from kvpressure_planner.audit.model import Place, Problem

MAX_CHARS: Final = 16 << 20
MAX_VALUES: Final = 400_000
WORK: Final = 1 << 25
"""For one file, in characters read or made: a second or two."""
NOT_READ: Final = "is none of what is read: YAML, JSON, HCL, units of systemd and Podman, shell scripts, Markdown"
_SEPARATOR: Final = re.compile(r"^---(?=[ \t\r]|$)[^\n]*$", re.MULTILINE)
_LINE: Final = re.compile(r"in line (\d+)$")
_TEMPLATE: Final = re.compile(r"\{\{[-~]?\s*[A-Za-z_.$]")


@dataclass(frozen=True, slots=True)
class Source:
    """The document that an object is in: its file's lines, the line of each value (counted from 1), and its last line.

    `variables` are those of an environment file that was named; `budget` is for all that is made of the file.
    """

    name: str
    text: Sequence[str] = field(default=(), repr=False)
    lines: Mapping[Path, int] = field(default_factory=dict, repr=False)
    last: int = 0
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    budget: Budget = field(default_factory=lambda: Budget(WORK), repr=False, compare=False)
    _by_line: list[tuple[int, Path]] = field(default_factory=list, init=False, repr=False, compare=False)

    def region(self, path: Path) -> tuple[int, int]:
        """Return the first and the last line of the value at `path`; (1, 0), which holds none, where it has no line."""
        if path not in self.lines:
            return 1, 0
        if not self._by_line:  # sorted once: a file may hold thousands of objects
            self._by_line.extend(sorted(((line, other) for other, line in self.lines.items()), key=itemgetter(0)))
        start = self.lines[path]
        for at in range(bisect_right(self._by_line, start, key=itemgetter(0)), len(self._by_line)):
            line, other = self._by_line[at]
            if other[: len(path)] != path:
                return start, line - 1
        return start, self.last


@dataclass(frozen=True, slots=True)
class Item:
    """One Kubernetes object, or the values of a chart (`kind` is then ""); `at` is its path in the document."""

    kind: str
    namespace: str
    name: str
    data: Mapping[str, Any] = field(repr=False)
    source: Source
    at: Path = ()

    def line(self, path: Path = ()) -> int | None:
        """Return the line of `path` in this object, or of the closest thing around it that is written in the file."""
        whole, lines = (*self.at, *path), self.source.lines
        return next((lines[whole[:end]] for end in range(len(whole), -1, -1) if whole[:end] in lines), None)

    def place(self, path: Path = ()) -> Place:
        """Return the file and line of `path` in this object."""
        return Place(self.source.name, self.line(path))

    def find(self, pattern: re.Pattern[str], within: Path = ()) -> int | None:
        """Return the last line below `within` that `pattern` is found in, comments aside.

        The last of a flag is in force.
        """
        start, end = self.source.region((*self.at, *within))
        for number in range(end, start - 1, -1):
            text = self.source.text[number - 1]
            if not text.lstrip().startswith("#") and pattern.search(text):
                return number
        return None


@dataclass(frozen=True, slots=True)
class Manifests:
    """What was given: objects in reading order and what could not be read.

    `complete` says that these are all objects of a cluster: what is missing is then not merely in another file.
    """

    items: tuple[Item, ...]
    problems: tuple[Problem, ...] = ()
    complete: bool = False
    _by_kind: dict[str, list[Item]] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __add__(self, other: Manifests) -> Manifests:
        """Return both together."""
        complete = self.complete and other.complete
        return Manifests(self.items + other.items, self.problems + other.problems, complete=complete)

    def of(self, *kinds: str) -> Iterator[Item]:
        """Return the objects of these kinds."""
        # By kind, because this is called for every engine, and a cluster has many objects.
        if not self._by_kind:
            for item in self.items:
                self._by_kind.setdefault(item.kind, []).append(item)
        if len(kinds) == 1:
            return iter(self._by_kind.get(kinds[0], ()))
        there = not self._by_kind.keys().isdisjoint(kinds)
        return (item for item in self.items if item.kind in kinds) if there else iter(())


def read(text: str, name: str, variables: Mapping[str, str] | None = None) -> Manifests:
    """Read a text of any format; `name` is the file's name in findings. Never raises.

    `variables` are those of an environment file that was named, which compose files take.
    """
    if len(text) > MAX_CHARS:
        return Manifests((), (Problem(f"is larger than {MAX_CHARS} characters", Place(name, None)),))
    if name.lower().endswith((".md", ".markdown")):
        blocks = (_read_format(block, name, format_name, variables or {}) for format_name, block in code_blocks(text))
        return Manifests(tuple(item for block in blocks for item in block.items))
    return _read_format(text, name, named_format(text, name), variables or {})


def _read_format(text: str, name: str, format_name: str, variables: Mapping[str, str]) -> Manifests:
    """Read a text of a format, of YAML first where it is ""."""
    if format_name:
        return _read_other(text, name, format_name)
    given = _read_yaml(text, name, variables)
    if given.problems and not given.items and looks_like_hcl(text):
        return _read_other(text, name, "hcl")
    if given.problems and not given.items and is_foreign(name):
        return Manifests((), (Problem(NOT_READ, Place(name, None)),))
    # A text that is one scalar is no manifest: a command in a file of its own.
    return given if given.items or given.problems else _read_other(text, name, "script")


def _read_other(text: str, name: str, format_name: str) -> Manifests:
    first = len(text) - len(text.lstrip("\n")) + 1
    lines: dict[Path, int] = {(): first, (SCRIPT,): first}
    data: dict[str, Any] = {SCRIPT: text}
    try:
        if format_name == "unit":
            data, lines = read_unit(text)
        elif format_name == "hcl":
            reader = Hcl(text)
            data, lines = reader.read(), reader.lines
    except (HclError, RecursionError):
        return Manifests((), (Problem("cannot be read as HCL", Place(name, None)),))
    written = text.split("\n")
    objects = list(kubernetes_objects(data, lines)) if format_name == "hcl" else []
    items = [item for own, at in objects for item in _items(own, Source(name, written, at, len(written)), ())]
    if objects:
        kinds = {kind: own for kind, own in data["resource"].items() if not kind.startswith("kubernetes_")}
        data = {**data, "resource": kinds}
    whole = Item("", "", name.rpartition("/")[2], data, Source(name, written, lines, len(written)))
    return Manifests((*items, whole))


def _read_yaml(text: str, name: str, variables: Mapping[str, str]) -> Manifests:
    """Read every document of a YAML or JSON text."""
    items: list[Item] = []
    problems: list[Problem] = []
    lines = text.split("\n")
    budget = Budget(WORK)
    for offset, part in _documents(text):
        try:
            document = strict_yaml.load(part, name, max_chars=MAX_CHARS, max_values=MAX_VALUES, merges=True)
        except ConfigError as error:
            problems += [_problem(problem, offset, part) for problem in error.problems]
        except (ValueError, RecursionError, yaml.YAMLError) as error:
            problems.append(Problem(f"cannot be read: {type(error).__name__}", Place(name, offset + 1)))
        else:
            moved = {path: line + offset for path, line in document.lines.items()}
            last = min(offset + part.count("\n") + 1, len(lines))
            items += _items(document.data, Source(name, lines, moved, last, variables, budget), ())
    return Manifests(tuple(items), tuple(problems))


def from_objects(objects: Sequence[Mapping[str, Any]], name: str, problems: Sequence[Problem] = ()) -> Manifests:
    """Return the objects of a live cluster, which have no lines."""
    items = [item for object_ in objects for item in _items(object_, Source(name), ())]
    return Manifests(tuple(items), tuple(problems), complete=not problems)


def _documents(text: str) -> Iterator[tuple[int, str]]:
    """Yield each document and the number of lines before it; cut by lines, so that a broken one hides no other."""
    start = before = 0
    for mark in [*_SEPARATOR.finditer(text), None]:
        end = len(text) if mark is None else mark.start()
        part = text[start:end]
        if part.strip():
            yield before, part
        start = end if mark is None else mark.end()
        before += part.count("\n")


def _items(data: Any, source: Source, at: Path) -> list[Item]:
    if isinstance(data, list):
        return [item for i, element in enumerate(data) for item in _items(element, source, (*at, i))]
    if not isinstance(data, dict):
        return []
    kind = text(data.get("kind"))
    if kind.endswith("List") and isinstance(data.get("items"), list):
        return _items(data["items"], source, (*at, "items"))
    meta = mapping(data.get("metadata"))
    return [Item(kind, text(meta.get("namespace")), text(meta.get("name")), data, source, at)]


def _problem(problem: strict_yaml.Problem, offset: int, part: str) -> Problem:
    hint = "; render templates first (helm template)" if _TEMPLATE.search(part) else ""
    path = f"{problem.path}: " if problem.path else ""
    message = _LINE.sub(lambda m: f"in line {int(m[1]) + offset}", problem.message)
    line = None if problem.line is None else problem.line + offset
    return Problem(f"{path}{message}{hint}", Place(problem.file, line))


def get(data: Any, *path: str | int) -> Any:
    """Return the value at `path`, None where something on the way is missing or of another type."""
    for part in path:
        if isinstance(part, int):
            data = data[part] if isinstance(data, list) and part < len(data) else None
        else:
            data = data.get(part) if isinstance(data, dict) else None
    return data


def mapping(value: Any) -> Mapping[str, Any]:
    """Return `value` if it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


def sequence(value: Any) -> Sequence[Any]:
    """Return `value` if it is a list, else an empty one."""
    return value if isinstance(value, list) else ()


def shape(value: Any) -> str:
    """Return what a value is, for a sentence: "a mapping"."""
    for kind, name in ((dict, "a mapping"), (list, "a list"), (str, "text"), (bool, "true or false")):
        if isinstance(value, kind):
            return name
    return "a number" if isinstance(value, (int, float)) else "nothing" if value is None else type(value).__name__


def flat(value: Any) -> Iterator[str]:
    """Yield every scalar in a value, keys too, in reading order; text is split into words."""
    left = [value]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            left += [part for pair in reversed(value.items()) for part in reversed(pair)]
        elif isinstance(value, list):
            left += reversed(value)
        else:
            yield from text(value).split()


def text(value: Any) -> str:
    """Return a scalar as text, "" for anything else: a careless manifest gives numbers where strings belong."""
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, str) else str(value) if isinstance(value, (int, float)) else ""


def texts(values: Any) -> tuple[str, ...]:
    """Return a list's scalars as text; a text counts as a list of one."""
    return tuple(text(value) for value in sequence(values)) if not isinstance(values, str) else (values,)


def strings(values: Any) -> dict[str, str]:
    """Return a mapping's scalars as text: labels, annotations, data of a ConfigMap."""
    return {key: text(value) for key, value in mapping(values).items()}

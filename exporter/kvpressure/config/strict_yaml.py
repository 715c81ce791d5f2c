"""YAML read strictly, with a line for every key: what settings, thresholds, file_sd and the web config are read with.

A document is mappings with string keys, lists and plain scalars. Scalars follow the YAML 1.2 core schema, so `1:30`
stays a string (PyYAML says 90), `1e-3` is a number and only `true` and `false` are booleans. Duplicate keys, tags,
several documents, deep nesting, alias bombs and, unless requested, merge keys are problems with a line. Of
keys that earlier versions had, an error says that one is gone, and what takes its place. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

Path = tuple[str | int, ...]
"""Where a value lies in a document: keys and list positions from the top."""

MAX_CHARS: Final = 1 << 20
MAX_VALUES: Final = 100_000
MAX_DEPTH: Final = 32
MAX_KEY_CHARS: Final = 1024
"""What YAML itself allows of a key without a question mark before it."""

MAX_PROBLEMS: Final = 100
MAX_SHOWN: Final = 500
"""Characters of each part of a problem in words: it may quote what the file says."""

_INDENT: Final = "; indent with spaces, not tabs, and quote text that begins with @, ` or %"
_LOADER: Final[Any] = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_CONSTANTS: Final = {"": None, "~": None, "null": None, "true": True, "false": False}
# More than 18 digits is no number that a setting could mean; int() of a million digits would also be slow.
_INTEGER: Final = re.compile(r"[-+]?[0-9]{1,18}")
_HEX: Final = re.compile(r"0x[0-9a-fA-F]{1,15}")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]{1,400}|[0-9]{1,400}(\.[0-9]{0,400})?)([eE][-+]?[0-9]{1,4})?")
_SPECIAL: Final = re.compile(r"[-+]?\.(inf|nan)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a configuration: where (`line` is None outside files), which key, and what to do."""

    file: str
    line: int | None
    path: str
    message: str

    def __str__(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        parts = [part for part in (where, self.path, self.message) if part]
        return ": ".join(part if len(part) <= MAX_SHOWN else f"{part[: MAX_SHOWN - 1]}…" for part in parts)


class ConfigError(ValueError):
    """A configuration that cannot be used. `problems` holds everything that is wrong with it, in reading order.

    Of more than `MAX_PROBLEMS` the last ones are only counted.
    """

    def __init__(self, problems: Iterable[Problem]) -> None:
        ordered = sorted(set(problems), key=lambda problem: (problem.file, problem.line or 0, problem.path))
        if (more := len(ordered) - MAX_PROBLEMS) > 0:
            ordered[MAX_PROBLEMS:] = [Problem(ordered[-1].file, None, "", f"{more} more problems")]
        self.problems: tuple[Problem, ...] = tuple(ordered)
        super().__init__("\n".join(map(str, self.problems)))


class TooLargeError(ConfigError):
    """A text that is, or with its aliases would be, more than is read."""


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file: `data` is None, a scalar, a list or a dict; `lines` maps paths to lines counted from 1."""

    name: str
    data: Any
    lines: Mapping[Path, int] = field(repr=False)

    def line(self, path: Path) -> int | None:
        """Give the line of `path`, or of the closest thing around it that is written in the file."""
        return next((self.lines[path[:end]] for end in range(len(path), -1, -1) if path[:end] in self.lines), None)

    def problem(self, path: Path, message: str) -> Problem:
        """Make the problem `message` at `path` of this file."""
        return Problem(self.name, self.line(path), dotted(path), message)


def dotted(path: Path) -> str:
    """Write a path in dotted form: `engines.targets[0].url`."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def load(
    text: str,
    name: str,
    *,
    max_chars: int = MAX_CHARS,
    max_values: int = MAX_VALUES,
    charge: Callable[[int], None] = lambda _: None,
    problems: list[Problem] | None = None,
    merges: bool = False,
) -> Document:
    """Parse `text`; `name` is the file's name in messages.

    `charge` gets the characters of each value before it is built, aliases expanded; what it raises ends the reading.
    Raises ConfigError with every duplicate key, or with the first error of syntax or size. Where `problems` is given,
    duplicate keys are added to it instead, and the first value of each counts: so the rest can be checked too. With
    `merges`, merge keys (`<<`) are followed, as in compose files.
    """
    _check(text, name, max_chars, max_values, charge)
    with _translated_errors(name):
        node = yaml.compose(text, Loader=_LOADER)
    builder = _Builder(name, charge, merges=merges)
    data = None if node is None else builder.build(node, ())
    if problems is not None:
        problems += builder.problems
    elif builder.problems:
        raise ConfigError(builder.problems)
    return Document(name, data, builder.lines)


def scalar(text: str) -> str | int | float | bool | None:
    """Read one unquoted scalar by the YAML 1.2 core schema."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _HEX.fullmatch(text):
        return int(text, 16)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _SPECIAL.fullmatch(text):
        return float(text.replace(".", "", 1))
    return text


def shown(value: Any) -> str:
    """Write a value as messages quote it: short, and in YAML's words."""
    if isinstance(value, (dict, list, tuple)):
        return "a mapping" if isinstance(value, dict) else "a list"
    if isinstance(value, bool) or value is None:
        return "nothing" if value is None else str(value).lower()
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _check(text: str, name: str, max_chars: int, max_values: int, charge: Callable[[int], None]) -> None:
    """Raise ConfigError for a text over its bounds: size, nesting, aliases, tags.

    Composing recurses and takes a kilobyte for every value, so what a text would hold with its aliases expanded is
    counted over the parser's events, which come one at a time; `charge` is called at each.
    """
    if len(text) > max_chars:
        raise TooLargeError([Problem(name, None, "", f"is larger than {max_chars} characters")])
    count = _Count(max_values, max_chars)
    with _translated_errors(name):
        for event in yaml.parse(text, Loader=_LOADER):
            charge(0)
            if (tag := getattr(event, "tag", None)) is not None:
                raise ConfigError([_at(event, name, f"tag {tag!r} is not supported: write plain values")])
            if problem := count.take(event):
                raise TooLargeError([_at(event, name, problem)])


def _at(event: yaml.Event, name: str, message: str) -> Problem:
    return Problem(name, event.start_mark.line + 1 if event.start_mark else None, "", message)


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
        elif isinstance(event, yaml.MappingStartEvent | yaml.SequenceStartEvent):
            self._open.append((event.anchor, self._values, self._chars))
            self._add(1, 0)
        elif isinstance(event, yaml.MappingEndEvent | yaml.SequenceEndEvent):
            self._name(*self._open.pop())
        elif isinstance(event, yaml.ScalarEvent):
            before = event.anchor, self._values, self._chars
            self._add(1, len(event.value))
            self._name(*before)
        elif isinstance(event, yaml.AliasEvent):
            if any(event.anchor == anchor for anchor, _, _ in self._open):
                return "an alias contains itself"
            self._add(*self._sizes.get(str(event.anchor), (1, 0)))  # composing reports one that is not there
        return self._problem()

    def _add(self, values: int, chars: int) -> None:
        self._values, self._chars = self._values + values, self._chars + chars

    def _name(self, anchor: str | None, values_before: int, chars_before: int) -> None:
        if anchor is not None:
            self._sizes[anchor] = self._values - values_before, self._chars - chars_before

    def _problem(self) -> str:
        if len(self._open) > MAX_DEPTH:
            return f"is nested deeper than {MAX_DEPTH} levels"
        what = "" if self._chars <= self._max_chars else f"{self._max_chars} characters"
        what = what if self._values <= self._max_values else f"{self._max_values} keys and values"
        return what and f"holds more than {what}, aliases expanded"


@contextmanager
def _translated_errors(name: str) -> Iterator[None]:
    try:
        yield
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        what = f"is not YAML: {error.problem or error.context}"
        raise ConfigError([Problem(name, line, "", what + _INDENT * what.endswith("any token"))]) from None
    except yaml.YAMLError as error:
        raise ConfigError([Problem(name, None, "", f"is not YAML: {str(error).splitlines()[0]}")]) from None
    except UnicodeEncodeError:  # a variable of bytes that are no UTF-8 is text with halves of surrogate pairs
        raise ConfigError([Problem(name, None, "", "is not UTF-8")]) from None


class _Builder:
    """Turns composed nodes into data."""

    def __init__(self, name: str, charge: Callable[[int], None], *, merges: bool) -> None:
        self.name = name
        self.charge = charge
        self.merges = merges
        self.lines: dict[Path, int] = {}
        self.problems: list[Problem] = []

    def build(self, node: yaml.Node, path: Path) -> Any:
        line = node.start_mark.line + 1
        self.lines.setdefault(path, line)
        self.charge(len(node.value) if isinstance(node, yaml.ScalarNode) else 0)
        if len(path) > MAX_DEPTH:
            raise ConfigError([Problem(self.name, line, "", "an alias nests too deep")])
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*path, position)) for position, item in enumerate(node.value)]
        return node.value if getattr(node, "style", None) else scalar(node.value)

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        data: dict[str, Any] = {}
        for key, value, merged in self._pairs(node):
            line = key.start_mark.line + 1
            if not isinstance(key, yaml.ScalarNode) or self._merges(key):
                self._problem(line, path, "keys must be plain words; merge keys (<<) are not supported")
                continue
            self.charge(len(key.value))
            if len(key.value) > MAX_KEY_CHARS:
                self._problem(line, path, f"a key is longer than {MAX_KEY_CHARS} characters")
                continue
            inner = (*path, key.value)
            if key.value in data:
                if not merged:
                    self._problem(line, inner, f"duplicate key, first given in line {self.lines[inner]}")
                continue
            self.lines[inner] = line
            data[key.value] = self.build(value, inner)
        return data

    @staticmethod
    def _merges(key: yaml.Node) -> bool:
        return isinstance(key, yaml.ScalarNode) and key.value == "<<" and not key.style

    def _pairs(self, node: yaml.MappingNode) -> Iterator[tuple[yaml.Node, yaml.Node, bool]]:
        """Yield keys, values, and whether they are merged: those come last, because the mapping's own keys win."""
        merged: list[yaml.Node] = []
        for key, value in node.value:
            if self.merges and self._merges(key):
                merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
            else:
                yield key, value, False
        for each in (child for child in merged if isinstance(child, yaml.MappingNode)):
            yield from ((key, value, True) for key, value, _ in self._pairs(each))

    def _problem(self, line: int, path: Path, message: str) -> None:
        self.problems.append(Problem(self.name, line, dotted(path), message))


GONE: Final[Mapping[str, str]] = {
    "baseline_file": "baselines are learned again after a restart, and limits are absolute until then",
    "engines.canary": "a blackbox_exporter asks engines for one token (docs/deploy.md)",
    "gateways.interval_seconds": "a gateway is read every second",
    "gateways.timeout_seconds": "a gateway has 5 s to answer",
    "gpu.detach_seconds": "the driver stays closed for two minutes after SIGUSR1",
    "gpu_exporter.interval_seconds": "another GPU exporter is read every 5 s",
    "host.interval_seconds": "the host is read every 5 s",
    "kubernetes.kubeconfig_file": "outside a pod, name engines in engines.targets or engines.file_sd",
    "limits.max_label_length": "a label value is cut at 128 characters",
    "otlp": "the Prometheus receiver of an OpenTelemetry Collector reads /metrics (docs/deploy.md)",
    "pod_resources.keep_seconds": "the kubelet's last answer is used for 5 minutes",
    "stuck_unanswered_min_seconds": "kvpressure asks no engine for a token; a blackbox_exporter does (docs/deploy.md)",
}
"""What to do instead, by the dotted key of a setting or of a whole section, or by the name of a threshold."""


def gone(path: Sequence[str | int]) -> str | None:
    """Return `is gone: ` and what takes its place for a key, or for one in a section that is gone; None of others."""
    names = [part for part in path if isinstance(part, str)]
    for end in range(len(names), 0, -1):
        instead = GONE.get(".".join(names[:end]))
        if instead is not None:
            return f"is gone: {instead}"
    return None

"""Reads and follows target files in Prometheus' file_sd format; `docs/configuration.md` lists the labels."""

from __future__ import annotations

import typing
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from kvpressure.config import strict_yaml
from kvpressure.config.settings import ConfigError, FileSdSettings, read_text
from kvpressure.config.settings.polling import KvEventsSettings
from kvpressure.config.settings.types import (
    Runtime,
    gpu_list,
    label,
    target_name,
)
from kvpressure.config.strict_yaml import Document, Problem
from kvpressure.config.target import Target
from kvpressure.model.samples import SourceHealth
from kvpressure.net.addresses import refusal
from kvpressure.net.files import FileWatch, stamp
from kvpressure.net.urls import default_name, http_path, matching, split_url

_RUNTIMES: Final = typing.get_args(Runtime)


def read_targets(path: Path) -> tuple[Target, ...]:
    """Read the file at `path`. Raises ConfigError with all its problems; a file is valid as a whole or not at all."""
    if path.exists() and not path.is_file():  # reading a pipe that matches a glob would block
        raise ConfigError([Problem(str(path), None, "", "is not a regular file")])
    return parse_targets(read_text(path), str(path))


def parse_targets(text: str, name: str) -> tuple[Target, ...]:
    """Parse a target file, JSON (which YAML includes) or YAML; `name` is the file's name in messages.

    Raises ConfigError with all problems.
    """
    document = strict_yaml.load(text, name)
    reading = _Reading(document)
    groups = [] if document.data is None else document.data
    if not isinstance(groups, list):
        raise ConfigError([document.problem((), "must be a list of groups with targets and labels")])
    for position, group in enumerate(groups):
        reading.group(group, (position,))
    if reading.problems:
        raise ConfigError(reading.problems)
    return tuple(reading.targets)


class _Reading:
    def __init__(self, document: Document) -> None:
        self.document = document
        self.targets: list[Target] = []
        self.problems: list[Problem] = []

    def group(self, group: Any, where: strict_yaml.Path) -> None:
        if not isinstance(group, dict):
            self._problem(where, "must be a mapping with targets and labels")
            return
        for key in group.keys() - {"targets", "labels"}:
            self._problem((*where, key), "unknown key; known are targets and labels")
        addresses, labels = group.get("targets"), group.get("labels")
        if not isinstance(addresses, list):
            self._problem((*where, "targets"), "must be a list of host:port")
            return
        common = self._labels({} if labels is None else labels, (*where, "labels"), len(addresses))
        if common is None:
            return
        for position, address in enumerate(addresses):
            self._target(address, common, (*where, "targets", position))

    def _target(self, address: Any, common: Mapping[str, Any], where: strict_yaml.Path) -> None:
        try:
            if not isinstance(address, str) or "/" in address:
                raise ValueError(f"must be host:port, got {address!r}")
            url, _ = split_url(f"{common['scheme']}://{address}")
            # Target files are often generated, so a link-local address is not taken as intended.
            if reason := refusal(urlsplit(url).hostname or "", link_local=False):
                raise ValueError(f"must not be {reason}, got {address!r}")
        except ValueError as error:
            self._problem(where, str(error))
            return
        fields = {key: value for key, value in common.items() if key not in ("scheme", "name")}
        address = default_name(url)
        namespace = common["namespace"]
        pod = common["pod"]
        whole = f"{namespace}/{pod}:{address.rpartition(':')[2]}" if namespace and pod else address
        self.targets.append(Target(url=url, name=common["name"] or whole, **fields))

    def _labels(self, labels: Any, where: strict_yaml.Path, targets: int) -> dict[str, Any] | None:
        """Return the values of the labels by Target field, and `scheme`; None when one of them is invalid."""
        if not isinstance(labels, dict):
            self._problem(where, "must be a mapping of label names to values")
            return None
        before = len(self.problems)
        fields: dict[str, Any] = {"scheme": "http", "path": "/metrics", "name": "", "namespace": "", "pod": ""}
        for key, value in labels.items():
            if isinstance(value, (dict, list)) or value is None:
                self._problem((*where, key), "must be a single value")
            elif key in _LABELS:
                name, read = _LABELS[key]
                try:
                    fields[name] = read(str(value))
                except ValueError as error:
                    self._problem((*where, key), str(error))
        if fields["name"] and targets > 1:
            self._problem((*where, "kvpressure_name"), f"would name {targets} targets the same: give each its group")
        return fields if len(self.problems) == before else None

    def _problem(self, where: strict_yaml.Path, message: str) -> None:
        self.problems.append(self.document.problem(where, message))


def _choice(*known: str) -> typing.Callable[[str], str]:
    return matching("|".join(known), f"must be {' or '.join(known)}, got {{text!r}}")


def _bytes_per_token(text: str) -> float:
    value = strict_yaml.scalar(text)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1e9:
        raise ValueError(f"must be a number of bytes above 0, got {text!r}")
    return float(value)


def _kv_events(text: str) -> KvEventsSettings:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:6]) <= 65535:
        raise ValueError(f"must be a port from 1 to 65535, got {text!r}")
    return KvEventsSettings(port=int(text))


_LABELS: Final[Mapping[str, tuple[str, typing.Callable[[str], Any]]]] = {
    "__scheme__": ("scheme", _choice("http", "https")),
    "__metrics_path__": ("path", http_path),
    "kvpressure_name": ("name", target_name),
    "namespace": ("namespace", label),
    "pod": ("pod", label),
    "kvpressure_runtime": ("runtime", _choice(*_RUNTIMES)),
    "kvpressure_gpus": ("gpus", gpu_list),
    "kvpressure_kv_bytes_per_token": ("kv_bytes_per_token", _bytes_per_token),
    "kvpressure_kv_events_port": ("kv_events", _kv_events),
}


SOURCE: Final = "file_sd"
_MAX_PROBLEMS: Final = 5
_CONFIRM_SECONDS: Final = 1.0
"""A change is read once a second check has confirmed it, which follows so soon whatever the refresh interval."""


@dataclass
class _File:
    """One file_sd file: its last valid targets and its health."""

    path: str
    targets: tuple[Target, ...] = ()
    health: SourceHealth | None = None
    errors: Counter[str] = field(default_factory=Counter)
    last_success: float | None = None

    def read(self, now: float) -> None:
        """Read the file's targets; an invalid file keeps its last valid ones, a missing file has none."""
        try:
            self.targets = read_targets(Path(self.path))
        except ConfigError as error:
            gone = stamp(Path(self.path)) is None
            self.targets = () if gone else self.targets
            self._report(now, "; ".join(map(str, error.problems[:_MAX_PROBLEMS])), "missing" if gone else "invalid")
        else:
            self._report(now)

    def unchanged(self, now: float) -> None:
        """Record that the file has not changed."""
        if self.health is not None:
            self.last_success = now if self.health.up else self.last_success
            self.health = replace(self.health, t=now, last_success=self.last_success)

    def _report(self, now: float, error: str = "", reason: str = "") -> None:
        if reason:
            self.errors[reason] += 1
        else:
            self.last_success = now
        self.health = SourceHealth(
            source=SOURCE,
            target=self.path,
            up=not reason,
            t=now,
            last_success=self.last_success,
            error=error,
            reason=reason,
            errors=dict(self.errors),
        )


class FileGroup:
    """The files of one entry of the settings. `due` is when to check them next, in unix seconds."""

    def __init__(self, settings: FileSdSettings) -> None:
        self.settings = settings
        self.due = float("-inf")
        self._watch = FileWatch(())
        self._files: dict[Path, _File] = {}

    @property
    def targets(self) -> tuple[Target, ...]:
        """The targets of every file, files in alphabetical order."""
        return tuple(target for path in sorted(self._files) for target in self._files[path].targets)

    @property
    def health(self) -> tuple[SourceHealth, ...]:
        """One record for each file."""
        return tuple(file.health for file in self._files.values() if file.health)

    def is_due(self, now: float) -> bool:
        """Return whether to check now; also when the clock was set back, so that `due` is too far in the future."""
        return self.due <= now or self.due > now + self.settings.refresh_seconds

    def look(self, now: float) -> bool:
        """Read files that changed; return whether targets may have changed. Never raises."""
        matching = set(_matches(self.settings.files))
        new = sorted(matching - self._files.keys())
        for path in new:
            self._watch.add(path)
            self._files[path] = _File(str(path))
        touched = [*sorted(self._watch.look()), *new]
        for path in touched:
            if path in matching:
                self._files[path].read(now)
            else:
                self._watch.discard(path)
                del self._files[path]
        for path in self._files.keys() - set(touched) - self._watch.settling:
            self._files[path].unchanged(now)
        wait = self.settings.refresh_seconds
        self.due = now + (min(_CONFIRM_SECONDS, wait) if self._watch.settling else wait)
        return bool(touched)


def _matches(patterns: Iterable[Path]) -> Iterable[Path]:
    for pattern in patterns:
        if any(sign in pattern.name for sign in "*?["):
            with suppress(OSError):  # a directory that cannot be listed has no matches
                yield from pattern.parent.glob(pattern.name)
        else:
            yield pattern

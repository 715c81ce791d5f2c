"""Follows the files of one `engines.file_sd` entry: new, changed, broken and gone ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from kvpressure.config.settings import ConfigError, FileSdSettings
from kvpressure.model.samples import SourceHealth
from kvpressure.scrape.file_sd import FileTarget, read_targets
from kvpressure.sources.files import FileWatch, stamp

SOURCE: Final = "file_sd"
_PROBLEMS_SHOWN: Final = 5
# A change is read at the second look that sees it; the second comes soon, whatever the refresh interval.
_CONFIRM_SECONDS: Final = 1.0


@dataclass
class _File:
    """One file_sd file: its last good targets and how reading it goes."""

    path: str
    targets: tuple[FileTarget, ...] = ()
    health: SourceHealth | None = None
    errors: Counter[str] = field(default_factory=Counter)
    last_success: float | None = None

    def read(self, now: float) -> None:
        """Take the file's targets; a broken file keeps those it had, one that is gone has none."""
        try:
            self.targets = read_targets(Path(self.path))
        except ConfigError as error:
            gone = stamp(Path(self.path)) is None
            self.targets = () if gone else self.targets
            self._report(now, "; ".join(map(str, error.problems[:_PROBLEMS_SHOWN])), "missing" if gone else "invalid")
        else:
            self._report(now)

    def unchanged(self, now: float) -> None:
        """Note that a look found what was read before."""
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
    """The files of one entry. `due` is when to look next, in unix seconds."""

    def __init__(self, settings: FileSdSettings) -> None:
        self.settings = settings
        self.due = float("-inf")
        self._watch = FileWatch(())
        self._files: dict[Path, _File] = {}

    @property
    def targets(self) -> tuple[FileTarget, ...]:
        """The targets of every file, files in alphabetical order."""
        return tuple(target for path in sorted(self._files) for target in self._files[path].targets)

    @property
    def health(self) -> tuple[SourceHealth, ...]:
        """One record for each file."""
        return tuple(file.health for file in self._files.values() if file.health)

    def is_due(self, now: float) -> bool:
        """Whether it is time to look: also when the clock was set back and `due` lies further off than any wait."""
        return self.due <= now or self.due > now + self.settings.refresh_seconds

    def look(self, now: float) -> bool:
        """Take in the changes of the files; true when the targets may have changed. Reads files; never raises."""
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
            with suppress(OSError):  # a directory that cannot be listed has no matches; its files go when unseen twice
                yield from pattern.parent.glob(pattern.name)
        else:
            yield pattern

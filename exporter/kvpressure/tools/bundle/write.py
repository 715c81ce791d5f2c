"""A bundle onto disk, whole or not at all: written aside, then swapped in."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from kvpressure.config.strict_yaml import ConfigError, Problem

MANIFEST: Final = "bundle.json"
"""Lists the files of a bundle: a folder with one is ours to replace."""


def write_bundle(out: Path, files: Mapping[str, str]) -> None:
    """Make `out` hold exactly `files`, replacing an older bundle. Whatever fails, an older bundle stays as it was.

    Raises ConfigError when `out` holds anything that is not of a bundle, or cannot be written.
    """
    try:
        place = out.resolve()
        _refuse_foreign(place, out)
        place.parent.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
        try:
            _fill(aside / "new", files)
            _swap(aside, place)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    except OSError as error:
        what = f"cannot be written: {error.strerror or error}{_where(error, out)}; nothing was changed"
        raise _problem(out, what) from None


def _fill(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w", encoding="utf-8", newline="\n") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())


def _swap(aside: Path, place: Path) -> None:
    """Put the new folder in place by two renames; if the second fails, the first is undone."""
    older = aside / "old"
    replaced = place.exists()
    if replaced:
        place.rename(older)
    try:
        (aside / "new").rename(place)
    except OSError:
        if replaced:
            older.rename(place)
        raise


def _refuse_foreign(place: Path, shown: Path) -> None:
    if not place.exists():
        return
    if not place.is_dir():
        raise _problem(shown, "is a file; --out is a folder")
    if Path.cwd().is_relative_to(place):  # swapped away, it would leave the shell in a folder that is gone
        raise _problem(shown, "is, or holds, the folder you are in; name another one, or one inside it")
    present = {str(path.relative_to(place)) for path in _files(place)}
    foreign = sorted(present - _listed(place))
    if foreign:
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise _problem(shown, f"holds what is not of a bundle: {foreign[0]}{more}; name an empty folder or a new one")


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())


def _listed(place: Path) -> set[str]:
    try:
        listed = json.loads((place / MANIFEST).read_text("utf-8"))["files"]
        return {MANIFEST, *map(str, listed)}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def _where(error: OSError, out: Path) -> str:
    """Return the file that the error is about, for messages; "" where it is the folder itself."""
    return f" ({error.filename})" if error.filename and Path(error.filename) not in (out, out.resolve()) else ""


def _problem(out: Path, message: str) -> ConfigError:
    return ConfigError([Problem(str(out), None, "", message)])

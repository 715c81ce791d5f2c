"""A bundle's YAML, made for people to read, and writing a bundle, whole or not at all: aside, then swapped in."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from kvpressure.config.strict_yaml import ConfigError, Problem

MANIFEST: Final = "bundle.json"
"""Lists the files of a bundle: a folder with one may be replaced."""


_LONG: Final = 100


class _Dumper(yaml.SafeDumper):
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002 - yaml's signature
        """Indent lists below their key."""
        super().increase_indent(flow, indentless=False)

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - yaml's signature
        """Return True: everything is written out."""
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else ">" if len(text) > _LONG else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def dump(data: Any) -> str:
    """Return mappings, lists and scalars as YAML that reads back equal.

    Long texts and those of many lines are block scalars; keys are in the order given.
    """
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=118, allow_unicode=True)


def write_bundle(out: Path, files: Mapping[str, str]) -> None:
    """Write exactly `files` to `out`, replacing an older bundle, which stays as it was if anything fails.

    Raises ConfigError when `out` contains anything that is not of a bundle, or cannot be written.
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
        elsewhere = error.filename and Path(error.filename) not in (out, out.resolve())
        where = f" ({error.filename})" if elsewhere else ""
        raise _problem(out, f"cannot be written: {error.strerror or error}{where}; nothing was changed") from None


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
        raise _problem(shown, "is, or contains, the folder you are in; name another one, or one inside it")
    files = (path for path in place.rglob("*") if path.is_symlink() or not path.is_dir())
    if foreign := sorted({str(path.relative_to(place)) for path in files} - _listed(place)):
        more = f" and {len(foreign) - 1} more" if len(foreign) > 1 else ""
        raise _problem(shown, f"contains other files: {foreign[0]}{more}; name an empty folder or a new one")


def _listed(place: Path) -> set[str]:
    try:
        listed = json.loads((place / MANIFEST).read_text("utf-8"))["files"]
        return {MANIFEST, *map(str, listed)}
    except (OSError, ValueError, KeyError, TypeError):
        return set()


def _problem(out: Path, message: str) -> ConfigError:
    return ConfigError([Problem(str(out), None, "", message)])

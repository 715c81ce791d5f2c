"""What is in an image: files against the records of what was installed, and what takes the space."""

import base64
import csv
import hashlib
import os
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

VENV = PurePosixPath("opt/kvpressure")
OF_PIP = frozenset(("INSTALLER", "REQUESTED", "direct_url.json", "RECORD"))
"""What pip adds to a distribution's own folder of metadata, and the list that cannot hold its own hash."""

Record = Mapping[str, str]
"""File, as a distribution's list names it, to hash."""


def record(lines: Iterable[str]) -> dict[str, str]:
    """A RECORD file, without its own line."""
    return {row[0]: row[1] for row in csv.reader(lines) if not row[0].endswith(".dist-info/RECORD")}


def wheel_record(wheel: Path) -> dict[str, str]:
    """The list of files that a wheel carries."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (one for one in archive.namelist() if one.endswith(".dist-info/RECORD"))
        return record(archive.read(name).decode().splitlines())


def site_packages(root: Path) -> Path:
    """Where packages lie in the image's environment, whatever its Python is."""
    (found,) = (root / VENV / "lib").glob("python3*/site-packages")
    return found


def distributions(site: Path) -> dict[str, dict[str, str]]:
    """What is installed: name, as its metadata folder spells it, to its list of files."""
    found = {}
    for path in sorted(site.glob("*.dist-info/RECORD")):
        found[path.parent.name.partition("-")[0].lower()] = record(path.read_text().splitlines())
    return found


def files(folder: Path) -> Iterator[str]:
    """Every file and link below a folder, relative to it."""
    for place, folders, names in os.walk(folder):
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        for name in (*names, *links):
            yield (Path(place) / name).relative_to(folder).as_posix()


def bytecode(source: str, tag: str) -> str:
    """The one compiled file that goes with a source."""
    path = PurePosixPath(source)
    return str(path.parent / "__pycache__" / f"{path.stem}.{tag}.pyc")


def unaccounted(site: Path, tag: str) -> tuple[list[str], list[str]]:
    """Files in site-packages that no distribution lists, and listed ones that are not there."""
    listed = {name for one in distributions(site).values() for name in one if not name.startswith("../")}
    there = set(files(site))
    metadata = {f"{path.parent.name}/{name}" for path in site.glob("*.dist-info/RECORD") for name in OF_PIP}
    compiled = {bytecode(name, tag) for name in listed if name.endswith(".py")}
    return sorted(there - listed - metadata - compiled), sorted(listed - there)


def differences(site: Path, wheel: Record, tag: str) -> dict[str, list[str]]:
    """How the installed package differs from the wheel: files missing, extra, and changed, each empty where not."""
    own = {name.partition("/")[0] for name in wheel}
    there = {name for name in files(site) if name.partition("/")[0] in own}
    (metadata,) = (name for name in own if name.endswith(".dist-info"))
    compiled = {bytecode(name, tag) for name in wheel if name.endswith(".py")}
    allowed = {f"{metadata}/{name}" for name in OF_PIP} | compiled
    return {
        "missing": sorted((set(wheel) | compiled) - there),
        "extra": sorted(there - set(wheel) - allowed),
        "changed": sorted(name for name in there & set(wheel) if _digest(site / name) != wheel[name]),
    }


def _digest(path: Path) -> str:
    """A file's hash as lists of files write it."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest())
    return f"sha256={digest.rstrip(b'=').decode()}"


def size_bytes(root: Path) -> int:
    """Bytes of all files below, a file with several names once; what a layer's archive holds but for its headers."""
    return sum(count for _, count in _sizes(root))


def largest(root: Path, depth: int, most: int) -> list[tuple[str, int]]:
    """Folders at a depth with most bytes below them."""
    found: Counter[str] = Counter()
    for path, count in _sizes(root):
        found["/".join(path.relative_to(root).parts[:depth])] += count
    return found.most_common(most)


def _sizes(root: Path) -> Iterator[tuple[Path, int]]:
    seen: set[tuple[int, int]] = set()
    for name in files(root):
        status = (root / name).lstat()
        if (status.st_dev, status.st_ino) not in seen:
            seen.add((status.st_dev, status.st_ino))
            yield root / name, status.st_size

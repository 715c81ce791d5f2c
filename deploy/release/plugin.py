"""`python -m deploy.release.plugin`: the kubectl plugin as archives for krew, and its manifest with their checksums.

An archive holds a launcher and every package of requirements/runtime.txt beside the wheel, for one platform and all
versions of Python that the package runs in: compiled modules carry the version in their names, so one folder takes all.
pip checks the hashes. The same inputs and SOURCE_DATE_EPOCH give the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from string import Template
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
KREW: Final = ROOT / "deploy" / "krew"
LAUNCHER: Final = KREW / "kubectl-kvpressure"
PYTHONS: Final = ("3.11", "3.12", "3.13")
GLIBC: Final = ("manylinux_2_5", "manylinux1", "manylinux_2_12", "manylinux2014", "manylinux_2_17", "manylinux_2_28")
"""Wheels that run on the oldest Linux that is still given security fixes, Enterprise Linux 8, and later."""
PLATFORMS: Final = {"linux-amd64": "x86_64", "linux-arm64": "aarch64"}
"""Name in krew's terms to that of wheels. Linux alone: on nothing else has the program ever been tried."""
ZIP_EPOCH: Final = 315532800


def install(requirements: Path, machine: str, python: str, to: Path) -> None:
    """Every pinned package for a machine and a Python, neither of which need be ours.

    Raises CalledProcessError, after pip has said why.
    """
    tags = [word for tag in GLIBC for word in ("--platform", f"{tag}_{machine}")]
    words = ["--disable-pip-version-check", "install", "-q", "--no-deps", "--no-compile", "--require-hashes"]
    only = ["--only-binary=:all:", f"--python-version={python}", "--implementation=cp", *tags]
    command = [sys.executable, "-m", "pip", *words, *only, f"--target={to}", "-r", str(requirements)]
    subprocess.run(command, check=True)  # noqa: S603


def merged(folders: Iterable[Path]) -> dict[str, bytes]:
    """One folder's worth of files made of several.

    Raises ValueError where a module differs between them: they cannot share a folder then.
    """
    found: dict[str, bytes] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            name = str(path.relative_to(folder))
            if not path.is_file() or name.startswith("bin/"):
                continue
            content = path.read_bytes()
            # What a wheel says about itself names its own Python, and nobody here reads it.
            if found.setdefault(name, content) != content and ".dist-info/" not in name:
                raise ValueError(f"{name} is not the same for every Python")
    return found


def archive(files: dict[str, bytes], epoch: int) -> bytes:
    """Return a .tar.gz of the launcher and `files` below site/, with nothing of when, where and who packed it."""
    out = io.BytesIO()
    whole = {f"site/{name}": content for name, content in files.items()}
    whole |= {LAUNCHER.name: LAUNCHER.read_bytes(), "LICENSE": (ROOT / "LICENSE").read_bytes()}
    with (
        gzip.GzipFile(filename="", fileobj=out, mode="wb", mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as made,
    ):
        for name, content in sorted(whole.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(content), epoch
            member.mode = 0o755 if name == LAUNCHER.name else 0o644
            made.addfile(member, io.BytesIO(content))
    return out.getvalue()


def manifest(version: str, repository: str, sha256: dict[str, str]) -> str:
    """Krew's manifest. `sha256`: hex digest by platform. Raises ValueError for a repository that is not OWNER/NAME."""
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        raise ValueError(f"a repository is OWNER/NAME, not {repository!r}")
    digests = {platform.replace("-", "_"): digest for platform, digest in sha256.items()}
    template = Template((KREW / "kvpressure.yaml.tmpl").read_text("utf-8"))
    return template.substitute(version=version, repository=repository, **digests)


def build(wheel: Path, machine: str, epoch: int) -> bytes:
    """Return the archive for one machine."""
    with tempfile.TemporaryDirectory() as work:
        folders = [Path(work) / python for python in PYTHONS]
        for python, folder in zip(PYTHONS, folders, strict=True):
            install(ROOT / "requirements" / "runtime.txt", machine, python, folder)
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(Path(work) / "ours")  # noqa: S202 - our own wheel
        return archive(merged([*folders, Path(work) / "ours"]), epoch)


def main(arguments: list[str] | None = None) -> int:
    """Build all, and print the paths."""
    parser = argparse.ArgumentParser(prog="python -m deploy.release.plugin", description=__doc__)
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--repository", required=True, help="OWNER/NAME on GitHub, whose releases hold the archives")
    parser.add_argument("--out", type=Path, required=True, help="the folder to put them in")
    parser.add_argument("--platform", choices=PLATFORMS, action="append", help="this one only, and no manifest")
    given = parser.parse_args(arguments)
    epoch = max(int(os.environ.get("SOURCE_DATE_EPOCH", ZIP_EPOCH)), ZIP_EPOCH)
    given.out.mkdir(parents=True, exist_ok=True)
    digests = {}
    for platform in given.platform or PLATFORMS:
        content = build(given.wheel, PLATFORMS[platform], epoch)
        path = given.out / f"kubectl-kvpressure-{platform}.tar.gz"
        path.write_bytes(content)
        digests[platform] = hashlib.sha256(content).hexdigest()
        print(path)  # noqa: T201
    if not given.platform:
        version = given.wheel.name.split("-")[1]
        (given.out / "kvpressure.yaml").write_text(manifest(version, given.repository, digests), "utf-8")
        print(given.out / "kvpressure.yaml")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())

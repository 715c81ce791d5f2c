"""The programs of a run, all of them Debian's, and the processes that are waited for."""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".cache" / "e2e-image"

DEBIAN = {
    "buildah": "buildah",
    "debootstrap": "debootstrap",
    "ip": "iproute2",
    "strip": "binutils",
    "unshare": "util-linux",
}
"""Program: package that brings it. The Makefile installs them."""

LONGEST_SECONDS = 900


class MissingError(Exception):
    """Something that a run needs is not there; the text says how to get it."""


class FailedError(Exception):
    """A program of the run failed; the text has its last lines."""


def check() -> None:
    """Raise MissingError unless every program is there."""
    missing = [package for program, package in DEBIAN.items() if shutil.which(program) is None]
    if missing:
        raise MissingError(f"not installed: {', '.join(missing)}; apt-get install them, or make e2e-image as root does")


def output(words: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    """Standard output of a program that must succeed. Raises FailedError."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=env, timeout=LONGEST_SECONDS)
    if done.returncode != 0:
        told = (done.stdout + done.stderr)[-3000:]
        raise FailedError(f"{' '.join(words[:8])} ... ended with {done.returncode}:\n{told}")
    return done.stdout

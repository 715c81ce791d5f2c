"""`make apart`: each package passes its unit tests where those that it does not import are deleted.

A copy of the tree without them and without their tests, and a Python that has the libraries of this one and that copy
alone: the tests, and every process that they start, find nothing of the packages anywhere else.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

from deploy.release.dist import copy_sources

from tests.support.tools import ROOT

CORE = "kvpressure"
OTHERS = ("kvpressure_planner", "kvpressure_incidents")
KEPT = (CORE, *OTHERS)
"""The package whose tests are run; the core stays beside the others."""

SHARED = ("tests/unit/cli", "tests/unit/test_layout.py")
"""Tests of the core that look at the commands which are there."""

HANDFUL = "test_layout or cli/test_cli.py"
"""What is run of what was collected, where only little time is."""

_OURS = re.compile(r"__editable__|kv_?pressure")


def isolated(place: Path, exporter: Path) -> Path:
    """A Python with this one's libraries, and of our packages those in `exporter` alone."""
    venv.create(place, symlinks=True)
    (site,) = place.glob("lib/python3*/site-packages")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not _OURS.match(entry.name):
            (site / entry.name).symlink_to(entry)
    (site / "copy.pth").write_text(f"{exporter}\n")
    return place / "bin" / "python"


def apart(kept: str, *, fast: bool) -> int:
    """Run the tests of a package where the others are deleted; the exit status of pytest. Raises AssertionError."""
    deleted = [name for name in OTHERS if name != kept]
    with tempfile.TemporaryDirectory(prefix="kvpressure-apart-") as folder:
        copy = Path(folder) / "copy"
        copy_sources(ROOT, copy)
        for name in deleted:
            shutil.rmtree(copy / "exporter" / name)
            shutil.rmtree(copy / "tests" / "unit" / name)
        if (ROOT / ".tools").is_dir():
            (copy / ".tools").symlink_to(ROOT / ".tools")
        python = isolated(Path(folder) / "python", copy / "exporter")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYTEST"))}
        for name in (CORE, *OTHERS):
            words = [python, "-c", f"import {name}; print({name}.__file__)"]
            found = subprocess.run(words, cwd=copy, env=environment, capture_output=True, text=True, check=False)
            where = found.stdout.strip() or found.stderr.strip().rpartition("\n")[2]
            absent = f"ModuleNotFoundError: No module named '{name}'"
            assert where == (absent if name in deleted else str(copy / "exporter" / name / "__init__.py")), where
        tests = ["tests/unit"] if kept == CORE else [f"tests/unit/{kept}", *SHARED]
        some = ["-k", HANDFUL] if fast else ["-n", "2", "--dist", "loadfile"]
        print(f"{kept}, without {' and '.join(deleted)}:", flush=True)  # noqa: T201
        words = [python, "-m", "pytest", *some, *tests]
        return subprocess.run(words, cwd=copy, env=environment, check=False).returncode


if __name__ == "__main__":
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--fast", action="store_true", help="collect all tests, and run a handful")
    asked.add_argument("kept", nargs="*", default=KEPT, choices=(*KEPT, KEPT))
    given = asked.parse_args()
    sys.exit(max([apart(name, fast=given.fast) for name in given.kept]))

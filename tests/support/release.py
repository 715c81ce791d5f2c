"""The tools that releases are made with, run from the environment that `make` gives them."""

import os
import subprocess

from tests.support.tools import ROOT, missing

RELEASE = ROOT / ".venv-release"
EPOCH = 1_700_000_000
"""The time in everything that is built, in seconds since 1970."""


def release_python() -> str:
    """The interpreter that has the release's tools; without it the test is skipped, or fails when CI=true."""
    found = RELEASE / "bin" / "python"
    if not found.exists():
        missing("the release's tools are not installed: make .venv-release/.done")
    return str(found)


def run_tool(tool: str, *words: str, **environment: str) -> None:
    words = (release_python(), "-m", f"deploy.release.{tool}", *words)
    done = subprocess.run(
        words, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]

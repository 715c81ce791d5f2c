"""What most tests need: where files lie, programs that may be missing, golden files."""

import os
import re
import shutil
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
GOLDEN = ROOT / "tests" / "golden"


def missing(reason: str) -> NoReturn:
    """Skip the test because of what is not installed here; with CI=true, fail it."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def need(program: str, package: str) -> str:
    """The program's path. Without it the test is skipped, or fails when CI=true."""
    path = shutil.which(program)
    if path is None:
        missing(f"{program} is not installed (Debian package {package}); `make test` as root installs it")
    return path


def built(program: str) -> str:
    """The path of what `make tools-go`, `tools-pint` and others build; without it tests are skipped, and fail in CI."""
    path = shutil.which(program, path=str(ROOT / ".tools"))
    if path is None:
        missing(f"{program} is not in .tools; `make tools-{program}`, `tools-go` or `tools-stores` builds it")
    return path


def rounded(text: str) -> str:
    """Sample values to ten digits: Python 3.12 adds floats more exactly than 3.11."""
    long = r" (-?\d+\.(?:\d{9,}(?:e-\d+)?|\d{13,}e\+\d+))$"  # whole bytes and times have fewer, and stay as they are
    return re.sub(long, lambda m: f" {float(m[1]):.10g}", text, flags=re.MULTILINE)


def check_golden(name: str, text: str) -> None:
    """Compare with a golden file; `make golden` rewrites it, and git shows what changed."""
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN") == "1":
        path.write_text(text)
    assert text == path.read_text(), f"tests/golden/{name} differs: if that is wanted, run `make golden` and review it"

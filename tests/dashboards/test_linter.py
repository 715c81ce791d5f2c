"""Grafana's own linter, where it could be built (`make e2e-dashboards`)."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.dashboards.boards import LINT, ROOT, UIDS, path
from tests.support.tools import missing

pytestmark = [pytest.mark.e2e, pytest.mark.slow]


def linter() -> Path:
    """The program; without it the test is skipped, or fails when CI=true."""
    path = shutil.which("dashboard-linter", path=f"{ROOT / '.tools'}:{os.environ.get('PATH', '')}")
    if path is None:
        missing("dashboard-linter is not there; `make tools-dashboards` builds it where the Go module proxy serves it")
    return Path(path)


@pytest.mark.parametrize("uid", UIDS)
def test_the_linter_finds_nothing_beside_what_it_is_excused_from(uid: str, tmp_path: Path) -> None:
    board, _ = shutil.copy(path(uid), tmp_path), shutil.copy(LINT, tmp_path)
    command = [str(linter()), "lint", "--strict", "--verbose", str(board)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr

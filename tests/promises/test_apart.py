"""Each package works where those that it does not import are deleted: the short form of `make apart`."""

import subprocess
import sys

import pytest

from kvpressure.cli import COMMANDS, JOINED, installed
from tests.support.apart import CORE, KEPT, OTHERS
from tests.support.tools import ROOT

pytestmark = pytest.mark.process


@pytest.mark.parametrize("kept", KEPT)
def test_the_tests_of_a_package_are_collected_and_a_handful_passes_without_the_others(kept: str) -> None:
    words = [sys.executable, "-m", "tests.support.apart", "--fast", kept]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_the_packages_are_those_of_the_commands_and_all_are_in_a_source_tree() -> None:
    assert set(JOINED.values()) == set(OTHERS)
    assert {path.parent.name for path in (ROOT / "exporter").glob("*/__init__.py")} == {CORE, *OTHERS}
    assert installed() == COMMANDS

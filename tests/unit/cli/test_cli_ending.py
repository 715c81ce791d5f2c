"""How commands end when their reader goes away, and when they fail themselves: never as if something was found."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.tools import ROOT

pytestmark = pytest.mark.process

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "exporter")}


def test_a_reader_that_has_read_enough_is_no_finding() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "kvpressure", "incidents", "--schema", "incidents"],
            stdout=writer,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
            text=True,
            check=False,
            timeout=60,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_crash_is_no_finding_and_its_traceback_cannot_speak_to_the_terminal() -> None:
    broken = (
        "import click, kvpressure.cli as cli\n"
        "@click.command()\n"
        "def command(): raise RuntimeError('\\x1b[2Jgone')\n"
        "cli.LazyGroup.get_command = lambda *_: command\n"
        "cli.main(['triage'])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", broken], capture_output=True, env=ENVIRONMENT, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert "RuntimeError" in done.stderr
    assert done.stderr.endswith("kvpressure failed: a defect of its own, no finding (exit code 2)\n")
    assert "\x1b" not in done.stderr

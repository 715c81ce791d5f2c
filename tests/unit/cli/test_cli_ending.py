"""How commands end when their reader goes away, and when they fail themselves: never as if something was found."""

import os
import subprocess
import sys

import pytest

from tests.support.tools import ROOT

pytestmark = pytest.mark.process

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "exporter")}


@pytest.mark.parametrize("words", ["--help", "--version", "triage --help"])
def test_a_reader_that_has_read_enough_is_no_finding(words: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "kvpressure", *words.split()],
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


def ended_by(error: str) -> subprocess.CompletedProcess[str]:
    broken = (
        "import click, kvpressure.cli as cli\n"
        "@click.command()\n"
        f"def command(): raise {error}\n"
        "cli.LazyGroup.get_command = lambda *_: command\n"
        "cli.main(['triage'])\n"
    )
    return subprocess.run(
        [sys.executable, "-c", broken], capture_output=True, env=ENVIRONMENT, text=True, check=False, timeout=60
    )


def test_a_crash_is_no_finding_and_its_traceback_cannot_speak_to_the_terminal() -> None:
    done = ended_by("RuntimeError('\\x1b[2Jgone')")
    assert done.returncode == 2
    assert "RuntimeError" in done.stderr
    assert done.stderr.endswith("kvpressure failed: a defect of its own, no finding (exit code 2)\n")
    assert "\x1b" not in done.stderr


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "click.Abort"])
def test_an_interrupt_is_no_finding(error: str) -> None:
    done = ended_by(error)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\n")

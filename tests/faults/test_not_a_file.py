"""What is named as a file and is none: a FIFO would be waited for, maybe for ever."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from tests.support.processes import KVPRESSURE
from tests.support.tools import FIXTURES

PATIENCE_SECONDS = 300.0
"""Nothing waits this long: it is for machines ten times slower than a usual one."""
KINDS = {"fifo": "a FIFO (a named pipe)", "socket": "a socket", "device": "a device"}


def made(kind: str, folder: Path) -> Path:
    path = folder / f"{kind}.yaml"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
    else:
        path.symlink_to("/dev/zero")
    return path


def ended(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*KVPRESSURE, *arguments], check=False, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )


@pytest.mark.fault("a FIFO, a socket or a device is given to `replay`", "one error message, and exit code 2")
@pytest.mark.parametrize("kind", KINDS)
def test_replay_says_what_is_no_file_and_does_not_wait(kind: str, tmp_path: Path) -> None:
    path = made(kind, tmp_path)
    one = ended("replay", str(path))
    assert (one.returncode, one.stdout) == (2, "")
    said = f"{path} is not a recording of `kvpressure record`: it is {KINDS[kind]}, not a regular file\n"
    assert one.stderr == said


@pytest.mark.fault(
    "a FIFO, a socket or a device is given to `audit`, or lies as .env beside a manifest",
    "one error message; the other inputs are judged",
)
@pytest.mark.parametrize("kind", KINDS)
def test_audit_says_what_is_no_file_and_does_not_wait(kind: str, tmp_path: Path) -> None:
    path = made(kind, tmp_path)
    one = ended("audit", str(path), str(FIXTURES / "manifests" / "deployment-good.yaml"))
    assert one.returncode == 0
    assert one.stdout.endswith("1 engine: 16 pass, 0 fail, 0 unknown\n")
    what = f"it is {KINDS[kind]}, not a regular file"
    if path.is_symlink():  # a tree may come from anybody
        what = "it is a symbolic link, which is not followed; name the file itself"
    assert one.stderr == f"{path}: cannot be read: {what}\n"


def test_an_env_that_is_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    good = tmp_path / "good.yaml"
    good.write_text((FIXTURES / "manifests" / "deployment-good.yaml").read_text())
    os.mkfifo(tmp_path / ".env")
    assert ended("audit", str(good)).returncode == 0

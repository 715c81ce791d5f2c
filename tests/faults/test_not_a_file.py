"""What is named as a file and is none: a FIFO would be waited for, maybe for ever."""

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from tests.support.ended import exporter
from tests.support.exporter_settings import QUIET, listens
from tests.support.processes import KVPRESSURE, free_port
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
        what = "it is a symbolic link, which is not followed here, not a regular file"
    assert one.stderr == f"{path}: cannot be read: {what}\n"


def test_an_env_that_is_a_fifo_is_not_waited_for(tmp_path: Path) -> None:
    good = tmp_path / "good.yaml"
    good.write_text((FIXTURES / "manifests" / "deployment-good.yaml").read_text())
    os.mkfifo(tmp_path / ".env")
    assert ended("audit", str(good)).returncode == 0


@pytest.mark.fault(
    "a FIFO, a socket or a device is given to `plan --model-config`, or as settings or thresholds",
    "one error message, and exit code 2",
)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "before",
    [
        ("plan", "--gpu", "H100", "--prompt-p95", "1", "--output-p95", "1", "--model-config"),
        ("check-config", "--config.file"),
        ("generate", "--out", "bundle", "--thresholds"),
    ],
    ids=lambda before: before[0],
)
def test_no_command_waits_for_what_is_no_file(before: tuple[str, ...], kind: str, tmp_path: Path) -> None:
    path = made(kind, tmp_path)
    one = ended(*before, str(path))
    assert (one.returncode, one.stdout) == (2, "")
    assert f"it is {KINDS[kind]}, not a regular file" in one.stderr


@pytest.mark.fault(
    "the settings of a running exporter are replaced by a FIFO",
    "the reload is refused with its reason, and a later one, of a file, is done",
)
async def test_settings_that_become_a_fifo_are_refused_and_later_ones_are_read(tmp_path: Path) -> None:
    file, aside = tmp_path / "kvpressure.yaml", tmp_path / "next.yaml"
    settings = {"web": {"listen_address": f"127.0.0.1:{free_port()}"}, "gpu": {"vendors": []}, **QUIET}
    file.write_text(json.dumps(settings))
    with exporter(tmp_path, ["run", "--config.file", str(file)], {}) as run:
        await run.until(lambda: listens(run))
        os.mkfifo(aside)
        aside.replace(file)
        await run.until(lambda: "it is a FIFO (a named pipe), not a regular file" in run.output())
        aside.write_text(json.dumps(settings | {"poll": {"interval_seconds": 2}}))
        aside.replace(file)
        await run.until(lambda: 'event="settings reloaded"' in run.output())
        assert (await run.end()).code == 0

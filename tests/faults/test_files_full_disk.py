"""Files that a command was told to write, on a disk that is full: `/dev/full` and a limit on a file's size."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvpressure.cli import record
from tests.support.engine_kit import GOOD_PAGE
from tests.support.processes import KVPRESSURE
from tests.support.servers import FaultServer, Request, page
from tests.support.tools import FIXTURES


async def large_pages(request: Request, writer: asyncio.StreamWriter) -> None:
    """Pages of which no two are alike: a compressor keeps little back before it writes."""
    line = 'vllm:num_requests_waiting{{engine="{}",model_name="m"}} {}\n'
    lines = "".join(line.format(number, random.random()) for number in range(500))
    await page(GOOD_PAGE + lines.encode())(request, writer)


async def run(*words: str, kib: int = 8) -> tuple[int, str]:
    """A command of which no file may be longer than `kib`; its code and all that it says."""
    limited = ["bash", "-c", f'ulimit -f {kib}; exec "$@"', "bash", *KVPRESSURE, *words]
    process = await asyncio.create_subprocess_exec(*limited, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    async with asyncio.timeout(300):
        said, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode()


def files(folder: Path) -> dict[str, str]:
    """All that lies there."""
    return {path.name: path.read_text() for path in folder.iterdir()}


@pytest.mark.fault(
    "the disk is full under `record -o`", "it ends at once with an error message and exit code 2, without a traceback"
)
@pytest.mark.parametrize("suffix", ["jsonl", "jsonl.gz", "jsonl.xz"])
async def test_a_recording_on_a_full_disk_ends_with_a_sentence(suffix: str, tmp_path: Path) -> None:
    async with FaultServer(large_pages) as engine:
        path = str(tmp_path / f"r.{suffix}")
        code, said = await run("record", engine.url, "-o", path, "--duration", "600", "--interval", "0.2")
    assert code == 2
    assert f"{path} cannot be written: File too large" in " ".join(said.split())
    assert "Traceback" not in said


@pytest.mark.fault(
    "the disk is full under `generate --out`",
    "it ends with an error message and exit code 2, and an older bundle stays intact",
)
async def test_a_bundle_on_a_full_disk_leaves_the_older_one(tmp_path: Path) -> None:
    out = tmp_path / "bundle"
    assert (await run("generate", "--flavour", "vllm-only", "--out", str(out), kib=100_000))[0] == 0
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert before
    code, said = await run("generate", "--out", str(out))
    assert code == 2
    assert "cannot be written: File too large" in " ".join(said.split())
    assert "Traceback" not in said
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert os.listdir(tmp_path) == ["bundle"]  # noqa: PTH208 - no temporary folder is left


@pytest.mark.fault(
    "the disk is full under `record --gpus -o`", "it ends with an error message and exit code 2, without a traceback"
)
def test_a_dump_of_gpus_on_a_full_disk_ends_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "record_gpus", lambda *_: {"vendor": "nvidia", "error": ""})
    done = CliRunner().invoke(record.command, ["--gpus", "-o", "/dev/full"])
    assert done.exit_code == 2
    assert "/dev/full cannot be written: No space left on device" in done.output


@pytest.mark.fault(
    "the disk is full under `incidents --html`",
    "it ends with an error message and its own exit code, and an older report stays intact",
)
async def test_a_report_on_a_full_disk_ends_with_a_sentence(tmp_path: Path) -> None:
    script = "import pathlib, sys; from kvpressure_incidents.cli.incidents import _write; "
    script += "_write(pathlib.Path(sys.argv[1]), lambda _: 'x' * 100_000, {})"
    report = tmp_path / "r.html"
    limited = ["bash", "-c", 'ulimit -f 8; exec "$@"', "bash", sys.executable, "-c", script, str(report)]
    for older in (None, "last week's"):
        if older is not None:
            report.write_text(older)
        done = await asyncio.to_thread(subprocess.run, limited, capture_output=True, check=False)
        assert done.returncode not in (0, 1)
        assert f"cannot write {report}: File too large".encode() in done.stderr
        assert b"Traceback" not in done.stderr
        assert files(tmp_path) == ({"r.html": older} if older else {})


@pytest.mark.fault(
    "the disk is full under `whatif --picture`", "it ends with an error message, and an older picture stays intact"
)
async def test_a_picture_on_a_full_disk_leaves_the_older_one(tmp_path: Path) -> None:
    trace = str(FIXTURES / "lab" / "kv-collapse-0.33.0.jsonl.xz")
    picture = tmp_path / "load.png"
    picture.write_text("last week's")
    code, said = await run("whatif", "--trace", trace, "--picture", str(picture))
    assert code == 2
    assert "load.png: cannot be written: File too large" in " ".join(said.split())
    assert "Traceback" not in said
    assert files(tmp_path) == {"load.png": "last week's"}


async def test_the_limit_of_these_tests_is_one(tmp_path: Path) -> None:
    script = f"import os; fd = os.open({str(tmp_path / 'a')!r}, 65); [os.write(fd, b'x' * 5000) for _ in 'ab' * 2]"
    limited = ["bash", "-c", 'ulimit -f 8; exec "$@"', "bash", sys.executable, "-c", script]
    done = await asyncio.to_thread(subprocess.run, limited, capture_output=True, check=False)
    assert b"File too large" in done.stderr

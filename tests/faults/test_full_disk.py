"""Standard error and standard output that cannot be written, or are not read, and what is left of a line after that."""

import asyncio
import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
import structlog
import yaml
from click.testing import CliRunner

from kvpressure import logs
from kvpressure.cli import record
from kvpressure.logs import LineWriter
from tests.support.engine_kit import GOOD_PAGE
from tests.support.processes import KVPRESSURE, free_port
from tests.support.servers import FaultServer, Request, page
from tests.support.tools import FIXTURES

PATIENCE_SECONDS = 300.0
"""Nothing waits this long: it is for machines ten times slower than a usual one."""
RECORDING = FIXTURES / "traces" / "full-batch.jsonl.xz"
MANIFEST = FIXTURES / "manifests" / "deployment-bare.yaml"
PLAN = ("plan", "--model", "Qwen/Qwen3-8B", "--gpu", "H100", "--prompt-p95", "4000", "--output-p95", "800")
OFF: dict[str, Any] = {name: {"enabled": "false"} for name in ("kubernetes", "pod_resources", "logs")}


@contextlib.contextmanager
def exporting(folder: Path, stderr: IO[Any] | int, shell: str = "") -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A running exporter of an engine that is not there, which it logs; `shell` is done before it starts."""
    port, config = free_port(), folder / "kvpressure.yaml"
    settings = {
        "web": {"listen_address": f"127.0.0.1:{port}"},
        "engines": {"targets": [{"url": f"http://127.0.0.1:{free_port()}"}]},
        "host": {"enabled": False},
        "gpu": {"vendors": []},
        **OFF,
    }
    config.write_text(yaml.safe_dump(settings))
    run = f'{shell} exec "$@"'
    command = ["bash", "-c", run, "-", *KVPRESSURE, "run", "--config.file", str(config)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr)
    try:
        yield process, port
    finally:
        process.kill()
        process.wait(PATIENCE_SECONDS)


def metrics(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        return str(answer.read().decode())


def dropped(process: subprocess.Popen[bytes], port: int) -> float:
    """Lines dropped, once there are any."""
    end = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < end:
        assert process.poll() is None, "the exporter ended"
        with contextlib.suppress(OSError):
            found = re.search(r"^kvpressure_log_lines_dropped_total (\S+)$", metrics(port), re.MULTILINE)
            if found is not None and float(found[1]) > 0:  # the first page is older than the first tick
                return float(found[1])
        time.sleep(0.2)
    raise AssertionError("no line was dropped")


def ends_well(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_SECONDS) == 0


@pytest.mark.fault(
    "the disk behind the exporter's standard error is full (ENOSPC), or its file may not grow (`ulimit -f`)",
    "it continues, `kvpressure_log_lines_dropped_total` counts the lines, and a SIGTERM ends it with exit code 0",
)
@pytest.mark.parametrize("case", ["full", "limited"])
def test_a_full_disk_does_not_end_the_exporter(case: str, tmp_path: Path) -> None:
    path = Path("/dev/full") if case == "full" else tmp_path / "log"
    shell = "" if case == "full" else "ulimit -f 1; head -c 1024 /dev/zero >&2;"
    with path.open("wb") as stderr, exporting(tmp_path, stderr, shell) as (process, port):
        assert dropped(process, port) >= 1
        ends_well(process)


@pytest.mark.fault(
    "the reader of the exporter's standard error goes away (EPIPE), or never reads",
    "it continues, `kvpressure_log_lines_dropped_total` counts the lines, and a SIGTERM ends it with exit code 0",
)
@pytest.mark.parametrize("case", ["gone", "asleep"])
def test_a_reader_that_does_not_read_does_not_hold_up_the_exporter(case: str, tmp_path: Path) -> None:
    reads, writes = os.pipe()
    if case == "gone":
        os.close(reads)
    else:
        os.set_blocking(writes, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writes, b"x" * 4096)
        os.set_blocking(writes, True)
    with exporting(tmp_path, writes) as (process, port):
        os.close(writes)
        assert dropped(process, port) >= 1
        ends_well(process)
    if case == "asleep":
        os.close(reads)


def test_without_a_standard_error_every_line_is_dropped_and_none_goes_elsewhere() -> None:
    writer = LineWriter(None)
    writer.write("a line\n")
    assert writer.dropped == 1


@pytest.mark.fault(
    "a log line that could be written only in part", "the part is on a line of its own, and later lines are complete"
)
def test_a_torn_line_is_ended_before_the_next_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = os.write
    with (tmp_path / "log").open("w") as file:
        writer = LineWriter(file)

        def torn(descriptor: int, data: bytes) -> int:
            monkeypatch.setattr(os, "write", full)
            return whole(descriptor, bytes(data)[:7])

        def full(descriptor: int, data: bytes) -> int:
            raise OSError(28, "No space left on device")

        writer.write("first\n")
        monkeypatch.setattr(os, "write", torn)
        writer.write("second line\n")
        writer.write("third line\n")
        monkeypatch.setattr(os, "write", whole)
        writer.write("fourth line\n")
        writer.write("fifth line\n")
    assert (tmp_path / "log").read_text() == "first\nsecond \nfourth line\nfifth line\n"
    assert writer.dropped == 2


def test_a_pipe_that_is_full_costs_one_wait_and_takes_lines_again_once_read() -> None:
    reads, writes = os.pipe()
    with os.fdopen(writes, "w") as stream:
        writer = LineWriter(stream)
        began = time.monotonic()
        for _ in range(1000):
            writer.write("x" * 1023 + "\n")
        assert writer.dropped >= 900
        assert time.monotonic() - began < 20 * 0.1, "one wait, and what a busy machine adds"
        os.set_blocking(reads, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.read(reads, 1 << 20)
        before = writer.dropped
        writer.write("again\n")
        assert writer.dropped == before
        assert os.read(reads, 4096).endswith(b"again\n")
    os.close(reads)


def test_lines_of_libraries_and_of_ours_are_counted_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    before = logs.dropped()
    with open("/dev/full", "w") as full:  # noqa: PTH123
        monkeypatch.setattr(sys, "stderr", full)
        try:
            logs.configure("info", "logfmt")
            structlog.get_logger("kvpressure").warning("source down", target="a")
        finally:
            structlog.reset_defaults()
        assert logs.dropped() == before + 1


def ended(*arguments: str, **streams: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*KVPRESSURE, *arguments], check=False, timeout=PATIENCE_SECONDS, **streams)


SENTENCE = b"kvpressure: standard output cannot be written: No space left on device\n"
COMMANDS = {
    "replay": ("replay", str(RECORDING)),
    "replay --json": ("replay", "--json", str(RECORDING)),
    "advice": ("triage", "--advice", "--trace", str(RECORDING)),
    "audit": ("audit", str(MANIFEST)),
    "audit --sarif": ("audit", "--sarif", str(MANIFEST)),
    "plan": PLAN,
    "generate": ("generate", "--no-dashboards"),
    "check-config": ("check-config",),
    "--help": ("--help",),
}


@pytest.mark.fault(
    "the disk behind a command's standard output is full, and maybe that of its standard error too",
    "one error message on standard error, and exit code 2, also if the failure occurs at the end of the command",
)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_that_cannot_print_says_so_and_ends_with_2(name: str, tmp_path: Path) -> None:
    arguments = COMMANDS[name] + (("--out", str(tmp_path / "out")) if name == "generate" else ())
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        one = ended(*arguments, stdout=full, stderr=subprocess.PIPE)
        assert (one.returncode, one.stderr) == (2, SENTENCE)
        if name in ("replay", "--help"):
            assert ended(*arguments, stdout=full, stderr=full).returncode == 2


def test_what_shows_only_at_the_last_flush_is_told_too() -> None:
    script = (
        "import sys, click\nfrom kvpressure.cli import main\n"
        "@main.command('x')\ndef x(): sys.stdout.write('not flushed')\n"
        "main.get_command = lambda ctx, name: x\nmain(['x'])\n"
    )
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        one = subprocess.run([sys.executable, "-c", script], check=False, stdout=full, stderr=subprocess.PIPE)
    assert (one.returncode, one.stderr) == (2, SENTENCE)


def test_a_full_standard_error_alone_changes_no_exit_code() -> None:
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        assert ended("replay", "no-such-file", stderr=full).returncode == 2
        assert ended("check-config", stdout=subprocess.DEVNULL, stderr=full).returncode == 0


def test_a_reader_that_has_read_enough_ends_a_command_as_ever() -> None:
    command = f"{' '.join(KVPRESSURE)} replay --json {RECORDING} | head -1 >/dev/null; exit ${{PIPESTATUS[0]}}"
    one = subprocess.run(["bash", "-c", command], check=False, stderr=subprocess.PIPE, timeout=PATIENCE_SECONDS)
    assert (one.returncode, one.stderr) == (141, b"")


@pytest.mark.fault(
    "the disk that `record` writes to is full", "one error message with the file's name, and exit code 2"
)
@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.xz"])
async def test_a_recording_that_cannot_be_written_is_told(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"full{suffix}"
    path.symlink_to("/dev/full")
    async with FaultServer(page(GOOD_PAGE)) as server:
        arguments = ("record", server.url, "-o", str(path), "--duration", "1")
        one = await asyncio.to_thread(ended, *arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert one.returncode == 2
    assert one.stderr.decode() == f"record: {path} cannot be written: No space left on device\n"


# Files that a command was told to write, on a disk that is full: `/dev/full` and a limit on a file's size.


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

"""The journal through a child process: what it writes, how it fails, that it ends with us."""

from __future__ import annotations

import json
import os
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvpressure.model.environment import ContainerId
from kvpressure.sources.logs.follower import Follower
from kvpressure.sources.logs.journal import RETRY_READS, JournalLog

START = 1_704_067_200.0
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"


def record(text: object, t: float = START + 1, cursor: str = "c1", invocation: str = "i1") -> str:
    fields = {"MESSAGE": text, "__REALTIME_TIMESTAMP": str(int(t * 1e6)), "__CURSOR": cursor}
    return json.dumps(fields | {"_SYSTEMD_INVOCATION_ID": invocation}) + "\n"


@pytest.fixture
def journalctl(tmp_path: Path, monkeypatch) -> Callable[[str], Path]:
    """Put a `journalctl` first in PATH: Python code in which `arguments` and `say` are known. Gives its notes' file."""
    notes = tmp_path / "notes"

    def install(body: str) -> Path:
        program = tmp_path / "bin" / "journalctl"
        program.parent.mkdir(exist_ok=True)
        program.write_text(
            f"#!{sys.executable} -S\nimport json, os, sys, time\n"
            f"arguments = sys.argv[1:]\nopen({str(notes)!r}, 'a').write(json.dumps([os.getpid(), arguments]) + '\\n')\n"
            f"def say(text):\n    sys.stdout.write(text); sys.stdout.flush()\n{body}\n"
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        return notes

    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    return install


@pytest.fixture
def log() -> Iterator[Follower]:
    follower = Follower(ContainerId("", "", "gpu-box"), JournalLog("vllm.service"), START)
    yield follower
    follower.close()


def read_until(log: Follower, done: Callable[[], bool]) -> None:
    for _ in range(2000):
        log.read(1024 * 1024, START + 5)
        if done():
            return
        time.sleep(0.01)
    raise AssertionError(f"never happened; {log.health}")


def counts(log: Follower) -> dict[str, int]:
    report = log.report()
    return {kind: n for kind, n in report.counts.items() if n} if report else {}


def test_messages_are_counted_by_their_time_and_the_child_ends_with_the_log(journalctl, log: Follower):
    notes = journalctl(f"say({record(OOM, START - 5)!r} + {record(list(b'EngineDeadError'))!r})\ntime.sleep(60)")
    read_until(log, lambda: counts(log) == {"engine_dead": 1})
    report = log.report()
    assert report is not None
    assert report.latest == {"device_oom": START - 5, "engine_dead": START + 1}
    pid, arguments = json.loads(notes.read_text())
    assert arguments[:3] == ["--unit", "vllm.service", "--output=json"]
    log.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_child_that_ended_is_started_again_where_it_stopped(journalctl, log: Follower):
    notes = journalctl(
        f"again = any('--after-cursor=c7' == a for a in arguments)\n"
        f"say({record(OOM, START + 40)!r} if again else {record(OOM, START + 2, 'c7')!r})\n"
        "time.sleep(60) if again else None"
    )
    read_until(log, lambda: log.health.reason == "ended")
    assert "journalctl ended with 0" in log.health.error
    read_until(log, lambda: counts(log) == {"device_oom": 2})
    assert log.health.up
    assert len(notes.read_text().splitlines()) == 2


def test_a_unit_that_was_restarted_begins_new_incidents(journalctl, log: Follower):
    journalctl(f"say({record(OOM)!r} + {record(OOM)!r} + {record(OOM, invocation='i2')!r})\ntime.sleep(60)")
    read_until(log, lambda: counts(log) == {"device_oom": 2})


def test_a_journal_that_may_not_be_seen_is_said_with_the_group_to_join(journalctl, log: Follower):
    journalctl(
        "print('Hint: You are currently not seeing messages from other users and the system.', file=sys.stderr,"
        " flush=True)\ntime.sleep(60)"
    )
    read_until(log, lambda: log.health.reason == "permission")
    assert "systemd-journal" in log.health.error


def test_a_machine_without_journalctl_is_told_so_and_asked_again_now_and_then(
    tmp_path: Path, monkeypatch, journalctl, log: Follower
):
    monkeypatch.setenv("PATH", str(tmp_path))
    log.read(1000, START)
    assert log.health.reason == "no_journalctl"
    assert "give a path instead" in log.health.error
    assert log.report() is None
    notes = journalctl("time.sleep(60)")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    for _ in range(RETRY_READS):
        log.read(1000, START)
        assert not log.health.up
    assert not notes.exists()
    log.read(1000, START)
    assert log.health.up


@pytest.mark.parametrize(
    "garbage", ["no json\n", "[]\n", '{"MESSAGE": 5}\n', '{"MESSAGE": [999]}\n', "x" * 2_000_000 + "\n"]
)
def test_garbage_among_the_records_is_passed_over(journalctl, log: Follower, garbage: str):
    body = f"'x' * 2_000_000 + {garbage[-1]!r}" if len(garbage) > 1000 else repr(garbage)
    journalctl(f"say({body} + {record(OOM)!r})\ntime.sleep(60)")
    read_until(log, lambda: counts(log) == {"device_oom": 1})


def test_a_journal_that_comes_too_fast_is_skipped_ahead_of(journalctl, log: Follower):
    notes = journalctl(f"line = {record('busy')!r}\nwhile True: say(line * 100)")
    for _ in range(2000):
        log.read(2000, START + 5)
        if log.health.errors.get("backlog"):
            break
        time.sleep(0.005)
    assert log.health.errors["backlog"] == 1
    log.read(2000, START + 5)
    for _ in range(2000):
        if len(notes.read_text().splitlines()) == 2:
            break
        time.sleep(0.01)
    assert "--lines=0" in json.loads(notes.read_text().splitlines()[1])[1]

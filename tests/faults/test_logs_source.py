"""All logs together: followed and forgotten, switched off, hung, forbidden, and back again."""

import asyncio
import json
import os
import stat
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import structlog

from kvpressure.config.settings.model import LogFileSettings, LogsSettings
from kvpressure.model.environment import LOG_KINDS, ContainerId, ContainerState
from kvpressure.sources import logs as source
from kvpressure.sources.logs import LogsSource
from kvpressure.sources.logs.follower import Follower
from kvpressure.sources.logs.journal import RETRY_READS, JournalLog
from kvpressure.sources.logs.safe_open import PermissionDeniedError, Tree
from tests.support.engine_kit import VirtualClock

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"
POD = ContainerId("ns", "vllm-0", "vllm")
BOX = ContainerId("", "", "gpu-box")


def state(
    container: ContainerId = POD, uid: str = "u1", runtime_id: str = "abc", started: float | None = 1.0
) -> ContainerState:
    return ContainerState(container, 0.0, pod_uid=uid, runtime_id=runtime_id, started=started)


def write(root: Path, *texts: str, t: float, uid: str = "u1") -> Path:
    file = root / f"ns_vllm-0_{uid}" / "vllm" / "0.log"
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as stream:
        for text in texts:
            stream.write(f"{datetime.fromtimestamp(t, UTC).isoformat()} stderr F {text}\n")
    return file


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
async def make(clock: VirtualClock, tmp_path: Path) -> AsyncIterator[Callable[..., LogsSource]]:
    made: list[LogsSource] = []

    def build(**values: Any) -> LogsSource:
        made.append(LogsSource(LogsSettings(**{"directory": tmp_path / "pods", **values}), clock))
        return made[-1]

    (tmp_path / "pods").mkdir()
    yield build
    for logs in made:
        await logs.aclose()


def open_logs(root: Path) -> list[str]:
    links = [link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return [str(target) for target in links if str(target).startswith(str(root))]


async def test_a_pods_log_is_counted_and_its_health_told(make, clock: VirtualClock, tmp_path: Path):
    logs = make()
    logs.follow([state()])
    write(tmp_path / "pods", OOM, t=clock.wall() + 1)
    await logs.sweep()
    assert logs.reports[POD].counts == {**dict.fromkeys(LOG_KINDS, 0), "device_oom": 1}
    assert [(h.source, h.target, h.up) for h in logs.health()] == [("logs", "", True), ("logs", "ns/vllm-0/vllm", True)]


async def test_a_pod_that_is_gone_is_forgotten_and_its_file_closed(make, clock: VirtualClock, tmp_path: Path):
    logs = make()
    write(tmp_path / "pods", OOM, t=clock.wall())
    logs.follow([state()])
    await logs.sweep()
    assert len(open_logs(tmp_path)) == 1
    logs.follow([])
    await logs.sweep()
    assert open_logs(tmp_path) == []
    assert (logs.reports, logs.health()) == ({}, ())


async def test_a_pod_made_anew_under_its_name_is_another_log(make, clock: VirtualClock, tmp_path: Path):
    logs = make()
    write(tmp_path / "pods", OOM, t=clock.wall())
    logs.follow([state()])
    await logs.sweep()
    write(tmp_path / "pods", "starting", t=clock.wall(), uid="u2")
    logs.follow([state(uid="u2")])
    await logs.sweep()
    assert logs.reports[POD].counts["device_oom"] == 0
    assert len(open_logs(tmp_path)) == 1


async def test_after_a_restart_of_the_exporter_nothing_old_is_counted_again(make, clock: VirtualClock, tmp_path: Path):
    write(tmp_path / "pods", OOM, t=clock.wall() - 60)
    for _ in range(2):
        logs = make()
        logs.follow([state()])
        await logs.sweep()
        assert logs.reports[POD].counts["device_oom"] == 0
        assert logs.reports[POD].latest["device_oom"] == clock.wall() - 60


async def test_a_container_that_is_not_there_yet_is_no_failure_and_one_whose_log_is_missing_is(make):
    logs = make()
    logs.follow([state(runtime_id="")])
    await logs.sweep()
    assert [h.up for h in logs.health()] == [True]
    logs.follow([state()])
    await logs.sweep()
    assert [(h.target, h.reason) for h in logs.health() if not h.up] == [("ns/vllm-0/vllm", "missing")]
    assert logs.reports == {}


async def test_a_pod_that_was_evicted_keeps_no_source_down_when_the_kubelet_has_taken_its_log(make):
    logs = make()
    logs.follow([state(started=None)])
    await logs.sweep()
    assert [h.up for h in logs.health()] == [True]


async def test_on_auto_a_directory_that_is_not_mounted_is_no_failure_is_said_and_read_when_it_is(
    make, clock: VirtualClock, tmp_path: Path
):
    logs = make(directory=tmp_path / "later")
    logs.follow([state()])
    with structlog.testing.capture_logs() as told:
        await logs.sweep()
        await logs.sweep()
    assert logs.health() == ()
    assert [line["event"] for line in told] == ["pod logs are not read"]
    (problem,) = logs.problems
    assert problem.startswith(f"{tmp_path / 'later'} is not there")
    write(tmp_path / "later", OOM, t=clock.wall())
    await logs.sweep()
    assert all(h.up for h in logs.health())
    assert (logs.reports[POD].counts["device_oom"], logs.problems) == (1, ())


async def test_whatever_a_sweep_raises_the_next_one_comes(make, monkeypatch, clock: VirtualClock):
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    logs = make()
    logs.follow([state()])
    with monkeypatch.context() as patch:
        patch.setattr(LogsSource, "_choose", broken)
        await logs.sweep()
    assert [h.reason for h in logs.health()] == ["internal"]
    await logs.sweep()
    assert logs.health()[0].up


async def test_a_directory_that_is_missing_is_said_and_read_when_it_is_mounted(
    make, clock: VirtualClock, tmp_path: Path
):
    logs = make(directory=tmp_path / "later", enabled="true")
    logs.follow([state()])
    await logs.sweep()
    (health,) = logs.health()
    assert (health.up, health.reason) == (False, "missing")
    assert "mount it, or set logs.enabled to false" in health.error
    write(tmp_path / "later", OOM, t=clock.wall())
    await logs.sweep()
    assert all(h.up for h in logs.health())
    assert logs.reports[POD].counts["device_oom"] == 1


async def test_one_forbidden_log_is_disabled_alone_and_recovers(make, clock: VirtualClock, tmp_path: Path, monkeypatch):
    other = ContainerId("ns", "vllm-0", "sidecar")
    write(tmp_path / "pods", OOM, t=clock.wall())
    (tmp_path / "pods" / "ns_vllm-0_u1" / "sidecar").mkdir()
    (tmp_path / "pods" / "ns_vllm-0_u1" / "sidecar" / "0.log").write_text("")
    real = Tree.open_file

    def forbidding(tree: Tree, parts: tuple[str, ...]) -> int:
        if "vllm" in parts:
            raise PermissionDeniedError("may not")
        return real(tree, parts)

    logs = make()
    logs.follow([state(), state(other)])
    with monkeypatch.context() as patch:
        patch.setattr(Tree, "open_file", forbidding)
        await logs.sweep()
        assert set(logs.reports) == {other}
        assert [h.reason for h in logs.health() if not h.up] == ["permission"]
    await logs.sweep()
    assert logs.reports[POD].counts["device_oom"] == 1
    assert all(h.up for h in logs.health())


async def test_a_bug_in_one_log_is_that_logs_failure(make, tmp_path: Path, clock: VirtualClock, monkeypatch):
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("kvpressure.sources.logs.pod_log.FileLog.read", broken)
    write(tmp_path / "pods", OOM, t=clock.wall())
    logs = make(files=(LogFileSettings(target="gpu-box", path=tmp_path / "vllm.log"),))
    logs.follow([state()])
    await logs.sweep()
    assert [(h.target, h.reason) for h in logs.health() if not h.up] == [("gpu-box", "internal")]
    assert POD in logs.reports


async def test_without_kubernetes_files_are_read_and_the_directory_is_not_missed(make, tmp_path: Path):
    (tmp_path / "vllm.log").write_text("GPU KV cache size: 65,536 tokens\n")
    logs = make(directory=tmp_path / "nowhere", files=(LogFileSettings(target="gpu-box", path=tmp_path / "vllm.log"),))
    await logs.sweep()
    assert logs.reports[BOX].kv_capacity_tokens == 65_536
    assert all(h.up for h in logs.health())


async def test_switched_off_nothing_is_read_or_told(make, tmp_path: Path, clock: VirtualClock):
    write(tmp_path / "pods", OOM, t=clock.wall())
    logs = make(enabled="false")
    logs.follow([state()])
    await logs.sweep()
    assert (logs.reports, logs.health()) == ({}, ())


async def test_a_file_system_that_hangs_neither_blocks_the_loop_nor_is_read_twice(
    make, tmp_path: Path, clock: VirtualClock, monkeypatch
):
    release, calls = threading.Event(), []

    def hanging(self: Tree, parts: tuple[str, ...]) -> tuple[str, ...]:
        calls.append(parts)
        release.wait()
        return ("0.log",)

    write(tmp_path / "pods", OOM, t=clock.wall())
    logs = make()
    logs.follow([state()])
    with monkeypatch.context() as patch:
        patch.setattr(source, "DEADLINE_SECONDS", 0.05)
        patch.setattr(Tree, "names", hanging)
        beats = 0
        sweeping = asyncio.create_task(logs.sweep())
        while not sweeping.done():
            await asyncio.sleep(0.001)
            beats += 1
        assert beats, "the loop ran while the thread hung"
        assert logs.health()[0].reason == "timeout"
        await logs.sweep()
        assert len(calls) == 1
        assert "hangs in the kernel" in logs.health()[0].error
        release.set()
    while not logs.reports:
        await logs.sweep()
        await asyncio.sleep(0.001)
    assert logs.reports[POD].counts["device_oom"] == 1
    assert logs.health()[0].up


async def test_it_reads_every_second_and_closes_everything_when_it_ends(make, clock: VirtualClock, tmp_path: Path):
    write(tmp_path / "pods", "starting", t=clock.wall())
    logs = make()
    logs.follow([state()])
    running = asyncio.create_task(logs.run())
    for second in range(3):
        write(tmp_path / "pods", OOM, t=clock.wall() + 20 * second)
        while POD not in logs.reports or logs.reports[POD].counts["device_oom"] < second + 1:
            await clock.advance(0.5)
            await asyncio.sleep(0.001)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert open_logs(tmp_path) == []


# The journal through a child process: what it writes, how it fails, that it ends with us.


START = 1_704_067_200.0


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

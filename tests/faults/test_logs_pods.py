"""A container's log as the kubelet keeps it: rotated, compressed, restarted, emptied, flooded, gone."""

import gzip
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kvpressure.model.environment import ContainerId
from kvpressure.sources.logs.follower import Follower
from kvpressure.sources.logs.live import HEAD_BYTES, TAIL_BYTES, log_files
from kvpressure.sources.logs.pod_log import PodLog
from kvpressure.sources.logs.safe_open import Tree

START = 1_704_067_200.0
BUDGET = 1024 * 1024
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate"
CAPACITY = "Available KV cache memory: 8.00 GiB"
TOKENS = "GPU KV cache size: 65,536 tokens"


class Kubelet:
    """Writes a container's log as containerd does and rotates it as the kubelet does."""

    def __init__(self, root: Path) -> None:
        self.directory = root / "ns_pod_uid" / "vllm"
        self.directory.mkdir(parents=True)
        self.number = 0
        self.t = START

    @property
    def file(self) -> Path:
        return self.directory / f"{self.number}.log"

    def wrapped(self, text: str) -> str:
        self.t += 20  # each line an incident of its own
        stamp = datetime.fromtimestamp(self.t, UTC).isoformat().replace("+00:00", ".000000000Z")
        return f"{stamp} stderr F {text}\n"

    def says(self, *texts: str) -> None:
        with self.file.open("a") as file:
            file.writelines(map(self.wrapped, texts))

    def rotates(self, stamp: str = "20240101-000000", *, reopens: bool = True) -> Path:
        rotated = self.file.with_name(f"{self.file.name}.{stamp}")
        self.file.rename(rotated)
        if reopens:
            self.file.touch()
        return rotated

    def compresses(self, rotated: Path) -> None:
        rotated.with_name(rotated.name + ".gz").write_bytes(gzip.compress(rotated.read_bytes()))
        rotated.unlink()

    def restarts_container(self) -> None:
        self.number += 1
        self.file.touch()


@pytest.fixture
def kubelet(tmp_path: Path) -> Kubelet:
    return Kubelet(tmp_path)


@pytest.fixture
def log(tmp_path: Path, kubelet: Kubelet) -> Iterator[Follower]:
    reader = PodLog(Tree(tmp_path), ("ns_pod_uid", "vllm"))
    follower = Follower(ContainerId("ns", "pod", "vllm"), reader, START)
    yield follower
    follower.close()


def ooms(log: Follower, budget: int = BUDGET) -> int:
    log.read(budget, START + 1000)
    report = log.report()
    assert report is not None, log.health.error
    return report.counts["device_oom"]


def test_lines_are_counted_as_they_come_and_once(kubelet: Kubelet, log: Follower):
    kubelet.says("starting")
    assert ooms(log) == 0
    kubelet.says(OOM)
    assert ooms(log) == 1
    assert ooms(log) == 1
    kubelet.says("fine", OOM, OOM)
    assert ooms(log) == 3


def test_a_line_that_is_written_in_two_halves_is_one(kubelet: Kubelet, log: Follower):
    line = kubelet.wrapped(OOM)
    kubelet.file.write_text(line[:50])
    assert ooms(log) == 0
    kubelet.file.write_text(line)
    assert ooms(log) == 1


@pytest.mark.parametrize("reopens", [True, False])
def test_nothing_is_lost_or_counted_twice_when_the_file_is_rotated(kubelet: Kubelet, log: Follower, reopens: bool):
    kubelet.says("starting")
    assert ooms(log) == 0
    kubelet.says(OOM)  # not read yet when the file is renamed
    rotated = kubelet.rotates(reopens=reopens)
    assert ooms(log) == 1
    kubelet.says(OOM)
    assert ooms(log) == 2
    kubelet.compresses(rotated)
    kubelet.rotates("20240101-010000")
    kubelet.says(OOM)
    assert ooms(log) == 3


def test_a_partial_line_goes_on_in_the_next_file(kubelet: Kubelet, log: Follower):
    first, second = kubelet.wrapped(OOM[:30]), kubelet.wrapped(OOM[30:])
    kubelet.file.write_text(first.replace(" F ", " P "))
    assert ooms(log) == 0
    kubelet.rotates()
    kubelet.file.write_text(second)
    assert ooms(log) == 1


def test_a_file_that_is_emptied_is_read_from_its_start(kubelet: Kubelet, log: Follower):
    kubelet.says("a long line " * 20, OOM)
    assert ooms(log) == 1
    os.truncate(kubelet.file, 0)
    assert ooms(log) == 1
    kubelet.says(OOM)
    assert ooms(log) == 2


def test_an_emptied_file_that_grew_past_the_old_place_is_noticed(kubelet: Kubelet, log: Follower):
    kubelet.says("a long line " * 20)
    assert ooms(log) == 0
    os.truncate(kubelet.file, 0)
    kubelet.says(OOM, "a longer line " * 50)
    assert ooms(log) == 1


def test_the_last_words_before_a_restart_are_read_first(kubelet: Kubelet, log: Follower):
    kubelet.says(CAPACITY, TOKENS)
    assert ooms(log) == 0
    with kubelet.file.open("a") as file:
        file.write(kubelet.wrapped(OOM).rstrip("\n"))  # killed in the middle of writing
    kubelet.restarts_container()
    kubelet.says("starting again", "Available KV cache memory: 4.00 GiB", TOKENS)
    assert ooms(log) == 1
    report = log.report()
    assert report.kv_bytes_per_token == 65_536


def test_two_restarts_between_two_looks_are_both_read(kubelet: Kubelet, log: Follower):
    kubelet.says("starting")
    assert ooms(log) == 0
    for _ in range(2):
        kubelet.says(OOM)
        kubelet.restarts_container()
    kubelet.says("third time")
    assert ooms(log) == 2


def test_each_start_that_dies_within_a_minute_is_a_death(kubelet: Kubelet, log: Follower):
    kubelet.says("starting")
    assert ooms(log) == 0
    for _ in range(2):
        kubelet.says("EngineCore encountered a fatal error.")
        kubelet.restarts_container()
    ooms(log)
    report = log.report()
    assert report.counts["engine_dead"] == 2


def test_at_first_sight_history_tells_capacity_and_the_last_death_and_counts_nothing(kubelet: Kubelet, log: Follower):
    kubelet.t = START - 10_000
    kubelet.says(OOM)
    death = kubelet.t
    kubelet.restarts_container()
    kubelet.says(CAPACITY, TOKENS)
    kubelet.compresses(kubelet.rotates("20240101-000000"))
    kubelet.says("busy")
    kubelet.rotates("20240101-010000")
    kubelet.says("busy")
    assert ooms(log) == 0
    report = log.report()
    assert (report.kv_capacity_tokens, report.kv_bytes_per_token) == (65_536, 131_072)
    assert report.latest["device_oom"] == death
    assert not any(report.counts.values())


def test_a_pod_that_is_newer_than_the_exporter_is_counted_from_its_first_line(kubelet: Kubelet, log: Follower):
    kubelet.says(CAPACITY, TOKENS, OOM)
    kubelet.compresses(kubelet.rotates())
    kubelet.says(OOM)
    assert ooms(log) == 2


def test_of_a_huge_old_log_only_the_start_and_the_end_are_read(kubelet: Kubelet, log: Follower):
    kubelet.t = START - 1_000_000
    padding = "x" * 1000
    kubelet.says(CAPACITY, TOKENS, *[padding] * (HEAD_BYTES // 1000))
    kubelet.says(OOM)  # in the middle: not worth reading for
    kubelet.says(*[padding] * (TAIL_BYTES // 1000 + 50), "No available memory for the cache blocks")
    assert ooms(log) == 0
    report = log.report()
    assert set(report.lines) == {"kv_capacity", "kv_exhausted"}
    kubelet.t = START
    kubelet.says(OOM)
    assert ooms(log) == 1


def test_a_backlog_is_skipped_ahead_of_and_counted(kubelet: Kubelet, log: Follower):
    budget = 4096
    kubelet.says("starting")
    assert ooms(log, budget) == 0
    kubelet.says(*["x" * 1000] * 100, OOM)
    assert ooms(log, budget) == 1
    assert log.health.errors == {"backlog": 1}
    assert log.health.up


def test_a_little_more_than_the_budget_is_read_later_and_not_skipped(kubelet: Kubelet, log: Follower):
    kubelet.says("starting")
    assert ooms(log, 4096) == 0
    kubelet.says(OOM, *["x" * 1000] * 8, OOM)
    counts = [ooms(log, 4096) for _ in range(4)]
    assert counts == [1, 1, 2, 2]
    assert log.health.errors == {}


def test_a_damaged_archive_gives_what_can_be_unpacked(kubelet: Kubelet, log: Follower):
    kubelet.says(CAPACITY, TOKENS, *map(str, range(5000)))
    rotated = kubelet.rotates()
    kubelet.compresses(rotated)
    archive = rotated.with_name(rotated.name + ".gz")
    archive.write_bytes(archive.read_bytes()[:-2000])
    kubelet.says(OOM)
    assert ooms(log) == 1
    report = log.report()
    assert report.kv_capacity_tokens == 65_536


def test_an_archive_that_unpacks_to_gigabytes_is_not_unpacked_whole(kubelet: Kubelet, log: Follower, monkeypatch):
    monkeypatch.setattr("kvpressure.sources.logs.live.MAX_UNPACKED_BYTES", 100_000)
    archive = kubelet.directory / "0.log.20240101-000000.gz"
    archive.write_bytes(gzip.compress(b"\0" * 30_000_000))
    kubelet.says(OOM)
    assert ooms(log) == 1


def test_a_log_that_is_not_there_yet_is_said_and_followed_when_it_comes(tmp_path: Path):
    follower = Follower(ContainerId("ns", "pod", "vllm"), PodLog(Tree(tmp_path), ("ns_pod_uid", "vllm")), START)
    follower.read(BUDGET, START)
    assert (follower.health.up, follower.health.reason, follower.report()) == (False, "missing", None)
    kubelet = Kubelet(tmp_path)
    follower.read(BUDGET, START)
    assert "holds no log yet" in follower.health.error
    kubelet.says(OOM)
    assert ooms(follower) == 1
    assert follower.health.up
    follower.close()


def test_a_log_whose_pod_is_gone_keeps_what_it_told_and_says_that_it_is_gone(kubelet: Kubelet, log: Follower):
    kubelet.says(OOM)
    assert ooms(log) == 1
    kubelet.file.unlink()
    kubelet.directory.rmdir()
    assert ooms(log) == 1
    assert log.health.reason == "missing"


def test_names_that_are_no_logs_are_left_alone():
    names = ["1.log", "0.log", "0.log.20240101-000000.gz", "0.log.20240101-000000", "0.log.tmp", "a.log", "0.log.gz"]
    assert [file.name for file in log_files(names)] == ["0.log.20240101-000000", "0.log", "1.log"]

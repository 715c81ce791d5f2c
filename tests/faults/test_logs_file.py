"""A log file on a machine without Kubernetes: renamed, copied and emptied, late, old."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvpressure.model.environment import ContainerId
from kvpressure.sources.logs.follower import Follower
from kvpressure.sources.logs.live import HEAD_BYTES, TAIL_BYTES
from kvpressure.sources.logs.pod_log import FileLog

START = 1_704_067_200.0
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "vllm.log"


@pytest.fixture
def log(path: Path) -> Iterator[Follower]:
    follower = Follower(ContainerId("", "", "gpu-box"), FileLog(path), START)
    yield follower
    follower.close()


class Reading:
    """Reads the log once a minute, so that each reading finds incidents of its own."""

    def __init__(self, log: Follower) -> None:
        self.log, self.now = log, START

    def __call__(self) -> int:
        self.now += 60
        self.log.read(1024 * 1024, self.now)
        report = self.log.report()
        assert report is not None, self.log.health.error
        return report.counts["device_oom"]


@pytest.fixture
def ooms(log: Follower) -> Reading:
    return Reading(log)


def add(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_what_was_there_is_shown_and_what_comes_is_counted(path: Path, log: Follower, ooms: Reading):
    add(path, OOM + "GPU KV cache size: 65,536 tokens\n")
    assert ooms() == 0
    report = log.report()
    assert report is not None
    assert (report.latest, report.kv_capacity_tokens) == ({}, 65_536)
    assert "device_oom" in report.lines
    add(path, OOM)
    assert ooms() == 1
    assert log.report().latest == {"device_oom": START + 120}


def test_a_file_that_appears_later_is_counted_from_its_first_line(path: Path, log: Follower, ooms: Reading):
    log.read(1000, START)
    assert log.health.reason == "missing"
    add(path, OOM)
    assert ooms() == 1


def test_a_renamed_file_is_read_to_its_end_and_the_new_one_from_its_start(path: Path, ooms: Reading):
    add(path, "starting\n")
    assert ooms() == 0
    add(path, OOM)
    path.rename(path.with_suffix(".log.1"))
    assert ooms() == 1
    path.touch()
    assert ooms() == 1
    add(path.with_suffix(".log.1"), OOM)  # the writer has not moved on yet
    assert ooms() == 2
    add(path, OOM)
    assert ooms() == 3
    add(path, OOM)
    assert ooms() == 4


def test_a_file_that_is_copied_and_emptied_is_read_on(path: Path, ooms: Reading):
    add(path, "starting\n" * 10)
    assert ooms() == 0
    shutil.copy(path, path.with_suffix(".log.1"))
    os.truncate(path, 0)
    add(path, OOM)
    assert ooms() == 1


def test_of_a_huge_old_file_the_start_and_the_end_are_read(path: Path, log: Follower, ooms: Reading):
    add(path, "GPU KV cache size: 65,536 tokens\n" + "x\n" * HEAD_BYTES + OOM + "x\n" * TAIL_BYTES)
    add(path, "No available memory for the cache blocks\n")
    assert ooms() == 0
    report = log.report()
    assert report is not None
    assert set(report.lines) == {"kv_capacity", "kv_exhausted"}
    add(path, OOM)
    assert ooms() == 1


def test_a_link_that_an_operator_named_is_followed(path: Path, tmp_path: Path, ooms: Reading):
    real = tmp_path / "today.log"
    real.write_text("starting\n")
    path.symlink_to(real)
    assert ooms() == 0
    add(real, OOM)
    assert ooms() == 1

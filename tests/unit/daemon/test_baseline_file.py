"""What is healthy for an engine over a restart of the exporter: a file, as it should be and as it should not."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kvpressure.config.settings import Settings
from kvpressure.config.settings.load import Loaded
from kvpressure.config.target import Target
from kvpressure.config.thresholds import load_thresholds
from kvpressure.daemon import baseline_file
from kvpressure.daemon.baseline_file import FORMAT, MAX_AGE_SECONDS, MAX_BYTES, BaselineFile, parsed, text_of
from kvpressure.daemon.exporter import Daemon
from kvpressure.engine_state import RESTORED_SECONDS, Pipeline, PipelineSettings
from kvpressure.model.samples import EnginePage, EngineSample
from kvpressure.model.view import EngineKey
from kvpressure.net.schedule import SystemClock

KEY = EngineKey("chat/vllm-0:8000", "m", "0")
KNOWN = {KEY: {"e2e": (2.5, 400.0), "batch": (16.0, 300.0)}}
NOW = 1.8e9


def file(path: Path) -> BaselineFile:
    return BaselineFile(path, SystemClock(), max_engines=4)


def test_what_is_written_is_read_again_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "baselines.json"
    file(path).write(KNOWN)
    assert file(path).read() == KNOWN
    assert [one.name for one in tmp_path.iterdir()] == [path.name]
    file(path).write({})
    assert file(path).read() == KNOWN, "an exporter that has seen nobody takes nothing away"


def test_without_a_path_or_a_file_nothing_is_known_and_nothing_is_said(tmp_path: Path) -> None:
    with capture_logs() as lines:
        nowhere = BaselineFile(None, SystemClock(), max_engines=4)
        nowhere.write(KNOWN)
        assert nowhere.read() == file(tmp_path / "none.json").read() == {}
        assert not nowhere.is_due()
    assert lines == []
    assert Settings().baseline_file is None


def of(**more: object) -> bytes:
    engine = {"target": "t", "model_name": "m", "engine": "0", "healthy": {"e2e": [1.0, 60.0]}}
    return json.dumps({"format": FORMAT, "written": NOW, "engines": [engine | more]}).encode()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[" * 100_000,
        b'{"format": "another"}',
        of()[:-9],
        of(healthy={"e2e": [1.0]}),
        of(healthy={"e2e": [float("nan"), 60.0]}),
        of(healthy={"e2e": [1e9, 60.0]}),
        of(healthy={"e2e": [True, 60.0]}),
        of(healthy={"other": [1.0, 60.0]}),
        of(target=5),
        of(target="x" * 5000),
        of().replace(b"1800000000.0", str(NOW - MAX_AGE_SECONDS - 1).encode()),
        of().replace(b"1800000000.0", str(NOW + 3600).encode()),
        b" " * (MAX_BYTES + 1),
    ],
)
def test_what_is_not_to_be_believed_is_left_out_with_one_line(tmp_path: Path, text: bytes) -> None:
    with pytest.raises((ValueError, RecursionError)):
        parsed(text, NOW, 4)
    path = tmp_path / "baselines.json"
    path.write_bytes(text)
    with capture_logs() as lines:
        assert file(path).read() == {}
    assert [line["log_level"] for line in lines] == ["warning"]


def test_no_more_engines_are_read_than_may_be_held() -> None:
    many = {EngineKey(f"t{number}", "m", "0"): KNOWN[KEY] for number in range(9)}
    assert len(parsed(text_of(many, NOW), NOW, 4)) == 4


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with capture_logs() as lines:
        assert file(tmp_path / "pipe").read() == {}
    assert "regular" in lines[0]["error"]


def test_a_directory_that_cannot_be_written_is_told_once_and_stops_nothing(tmp_path: Path) -> None:
    unwritable = file(tmp_path / "none" / "baselines.json")
    with capture_logs() as lines:
        unwritable.write(KNOWN)
        unwritable.write(KNOWN)
    assert len(lines) == 1


def test_it_is_written_once_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = file(tmp_path / "baselines.json")
    assert not one.is_due()
    monkeypatch.setattr(baseline_file, "WRITE_SECONDS", 0.0)
    assert one.is_due()


@pytest.fixture
def hanging_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """A disk on which no write ends during the test; the list has the paths of those that were begun."""
    begun: list[Path] = []
    released = threading.Event()

    def replace(path: Path, _: bytes) -> None:
        begun.append(path)
        released.wait()

    monkeypatch.setattr(baseline_file, "_replace", replace)
    monkeypatch.setattr(baseline_file, "WRITE_SECONDS", 0.0)
    monkeypatch.setattr(baseline_file, "LAST_WRITE_SECONDS", 0.05)
    yield begun
    released.set()


async def test_a_disk_that_hangs_holds_up_neither_the_snapshots_nor_the_end(
    tmp_path: Path, hanging_disk: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvpressure.daemon.exporter.TICK_SECONDS", 0.01)
    path = tmp_path / "baselines.json"
    path.write_bytes(text_of(KNOWN, SystemClock().wall()))
    settings = Settings(baseline_file=path)
    daemon = Daemon(Loaded(settings, load_thresholds()), lambda: settings, lambda *_: ())
    running = asyncio.create_task(daemon.run())
    async with asyncio.timeout(30):
        seen = set()
        while len(seen) < 5 or not hanging_disk:
            seen.add(daemon.snapshot().t)
            await asyncio.sleep(0.01)
        running.cancel()
        with capture_logs() as lines, pytest.raises(asyncio.CancelledError):
            await running
    assert len(hanging_disk) == 1, "no second write beside the one that hangs"
    assert [line["event"] for line in lines if "baselines" in line["event"]] == [
        "baselines are not written: the disk hangs"
    ]


async def test_the_end_writes_what_is_known_then(tmp_path: Path) -> None:
    one = file(tmp_path / "baselines.json")
    one.begin_write({EngineKey("t", "m", "1"): KNOWN[KEY]})
    await one.end(KNOWN)
    assert one.read() == KNOWN


def test_an_engine_goes_on_from_what_was_known_of_it_and_no_other_does() -> None:
    before = Pipeline(PipelineSettings(), load_thresholds())
    before.restore_baselines(KNOWN)
    for name in ("chat/vllm-0:8000", "chat/vllm-1:8000"):
        page = EnginePage(t=NOW, engines=(EngineSample("m", "0", {"running": 1.0, "waiting": 0.0}, {}),))
        before.on_page(Target(name=name, url=f"http://{name}"), page)
    assert before.baselines() == KNOWN


def test_one_engine_that_cannot_be_kept_does_not_cost_the_others(tmp_path: Path) -> None:
    healthy_for_months = {"e2e": (2.5, 4e7), "batch": (1e9, 300.0)}
    odd = {KEY: healthy_for_months, EngineKey("t", "m" * 2000, "0"): KNOWN[KEY], EngineKey("t", "m", "1"): KNOWN[KEY]}
    file(tmp_path / "baselines.json").write(odd)
    read = file(tmp_path / "baselines.json").read()
    assert read == {KEY: {"e2e": (2.5, baseline_file.MAX_VALUE)}, EngineKey("t", "m", "1"): KNOWN[KEY]}


def test_what_was_restored_waits_a_day_for_an_engine_that_is_away() -> None:
    pipeline = Pipeline(PipelineSettings(), load_thresholds())
    pipeline.restore_baselines(KNOWN)
    pipeline.expire(NOW)
    assert pipeline.baselines() == KNOWN
    pipeline.expire(NOW + RESTORED_SECONDS + 1)
    assert pipeline.baselines() == {}

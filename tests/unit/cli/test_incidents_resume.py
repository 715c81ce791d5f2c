"""A --resume file that is not what `incidents` wrote: one sentence and exit code 2, whatever was done to it."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpressure.cli import main
from kvpressure.printable import clean
from kvpressure.tools.incidents import words
from kvpressure.tools.incidents.files import as_html, as_markdown
from kvpressure.tools.incidents.journal import LARGEST_BYTES, LONGEST_LINE_BYTES, read_target
from tests.support.fake_fleet import SPAN, fleet
from tests.support.fake_prometheus import FakePrometheus
from tests.support.past_incidents import document, incidents

pytestmark = pytest.mark.process

PLAIN = {"namespace": "prod", "pod": "a", "instance": "a:8000", "model_name": "m", "engine": "0"}
Lines = list[bytes]


def look(url: str, path: Path, *more: str) -> Result:
    return CliRunner().invoke(main, ["incidents", "--prometheus", url, *SPAN, "--resume", str(path), *more])


def one_sentence(answer: Result) -> None:
    assert (answer.exit_code, answer.stdout) == (2, ""), (answer.output, answer.exception)
    (line,) = answer.stderr.splitlines()
    assert line.startswith("incidents: ")
    assert ("; " in line, len(line) < 600, clean(line) == line) == (True, True, True), line


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with FakePrometheus(fleet(PLAIN)) as server:
        yield server.url


@pytest.fixture(scope="module")
def written(url: str, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("written") / "journal"
    assert look(url, path).exit_code == 1
    return path.read_bytes()


def signed(rows: Sequence[tuple[bytes, bytes]]) -> bytes:
    """As somebody writes it who knows how the digests are made."""
    digest, lines = b"", []
    for key, value in rows:
        digest = blake2b(b"\t".join((digest, key, value)), digest_size=16).hexdigest().encode()
        lines.append(b"\t".join((digest, key, value)) + b"\n")
    return b"".join(lines)


def rows_of(content: bytes) -> list[tuple[bytes, bytes]]:
    return [tuple(line.split(b"\t")[1:]) for line in content.splitlines()]  # type: ignore[misc]


DAMAGES: dict[str, Callable[[Lines], Lines]] = {
    "line dropped": lambda lines: lines[:3] + lines[4:],
    "first line dropped": lambda lines: lines[1:],
    "lines swapped": lambda lines: [lines[0], lines[2], lines[1], *lines[3:]],
    "line twice": lambda lines: [*lines[:2], lines[1], *lines[2:]],
    "empty line": lambda lines: [*lines[:2], b"\n", *lines[2:]],
    "first line cut": lambda lines: [lines[0][:50]],
    "middle line cut": lambda lines: [*lines[:3], lines[3][:40] + b"\n", *lines[4:]],
    "version 1": lambda _: [b'{"version":1,"asked":{}}\n'],
    "nested": lambda lines: [*lines[:1], b"[" * 1_000_000 + b"\n"],
    "binary": lambda lines: [*lines, bytes(range(256)) + b"\n"],
    "zeros": lambda lines: [*lines, b"\0" * 4096 + b"\n"],
    "not ours": lambda _: [b"hello\n"],
    "another file behind": lambda lines: [*lines, *lines],
    "a line too long": lambda lines: [*lines, b"a" * (LONGEST_LINE_BYTES + 1)],
    **{
        f"byte of line {number} changed": lambda lines, n=number: [  # type: ignore[misc]
            *lines[:n],
            lines[n][:60] + bytes([lines[n][60] ^ 1]) + lines[n][61:],
            *lines[n + 1 :],
        ]
        for number in range(12)
    },
}


@pytest.mark.fault(
    "a line of a --resume file was changed, cut, dropped or moved", "one error message and exit code 2, and no report"
)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_was_damaged_is_refused(damage: str, url: str, written: bytes, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    content = b"".join(DAMAGES[damage](written.splitlines(keepends=True)))
    path.write_bytes(content)
    one_sentence(look(url, path))
    assert path.read_bytes() == content


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_whichever_byte_is_changed_it_is_noticed(
    data: st.DataObject, url: str, written: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = data.draw(st.integers(0, len(written) - 2))
    changed = data.draw(st.integers(0, 255).filter(lambda byte: byte != written[place]))
    path = tmp_path_factory.mktemp("changed") / "journal"
    path.write_bytes(written[:place] + bytes([changed]) + written[place + 1 :])
    one_sentence(look(url, path))


WRONG = ("null", "true", "[]", "{}", '""', '"x"', "-1", "0.5", "1e300", "9" * 5000, "NaN", "[" * 5000, '[[["a"]]]', "{")


@pytest.mark.parametrize("wrong", WRONG)
def test_a_piece_that_is_something_else_is_refused_or_told_of_as_it_is(
    wrong: str, url: str, written: bytes, tmp_path: Path
) -> None:
    rows = rows_of(written)
    for place, (key, value) in enumerate(rows):
        if value == wrong.encode() or (wrong == "[]" and place and not key.startswith(b'["target')):
            continue  # that nothing was found is a piece like others
        path = tmp_path / f"journal{place}"
        path.write_bytes(signed([*rows[:place], (key, wrong.encode()), *rows[place + 1 :]]))
        one_sentence(look(url, path))


def leaves(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if place:
        yield place
    if isinstance(value, dict):
        for name, one in value.items():
            yield from leaves(one, (*place, name))
    if isinstance(value, list):
        for number, one in enumerate(value[:2]):
            yield from leaves(one, (*place, number))


@cache
def piece() -> dict[str, Any]:
    """What a target came to, as it is remembered."""
    return {
        "incidents": [json.loads(json.dumps(incidents()[0]))],
        "others": [],
        "unjudged": [{"target": "t", "model_name": "m", "engine": "0", "detail": None, "seconds": 1.0}],
        "samples": 1,
        "unread": "",
        "warnings": [],
    }


VALUES = (None, True, "x", "\x1b[2J\n|<b>", -1, 1e300, 10**18, [], {}, [[]], {"a": None}, "kv_cache_pressure")
DROP = object()


def altered(place: tuple[Any, ...], value: Any) -> dict[str, Any]:
    found: Any = copy.deepcopy(piece())
    inner = found
    for step in place[:-1]:
        inner = inner[step]
    if value is DROP:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return dict(found)


def test_every_field_of_a_target_that_is_altered_is_refused_or_can_be_told_of() -> None:
    refused = told = 0
    for place in leaves(piece()):
        for value in (*VALUES, DROP):
            try:
                found = read_target(1)(altered(place, value))
            except ValueError:
                refused += 1
                continue
            told += 1
            whole = {**document(), "incidents": found["incidents"], "unjudged": found["unjudged"]}
            lines = [*words.summary(whole), *(line for one in whole["incidents"] for line in words.lines(one))]
            # A page takes longer than all the rest, and one of ten is of each kind of value.
            page, report = as_html(whole) if told % 10 == 0 else "", as_markdown(whole)
            assert lines
            assert "\x1b" not in page + report
            json.dumps(whole, allow_nan=False)
    assert (refused > 1500, told > 100) == (True, True), (refused, told)


def test_what_is_read_back_is_cleaned(url: str, written: bytes, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    rows = [(key, value.replace(b'"grounds":"', b'"grounds":"\\u001b[2J\\n')) for key, value in rows_of(written)]
    path.write_bytes(signed(rows))
    answer = look(url, path)
    assert (answer.exit_code, "?[2J" in answer.stdout, "\x1b" in answer.stdout) == (1, True, False)


@pytest.mark.fault("an endless --resume file", "it is refused before it is read, at 64 MiB")
def test_a_file_that_is_too_large_is_refused_unread(url: str, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with path.open("wb") as file:
        file.truncate(LARGEST_BYTES + 1)
    one_sentence(look(url, path))


@pytest.mark.fault("a --resume file of nested lists, with valid digests", "memory is bounded by its length")
def test_a_file_of_nested_lists_takes_little_memory(url: str, written: bytes, tmp_path: Path) -> None:
    path = tmp_path / "journal"
    rows = rows_of(written)
    bomb = b"[" + b"[]," * 2_600_000 + b"[]]"
    path.write_bytes(signed([rows[0], *((key, bomb) for key, _ in rows[1:8])]))
    arguments = ["incidents", "--prometheus", url, *SPAN, "--resume", str(path)]
    # A process of its own between them: what other tests' commands took is not counted.
    done = subprocess.run(
        [sys.executable, "-c", _PEAK_OF_COMMAND, *arguments], capture_output=True, text=True, check=False, timeout=120
    )
    peak_kib = int(done.stdout.splitlines()[-1])
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert peak_kib * 1024 < 8 * LARGEST_BYTES


_PEAK_OF_COMMAND = """
import resource, subprocess, sys
done = subprocess.run([sys.executable, "-m", "kvpressure", *sys.argv[1:]])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(done.returncode)
"""


@pytest.mark.fault("an output file of `incidents` is a symbolic link", "it is not followed, with an error message")
@pytest.mark.parametrize("option", ["--html", "--markdown", "--resume"])
def test_no_file_is_written_through_a_link(option: str, url: str, tmp_path: Path) -> None:
    other, link = tmp_path / "other", tmp_path / "link"
    other.write_text("kept")
    link.symlink_to(other)
    answer = CliRunner().invoke(main, ["incidents", "--prometheus", url, *SPAN, option, str(link)])
    assert answer.exit_code == 2
    assert "it is a symbolic link, which is not followed; name the file itself" in answer.stderr
    assert other.read_text() == "kept"

"""Lines as container runtimes write them: any pieces, any chunks, the same text."""

import itertools
import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvpressure.sources.logs.classify import telling_lines
from kvpressure.sources.logs.lines import MAX_RAW_BYTES, MAX_TEXT_BYTES, Assembler, Line
from tests.support.log_kinds import classify

STAMP = "2024-01-01T00:00:00.123456789Z"
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\n\r"), min_size=1, max_size=40)
TELLING = ("torch.OutOfMemoryError: CUDA out of memory.", "GPU KV cache size: 12,345 tokens", "ordinary")


def assembled(data: bytes, sizes: list[int], assembler: Assembler | None = None) -> list[Line]:
    """The lines of `data`, fed in chunks of these sizes over and over."""
    assembler = assembler or Assembler()
    found, at = [], 0
    for size in itertools.cycle(sizes or [len(data) or 1]):
        if at >= len(data):
            break
        found += assembler.feed(data[at : at + size])
        at += size
    return found


def cri(text: str, cuts: list[int], stream: str = "stdout") -> bytes:
    """One line as the CRI logs it, cut into pieces at these places (bytes: also inside a character)."""
    raw = text.encode()
    edges = sorted({0, len(raw), *(min(cut, len(raw)) for cut in cuts)})
    pieces = [raw[a:b] for a, b in itertools.pairwise(edges)] or [b""]
    tags = ["P"] * (len(pieces) - 1) + ["F"]
    return b"".join(
        f"{STAMP} {stream} {tag} ".encode() + piece + b"\n" for tag, piece in zip(tags, pieces, strict=True)
    )


def docker(text: str, cuts: list[int]) -> bytes:
    edges = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    pieces = [text[a:b] for a, b in itertools.pairwise(edges)] or [""]
    pieces[-1] += "\n"
    return b"".join(
        json.dumps({"log": piece, "stream": "stdout", "time": STAMP}, separators=(",", ":")).encode() + b"\n"
        for piece in pieces
    )


@given(st.lists(st.tuples(TEXT, st.lists(st.integers(1, 60), max_size=4)), max_size=6), st.lists(st.integers(1, 50)))
def test_any_split_into_partial_lines_and_chunks_gives_the_same_lines(lines: list, sizes: list[int]):
    data = b"".join(cri(text, cuts) for text, cuts in lines)
    assert [(line.text, line.stamp) for line in assembled(data, sizes)] == [(text, STAMP) for text, _ in lines]


@given(st.lists(st.tuples(TEXT, st.lists(st.integers(1, 60), max_size=3)), max_size=5), st.lists(st.integers(1, 50)))
def test_docker_pieces_are_joined_too(lines: list, sizes: list[int]):
    data = b"".join(docker(text, cuts) for text, cuts in lines)
    assert [line.text for line in assembled(data, sizes)] == [text for text, _ in lines]


@given(
    st.lists(st.tuples(st.sampled_from(TELLING), st.lists(st.integers(1, 40), max_size=3)), max_size=6),
    st.lists(st.integers(1, 90)),
    st.sampled_from([cri, docker]),
)
@example([("torch.OutOfMemoryError: CUDA out of memory.", [5, 33])], [], cri)
def test_skimming_loses_no_line_that_tells_however_it_is_cut(lines: list, sizes: list[int], wrap):
    data = b"".join(wrap(text, cuts) for text, cuts in lines)
    texts = [line.text for line in assembled(data, sizes, Assembler(telling_lines)) if classify(line.text)]
    assert texts == [text for text, _ in lines if text != "ordinary"]


@given(st.binary(max_size=2000), st.lists(st.integers(1, 300), min_size=1), st.lists(st.integers(1, 300), min_size=1))
def test_any_bytes_give_the_same_lines_in_any_chunks(data: bytes, first: list[int], second: list[int]):
    assert assembled(data, first) == assembled(data, second)


@pytest.mark.parametrize("chunk", [1000, MAX_RAW_BYTES, 10 * MAX_RAW_BYTES])
def test_the_rest_of_an_endless_line_is_dropped_and_never_read_as_a_line(chunk: int):
    endless = b"x" * (2 * MAX_RAW_BYTES) + b" torch.OutOfMemoryError: CUDA out of memory"
    lines = assembled(endless + b"\nnext\n", [chunk])
    assert [len(line.text) for line in lines] == [MAX_TEXT_BYTES, 4]
    assert not classify(lines[0].text)


def test_endless_pieces_are_bounded():
    assembler = Assembler()
    for _ in range(50):
        assert not list(assembler.feed(f"{STAMP} stdout P {'y' * 4000}\n".encode()))
    (line,) = assembler.feed(f"{STAMP} stdout F end\n".encode())
    assert line.text == "y" * MAX_TEXT_BYTES


def test_the_two_streams_do_not_mix():
    data = (f"{STAMP} stdout P one \n{STAMP} stderr P three \n{STAMP} stdout F two\n{STAMP} stderr F four\n").encode()
    assert [line.text for line in assembled(data, [])] == ["one two", "three four"]


def test_after_a_gap_reading_begins_at_the_next_line():
    assembler = Assembler()
    list(assembler.feed(b"begun but"))
    assembler.cut()
    assert [line.text for line in assembler.feed(b"CUDA out of memory in the middle\nwhole\n")] == ["whole"]


@pytest.mark.parametrize("wrap", [cri, docker])
def test_the_end_of_a_prompt_whose_beginning_was_skipped_is_no_line(wrap):
    prompt = "Received request a: prompt: '" + "x" * 100 + " CUDA out of memory', params: None"
    data = wrap(prompt, [60, 120]) + wrap("EngineDeadError", [])
    for at in range(1, len(wrap(prompt, [60, 120]))):
        assembler = Assembler(telling_lines)
        assembler.cut()
        texts = [line.text for line in assembler.feed(data[at:]) if classify(line.text)]
        assert texts in ([], ["EngineDeadError"])


def test_the_last_words_count_without_a_newline():
    assembler = Assembler()
    assert not list(assembler.feed(b"Killed"))
    assert [line.text for line in assembler.end()] == ["Killed"]
    assert not list(assembler.end())


@pytest.mark.parametrize(
    ("stamp", "t"),
    [
        ("2024-01-01T00:00:00.500000000Z", 1704067200.5),
        ("2024-01-01T02:00:00+02:00", 1704067200.0),
        ("2024-13-01T00:00:00Z", None),
        ("", None),
    ],
)
def test_times_are_unix_seconds_or_not_known(stamp: str, t: float | None):
    assert Line("", stamp).t == t


@pytest.mark.parametrize("raw", [b'{"log":"cut sho', b'{"log":5', b'{"log":'])
def test_a_docker_line_that_is_cut_short_is_nothing(raw: bytes):
    assert assembled(raw + b"\n", []) == []

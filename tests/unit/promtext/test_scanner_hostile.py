"""Pages meant to hurt: bounded work, no crash, nothing remembered that a good page would pay for."""

import tracemalloc

import pytest

from kvpressure.engines.reader import PageReader
from kvpressure.promtext.lines import PageError
from kvpressure.promtext.scanner import MAX_LINES, PageScanner
from kvpressure.runtimes.vllm.metrics import VLLM
from tests.support.samples import read_samples

SIZE = 8 << 20
GOOD = b'vllm:num_requests_running{engine="0",model_name="m"} 3.0\n'
NAME = b"vllm:num_requests_running"


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        (b"a" * SIZE + b"\n", "not_metrics"),
        (NAME + b'{a="' + b"\\\\" * (SIZE // 2) + b'"} 1\n', "malformed"),
        (NAME + b"{" + b" " * SIZE + b"} 1\n", "malformed"),
        (NAME + b" " * SIZE + b"\n", "malformed"),
        (NAME + b" " + b"9" * SIZE + b"\n", "malformed"),
        (b" " * SIZE + b"\n", "not_metrics"),
        (b"# HELP " * (SIZE // 7) + b"\n", "not_metrics"),
        (b"\n# HELP " * (SIZE // 8) + b"\n", "too_large"),
        (b"a 1\n" * 1_000_000, "too_large"),
        (b"\n" * SIZE, "too_large"),
        (GOOD * (MAX_LINES + 1), "too_large"),
        (bytes(range(256)) * 1000 + b"\n", "not_metrics"),
        (b"a" * (MAX_LINES - 1) + b"\n", "not_metrics"),
    ],
)
def test_a_hostile_page_is_refused_by_name_before_and_after_good_ones(page: bytes, reason: str) -> None:
    reader = PageReader()
    for _ in range(2):
        with pytest.raises(PageError) as caught:
            reader.read(page, 0.0)
        assert caught.value.reason == reason
        assert len(str(caught.value)) < 600
        assert reader.read(GOOD, 0.0).engines[0].gauges == {"running": 3.0}


def test_a_good_page_in_front_of_junk_is_still_read() -> None:
    page = GOOD + b"junk{" + b"x" * SIZE + b"\n"
    assert PageReader().read(page, 0.0).engines[0].gauges == {"running": 3.0}


@pytest.mark.parametrize(
    ("first", "junk", "most_bytes"),
    [(b"\n", b"# HELP junk\n" * 100, 100_000), (GOOD, b"# HELP junk\njunk 1\n" * 10, 4_000_000)],
    ids=["nothing wanted: none", "something wanted: a few"],
)
def test_few_layouts_are_remembered(first: bytes, junk: bytes, most_bytes: int) -> None:
    scanner = PageScanner(VLLM.wanted(), len)
    tracemalloc.start()
    for size in range(1, 30):
        scanner.scan(first + junk * size)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < most_bytes


def test_a_page_that_is_no_longer_asked_for_is_forgotten_and_one_read_now_and_then_is_not() -> None:
    layouts: list[int] = []
    scanner = PageScanner(VLLM.wanted(), lambda series: layouts.append(len(series)))
    scanner.scan(GOOD + b"# HELP plain\nplain 1\n" * 100)
    for poll in range(50):
        scanner.scan(GOOD)
        if poll % 10 == 0:
            scanner.scan(GOOD + b"# HELP histograms\nhistograms 1\n")
    assert len(layouts) == len(scanner._layouts) + 1 == 3


def test_invalid_utf8_in_a_label_becomes_the_replacement_character() -> None:
    found, _ = read_samples(NAME + b'{model_name="\xff\xfe"} 1\n', VLLM.wanted())
    assert [one.labels for one in found] == [(("model_name", "\ufffd\ufffd"),)]

"""The scanner against prometheus_client's parser: same page, same values."""

import math
from collections.abc import Callable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families

from kvpressure.promtext.lines import PageError, Series
from kvpressure.promtext.scanner import PageScanner
from kvpressure.runtimes.vllm.metrics import POLL_NAMES, VLLM
from tests.support.pages import SINGLES, TRACES, filtered, oracle, single, trace
from tests.support.samples import read_samples

pytestmark = pytest.mark.exhaustive

NAMES = ("a", "ab", "a_total", "a:b", "abc_bucket", "other", "otherwise")
WANTED = frozenset({b"a", b"ab", b"a_total", b"a:b", b"abc_bucket"})
VALUES = (
    "0",
    "1",
    "-0",
    "1.0",
    "007",
    ".5",
    "5.",
    "1e-07",
    "1.5E+3",
    "+7",
    "NaN",
    "nan",
    "+Inf",
    "-Inf",
    "Inf",
    "1e999",
)
LABEL_CHARS = "ab{}#,=\"\\\n \t'\u00e9\u2028\U0001f600"


def same(left: Mapping[Series, float], right: Mapping[Series, float]) -> bool:
    """Whether two readings are equal, NaN being equal to NaN."""
    return left.keys() == right.keys() and all(
        value == right[one] or (math.isnan(value) and math.isnan(right[one])) for one, value in left.items()
    )


def escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


@st.composite
def labels(draw: st.DrawFn) -> str:
    found = draw(
        st.dictionaries(st.sampled_from(("x", "y", "le", "pid")), st.text(LABEL_CHARS, max_size=8), max_size=3)
    )
    raw = draw(st.sampled_from(("", "\\t", "\\a")))  # an escape that means nothing is kept as it is
    space = draw(st.sampled_from(("", " ")))
    terms = [f'{space}{name}{space}={space}"{raw}{escaped(value)}"{space}' for name, value in found.items()]
    trailing = draw(st.sampled_from(("", ","))) if terms else ""
    return draw(st.sampled_from(("", " "))) + "{" + ",".join(draw(st.permutations(terms))) + trailing + "}"


@st.composite
def samples(draw: st.DrawFn) -> str:
    name = draw(st.sampled_from(NAMES))
    braces = draw(st.one_of(st.just(""), labels()))
    space = draw(st.sampled_from((" ", "  ", "\t")))
    timestamp = draw(st.sampled_from(("", " 1700000000000", " -5")))
    exemplar = draw(st.sampled_from(("", ' # {trace_id="a b"} 1.0', " # {} 0.5 1700.5"))) if space != "\t" else ""
    if space == "\t":
        timestamp = ""
    return (
        draw(st.sampled_from(("", " ", "\t")))
        + name
        + braces
        + space
        + draw(st.sampled_from(VALUES))
        + timestamp
        + exemplar
    )


COMMENTS = st.one_of(
    st.sampled_from(("", "  ", "#", "# EOF", "# HELP a", "# HELP a what a 1 is", "# HELP other \\n a 1")),
    st.sampled_from(("# TYPE a gauge", "# TYPE abc histogram", "# TYPE other untyped", "\t# HELP ab x")),
    st.text("ab 1{}#", max_size=12).map("# ".__add__),
)
PAGES = st.builds(
    lambda lines, end, final: (end.join(lines) + (end if final else "")).encode(),
    st.lists(st.one_of(samples(), samples(), COMMENTS), max_size=12),
    st.sampled_from(("\n", "\n", "\r\n")),
    st.booleans(),
)


@settings(deadline=None, max_examples=600)
@given(PAGES)
def test_made_pages_read_as_the_oracle_reads_them(page: bytes) -> None:
    found, complete = read_samples(page, WANTED)
    assert same(found, oracle(page, WANTED))
    assert complete == page.endswith(b"\n")


@settings(deadline=None, max_examples=200)
@given(st.lists(PAGES, min_size=2, max_size=6))
def test_a_scanner_that_has_read_other_pages_reads_as_the_oracle_does(pages: list[bytes]) -> None:
    scanner = PageScanner(WANTED, lambda found: found)
    for page in pages:
        series, values = scanner.scan(page)
        assert same(dict(zip(series, values, strict=True)), oracle(page, WANTED))


@pytest.mark.parametrize("name", TRACES)
def test_recorded_pages_read_as_the_oracle_reads_them(name: str) -> None:
    scanner = PageScanner(VLLM.wanted(), lambda found: found)
    pages = trace(name)
    for page in pages if len(pages) < 24 else pages[:: len(pages) // 12]:
        series, values = scanner.scan(page)
        assert dict(zip(series, values, strict=True)) == oracle(page, VLLM.wanted())
        assert len(series) > 100


@pytest.mark.parametrize("name", SINGLES)
def test_recorded_multiprocess_pages_read_as_the_oracle_reads_them(name: str) -> None:
    found, complete = read_samples(single(name), VLLM.wanted())
    assert found == oracle(single(name), VLLM.wanted())
    assert complete
    assert len(found) > 100


def test_a_page_cut_at_any_byte_reads_as_the_oracle_reads_it_or_is_refused() -> None:
    page = filtered(trace("two-ranks")[-1], POLL_NAMES)
    refused = 0
    for end in range(0, len(page), 3):
        cut = page[:end]
        found = _or_none(lambda cut, wanted: read_samples(cut, wanted)[0], cut)
        expected = _or_none(oracle, cut)
        if expected is None:  # the oracle gives up on a cut comment too, which says nothing of the samples before it
            refused += 1
            assert found in (None, oracle(cut[: cut.rfind(b"\n") + 1], VLLM.wanted()))
        else:
            assert found == expected
    assert refused > 100


def _or_none(read: Callable[[bytes, frozenset[bytes]], dict[Series, float]], page: bytes) -> dict[Series, float] | None:
    try:
        return read(page, VLLM.wanted())
    except (PageError, ValueError):
        return None


def test_an_openmetrics_page_with_exemplars_reads_as_its_own_parser_reads_it() -> None:
    page = (
        b"# HELP abc Seconds.\n# TYPE abc histogram\n"
        b'abc_bucket{le="0.5"} 3 # {trace_id="x"} 0.43 1700.0\nabc_bucket{le="+Inf"} 4 # {trace_id="} 9 # "} 1.0\n'
        b"abc_count 4\nabc_sum 2.5\nabc_created 1.7e+09\n# TYPE a counter\na_total 17 # {} 1.0\n# EOF\n"
    )
    read = {
        Series(sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in openmetrics_families(page.decode())
        for sample in family.samples
        if sample.name.encode() in WANTED
    }
    assert read_samples(page, WANTED) == (read, True)
    assert len(read) == 3


def test_of_equal_series_the_last_one_counts_as_with_the_oracle() -> None:
    page = b'a{x="1",y="2"} 1\na{y="2",x="1"} 2\na{x="1",y="3"} 3\n'
    found, _ = read_samples(page, WANTED)
    assert found == oracle(page, WANTED)
    assert sorted(found.values()) == [2.0, 3.0]

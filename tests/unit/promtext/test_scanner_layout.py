"""A scanner that remembers must read every page as one that does not, whatever happened to the page in between."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvpressure.engines.reader import PageReader
from kvpressure.promtext.lines import PageError, Series
from kvpressure.promtext.scanner import PageScanner
from kvpressure.runtimes.vllm.metrics import ALL_NAMES, POLL_NAMES
from tests.support.pages import TRACES, filtered, trace

pytestmark = pytest.mark.exhaustive

WANTED = frozenset({b"w", b"w2", b"w_total", b"ns:w"})
HEADS = (
    *('w{r="0"} ', 'w{r="1"} ', 'w{r="10"} ', "w ", "w2 ", "w_total ", 'ns:w{m="a b",r="0"} ', " w2 "),
    *("u ", "u2 ", "ux{} ", "w_ ", "w_created ", "ns:wx ", "wx{w 1} "),
)
TAILS = ("0", "1.0", "2.5", "10", "1e+06", "NaN", "+Inf", "1 1700", "5 # {} 1", "1_0", "", "w 1", "1 w2", "\r", "1.0\r")
WHOLE = ("# TYPE w gauge", "#", "", " ", "5.0", "nan", "w", 'w{r="0"}', "{w} 1", "# HELP", "HELP w 1", "w{", "1 w 1")
LINES = st.one_of(
    st.builds(str.__add__, st.sampled_from(HEADS), st.sampled_from(TAILS[:6])),
    st.builds(str.__add__, st.sampled_from(HEADS), st.sampled_from(TAILS)),
    st.sampled_from(("# HELP w text", "# HELP u w 1", *WHOLE)),
)
START = ["# HELP w x", "# TYPE w gauge", 'w{r="0"} 1.0', 'w{r="1"} 1.0', "# HELP u x", "# TYPE u gauge", "u 1", "u2 1"]


def reading(scanner: PageScanner[tuple[Series, ...]], page: bytes) -> object:
    """Series and values in order, as text so that NaN equals NaN; or the reason why there are none."""
    try:
        series, values = scanner.scan(page)
    except PageError as error:
        return error.reason
    return [(*one, repr(value)) for one, value in zip(series, values, strict=True)]


def fresh() -> PageScanner[tuple[Series, ...]]:
    return PageScanner(WANTED, lambda found: found)


class RememberingScanner(RuleBasedStateMachine):
    """Edits a page between polls and compares the one long-lived scanner with a new one each time."""

    def __init__(self) -> None:
        super().__init__()
        self.lines = list(START)
        self.end = "\n"
        self.scanner = fresh()

    @rule(at=st.integers(0, 30), tail=st.sampled_from(TAILS))
    def change_value(self, at: int, tail: str) -> None:
        if self.lines:
            head, space, _ = self.lines[at % len(self.lines)].rpartition(" ")
            self.lines[at % len(self.lines)] = head + space + tail

    @rule(at=st.integers(0, 30), line=LINES)
    def insert(self, at: int, line: str) -> None:
        self.lines.insert(at % (len(self.lines) + 1), line)

    @rule(at=st.integers(0, 30), line=LINES)
    def replace(self, at: int, line: str) -> None:
        if self.lines:
            self.lines[at % len(self.lines)] = line

    @rule(at=st.integers(0, 30))
    def delete(self, at: int) -> None:
        if self.lines:
            del self.lines[at % len(self.lines)]

    @rule(one=st.integers(0, 30), other=st.integers(0, 30))
    def swap(self, one: int, other: int) -> None:
        if self.lines:
            one, other = one % len(self.lines), other % len(self.lines)
            self.lines[one], self.lines[other] = self.lines[other], self.lines[one]

    @rule(order=st.randoms(use_true_random=False))
    def shuffle(self, order: object) -> None:
        order.shuffle(self.lines)  # type: ignore[attr-defined]

    @rule(to=st.sampled_from(("0", "1", "10")))
    def rename_ranks(self, to: str) -> None:
        self.lines = [line.replace('r="0"', f'r="{to}"') for line in self.lines]

    @rule(end=st.sampled_from(("\n", "", "\r\n", "\n\n")))
    def end_otherwise(self, end: str) -> None:
        self.end = end

    @invariant()
    def reads_as_a_new_scanner_does(self) -> None:
        page = ("\n".join(self.lines) + self.end).encode()
        assert reading(self.scanner, page) == reading(fresh(), page)


RememberingScanner.TestCase.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)
TestRememberingScanner = RememberingScanner.TestCase


def scan_all(*pages: bytes) -> tuple[list[object], list[object]]:
    scanner = fresh()
    return [reading(scanner, page) for page in pages], [reading(fresh(), page) for page in pages]


@pytest.mark.parametrize(
    ("block", "old", "new"),
    [
        ("u_a 1\nu_b 1", "u_b 1", "w2  7"),
        ("u_a 1\nu_b 1", "u_a 1", "\tw2 7"),
        ("u_a 1\nu_b 1", "# TYPE x gauge", "w2 7"),
        ("u 1\nx 1", "u 1", "w 7"),
        (" u 1\n x 1", " u 1", " w 7"),
        ("w_a 1\nw_b 1", "w_a 1", "w_total 7"),
        ("w2x{} 1", "w2x{} 1", "w2{} 7"),
        ("w 1\nw2 1", "# TYPE x gauge", 'w{r="2"} 7.000'),
        ("w 1\nw2 1\nu 1", "# TYPE x gauge", "w_total 7"),
        ("w 1\nw2 1\nu 1", "u 1", "w_total 7"),
    ],
)
def test_a_wanted_line_in_place_of_another_is_seen(block: str, old: str, new: str) -> None:
    page = f"# HELP x first\nx 1\n# HELP x y\n# TYPE x gauge\n{block}\n# HELP w x\nw 1\n"
    changed = page.replace(old, new, 1)
    remembered, anew = scan_all(page.encode(), changed.encode())
    assert remembered == anew
    assert any(str(found).count("7.0") for found in anew[1:])


def test_a_bare_number_where_a_series_was_is_never_its_value() -> None:
    page = b"# HELP w x\n# TYPE w gauge\nw 1\nw2 2\n"
    remembered, new = scan_all(page, page.replace(b"w2 2", b"9999"), page.replace(b"w 1\nw2 2", b"w2 2\nw 1"))
    assert remembered == new
    assert new[1] == [("w", (), "1.0")]


def test_a_refused_page_leaves_none_of_its_values_behind() -> None:
    page = b"# HELP w x\nw 1\n# HELP w2 x\nw2 1\n"
    remembered, new = scan_all(page, b"# HELP w x\nw 7\n# HELP w2 x\nw2 oops\n", page)
    assert remembered == new
    assert new == [new[0], "malformed", new[0]]


def test_pages_of_several_servers_in_any_order_read_as_new_ones() -> None:
    reader = PageReader()
    for step in range(8):
        for name in TRACES:
            page = trace(name)[step]
            for shown in (page, filtered(page, POLL_NAMES), filtered(page, ALL_NAMES)) if step < 2 else (page,):
                assert reader.read(shown, 1.0) == PageReader().read(shown, 1.0)

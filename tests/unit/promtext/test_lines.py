"""One line at a time: what is a sample, and what is refused."""

import math

import pytest

from kvpressure.promtext.lines import MAX_LINE_BYTES, PageError, Series, parse_line

WANTED = frozenset({b"up", b"ns:x_total"})


@pytest.mark.parametrize(
    ("line", "labels", "value"),
    [
        (b"up 1", {}, 1.0),
        (b"\t up  1.5e+03 ", {}, 1500.0),
        (b"up 1\r", {}, 1.0),
        (b"up{} 1", {}, 1.0),
        (b'up{a="1"}1', {"a": "1"}, 1.0),
        (b'up {a = "1" , b="2",} -Inf 1700000000000', {"a": "1", "b": "2"}, -math.inf),
        (b'up{b="} # { up 1",a="x\\"y\\\\\\nz"} 7', {"a": 'x"y\\\nz', "b": "} # { up 1"}, 7.0),
        (b'up{a="1"} 5 # {trace_id="x y"} 1.0 1700', {"a": "1"}, 5.0),
        (b'up 5 1700 # {trace_id="x"} 1.0', {}, 5.0),
        (b'up{a="\xff"} 1', {"a": "\ufffd"}, 1.0),
        (b'up{a="\xc3\xa9\\t"} 1', {"a": "\u00e9\\t"}, 1.0),
    ],
)
def test_a_wanted_sample_yields_its_series_and_value(line: bytes, labels: dict[str, str], value: float) -> None:
    parsed = parse_line(line, WANTED)
    assert (parsed.series, parsed.value) == (Series("up", tuple(sorted(labels.items()))), value)
    assert parsed.head is not None
    assert float(line.removeprefix(parsed.head).split()[0]) == value


@pytest.mark.parametrize(
    "line",
    [
        b"up",
        b"up ",
        b"up{",
        b"up{}",
        b"up-1",
        b"up one",
        b"up 1_0",
        b"up 1 2 3",
        b"up 1 yesterday",
        b'up{a="1} 1',
        b'up{a="1"',
        b'up{a="1"b="2"} 1',
        b'up{a="1",a="2"} 1',
        b"up{a=1} 1",
        b'up{="1"} 1',
        b'up{a="1"} # {trace_id="x"} 1.0',
    ],
)
def test_a_wanted_line_that_is_no_sample_is_an_error_never_a_value(line: bytes) -> None:
    with pytest.raises(PageError, match="should be a sample") as caught:
        parse_line(line, WANTED)
    assert caught.value.reason == "malformed"


@pytest.mark.parametrize(
    ("line", "head"),
    [
        (b"# HELP up says up 1", b"#"),
        (b" \t# comment", b" \t#"),
        (b'{"up"} 1', b"{"),
        (b"upper 1", b"upper "),
        (b'u{a="1} broken', b"u{"),
        (b"u 1_0", b"u "),
        (b"ns:x_totally 1", b"ns:x_totally "),
        (b"", None),
        (b"  \r", None),
        (b"up\xc3\xa9 1", None),
        (b"1up 1", None),
        (b"u", None),
    ],
)
def test_a_line_that_is_not_wanted_is_only_classified(line: bytes, head: bytes | None) -> None:
    if line.startswith(b"up\xc3"):
        with pytest.raises(PageError):
            parse_line(line, WANTED)
        line = line.removeprefix(b"up")
    assert parse_line(line, WANTED) == (head, None, 0.0)


def test_an_endless_wanted_line_is_refused_and_an_endless_other_line_ignored() -> None:
    label = b'{a="' + b"\\\\" * MAX_LINE_BYTES + b'"} 1'
    assert parse_line(b"down" + label, WANTED).head == b"down{"
    with pytest.raises(PageError):
        parse_line(b"up" + label, WANTED)

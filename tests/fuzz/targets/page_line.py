"""One sample line against prometheus_client's parser: where both read it, they read the same."""

from collections.abc import Iterator
from random import Random

from prometheus_client.parser import text_string_to_metric_families

from kvpressure.promtext.lines import PageError, parse_line
from tests.fuzz.pages import NUMBERS, WANTED, line, same_value
from tests.fuzz.target import Target, expect
from tests.support.pages import SINGLES, single

_BARE = frozenset[bytes]()


def check(data: bytes) -> tuple[object, ...]:
    """A line that is not asked for is never wrong; one that is asked for is what the oracle reads."""
    text = data.replace(b"\n", b" ")
    unasked = parse_line(text, _BARE)
    expect(unasked.series is None, "a line that nobody asked for became a series", text)
    try:
        found = parse_line(text, WANTED)
    except PageError as error:
        expect(error.reason == "malformed" and len(str(error)) < 1000, "another refusal than malformed", str(error))
        return ("refused",)
    expect(found.head is None or text.startswith(found.head), "a head that the line does not begin with", text)
    if found.series is None:
        return ("none", found.head is None)
    samples = list(_oracle(text))
    if len(samples) == 1 and samples[0][0] == found.series.name:
        _, labels, value = samples[0]
        expect(labels == found.series.labels, "labels differ from the oracle's", (text, labels, found.series.labels))
        expect(same_value(value, found.value), "the value differs from the oracle's", (text, value, found.value))
    return ("sample", len(found.series.labels), len(samples), found.value != found.value, found.value < 0)


def _oracle(text: bytes) -> Iterator[tuple[str, tuple[tuple[str, str], ...], float]]:
    try:
        for family in text_string_to_metric_families(text.decode("utf-8", "replace")):
            for sample in family.samples:
                yield sample.name, tuple(sorted(sample.labels.items())), float(sample.value)
    except Exception:  # noqa: BLE001 - the oracle's own faults are not ours
        return


def make(random: Random) -> bytes:
    """A line of the text format."""
    return line(random)


def seeds() -> list[bytes]:
    """Lines of recorded pages."""
    found = [one for name in SINGLES for one in single(name).split(b"\n")]
    return [one[:1000] for one in found[:: max(1, len(found) // 200)]]


TARGET = Target(
    about="one line of a /metrics page, with prometheus_client as the oracle",
    make=make,
    check=check,
    seeds=seeds,
    words=(*NUMBERS, *sorted(WANTED), b'{le="0.5"}', b'",', b'="', b" # {", b"\\n", b'\\"', b"# HELP ", b"# TYPE "),
    longest_bytes=1500,
)

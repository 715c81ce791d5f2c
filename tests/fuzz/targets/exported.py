"""Server metrics in other tools' files: pages with finite times, or errors, each series on a line of its own."""

import json
import math
from random import Random
from typing import Any

from kvpressure.engines.recordings import TraceError, TraceLine, read_trace
from kvpressure.promtext.lines import PageError, parse_line
from tests.fuzz.target import Target, expect
from tests.fuzz.yamls import altered, file

_NAMES = (
    "vllm:num_requests_running",
    '{__name__="vllm:kv_cache_usage_perc", instance="a:1"}',
    'vllm:request_success_total{pod="p", finished_reason="stop"}',
    'vllm:e2e_request_latency_seconds_bucket{le="+Inf"}',
    "Running",
)
_CELLS = ("0", "1", "0.5", "", "NaN", "1e999", "12%", '"3"', "1800000000000", "2027-01-15 08:00:00")


def check(data: bytes) -> tuple[object, ...]:
    """Lines or errors in their order, an end, and series that the page's own parser reads."""
    found: list[TraceLine | TraceError] = []
    try:
        for one in read_trace(file("exported.csv", data)):
            found.append(one)  # noqa: PERF402 - what came before an error counts
    except TraceError as error:
        expect(len(str(error)) < 1000, "an error without an end", str(error))
        return ("refused", len(found).bit_length(), str(error).partition(": ")[2][:30])
    lines = [one for one in found if isinstance(one, TraceLine)]
    expect([line.number for line in lines] == sorted(line.number for line in lines), "lines out of order")
    for line in lines:
        expect(math.isfinite(line.t) and line.t >= 0, "a time that is none", line.t)
        expect(len(line.source) < 200, "a server's name without an end", line.source)
        if line.source and data.lstrip(b"\xef\xbb\xbf")[:1] != b"{":
            _readable(line.page)
    return (len(lines).bit_length(), (len(found) - len(lines)).bit_length(), len({line.source for line in lines}))


def _readable(page: bytes) -> None:
    for line in filter(None, page.split(b"\n")):
        name = line.partition(b"{")[0].partition(b" ")[0]
        try:
            parsed = parse_line(line, frozenset({name}))
        except PageError as error:
            raise AssertionError(f"a series that cannot be read: {line!r}: {error}") from error
        expect(parsed.series is not None, "a series without a name", line)


def make(random: Random) -> bytes:
    """Scrapes of aiperf, or a table of Grafana's."""
    if random.getrandbits(1):
        sample: dict[str, Any] = {"labels": {"engine": "0"}, "value": 1.0}
        bins: dict[str, Any] = {"buckets": {"0.3": 1.0, "+Inf": 2.0}, "sum": 1.0, "count": 2.0}
        metrics = {"vllm:num_requests_running": [sample], "vllm:request_queue_time_seconds": [bins]}
        line = {"endpoint_url": "http://a:1/metrics", "timestamp_ns": 1800000000 * 10**9, "metrics": metrics}
        return "\n".join(json.dumps(altered(random, line)) for _ in range(1 + random.getrandbits(1))).encode()
    mark = random.choice(",;\t")
    titles = ['"' + random.choice(_NAMES).replace('"', '""') + '"' for _ in range(1 + random.getrandbits(2))]
    rows = [random.choice(("", f"sep={mark}")), mark.join(("Time", *titles))]
    rows += [mark.join(random.choice(_CELLS) for _ in range(len(titles) + 1)) for _ in range(random.getrandbits(2))]
    return "\r\n".join(row for row in rows if row).encode()


TARGET = Target(
    about="server metrics in files of aiperf and Grafana",
    make=make,
    check=check,
    words=(b"Time,", b"sep=;", b'"timestamp_ns":', b'"metrics":', b'"buckets":', b"__name__=", b'""', b"1e999", b"NaN"),
    longest_bytes=3000,
)

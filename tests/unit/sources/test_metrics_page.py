"""Pages of metrics of others, read whole and bounded: what is wrong with one is said, with its address."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from yarl import URL

from kvpressure.config.settings.polling import ClientSettings
from kvpressure.model.errors import NotMetricsError, SourceError
from kvpressure.net.budget import Budget
from kvpressure.net.schedule import SystemClock
from kvpressure.promtext.lines import Series
from kvpressure.sources.metrics_page import MAX_BYTES, MetricsPage
from tests.support import servers
from tests.support.servers import FaultServer


def total(series: Sequence[Series], values: Sequence[float], t: float) -> float:
    assert t > 0
    if not series:
        raise NotMetricsError("nothing here")
    return sum(values)


async def read(body: bytes) -> float:
    async with FaultServer(servers.page(body)) as server:
        url, share = URL(server.url + "/metrics"), Budget().share("x")
        page = MetricsPage(url, ClientSettings(), frozenset({b"a", b"b"}), total, share, SystemClock())
        try:
            return (await page.read(5.0))[1]
        finally:
            await page.aclose()


@pytest.mark.parametrize("more", [0, 40_000])
async def test_named_series_are_read_once_each_whatever_the_length(more: int):
    assert await read(b'a 1\nb{x="1"} 2\nb{x="2"} 3\na 1\nc 9\n' + b"# more\n" * more) == 6


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not_metrics"),
        (b"c 1\n", "not_metrics"),
        (b"a one\n", "malformed"),
        (b"a 1\nb 2", "truncated"),
        (b"#" * (MAX_BYTES + 1), "too_large"),
        (b"a one\n" + b"# more\n" * 40_000, "malformed"),
    ],
)
async def test_what_cannot_be_read_is_said_with_its_address(body: bytes, reason: str):
    with pytest.raises(SourceError, match=r"/metrics") as caught:
        await read(body)
    assert caught.value.reason == reason

"""`name[]`: used where it is honoured, given up where it is not, tried again when the server may be another one."""

import asyncio

import pytest

from kvpressure.config.settings import PollSettings
from kvpressure.engines.engine import EngineSource, PollNames
from kvpressure.engines.name_filter import Mode, page_urls, restarted
from kvpressure.engines.reader import PageReader
from kvpressure.model.errors import SourceError
from kvpressure.model.samples import EnginePage, EngineSample
from kvpressure.runtimes.vllm.metrics import ALL_NAMES, POLL_NAMES
from tests.support import servers
from tests.support.engine_kit import GOOD_PAGE, NAMES, Target, VirtualClock, source_for
from tests.support.servers import Behaviour, FaultServer, Replay, Request
from tests.support.tools import FIXTURES

pytestmark = pytest.mark.recorded

OPTIONS = PollSettings(timeout_seconds=5.0)
TRACES = FIXTURES / "traces"
FULL = "/metrics/"
PLAIN = "/metrics"


def split(filtered: Behaviour, plain: Behaviour) -> Behaviour:
    """A server that treats the filtered address and the plain one differently."""

    async def behave(request: Request, writer: asyncio.StreamWriter) -> None:
        await (filtered if request.path.endswith("/") else plain)(request, writer)

    return behave


def page(tokens: float = 5.0, started: float | None = None) -> Behaviour:
    start = f"process_start_time_seconds {started}\n".encode() if started else b""
    return servers.page(GOOD_PAGE.replace(b" 5.0", f" {tokens}".encode()) + start)


async def poll(source: EngineSource, server: FaultServer) -> list[str]:
    """The paths that one successful poll asked for."""
    before = len(server.requests)
    assert await source.poll() is not None, source.health().error
    return [request.path for request in server.requests[before:]]


DISHONOURING = {
    "404": servers.error("404 Not Found"),
    "405": servers.error("405 Method Not Allowed"),
    "400": servers.error("400 Bad Request"),
    "500": servers.error(),
    "redirect to the plain path": servers.redirect("/metrics"),
    "empty 200": servers.empty(),
    "a 200 without known names": servers.page(b"# HELP python_info x\npython_info 1.0\n"),
    "only the process's own names": servers.page(b"process_start_time_seconds 1.7e9\n"),
    "a web page": servers.html(),
    "a hang": servers.hangs,
    "a closed connection": servers.closes_at_once(),
}


@pytest.mark.parametrize("filtered", DISHONOURING.values(), ids=DISHONOURING)
async def test_a_server_that_does_not_honour_names_costs_no_poll_and_is_remembered(filtered: Behaviour):
    async with FaultServer(split(filtered, page())) as server:
        source = source_for(server, PollSettings(timeout_seconds=0.5))
        assert await poll(source, server) == [PLAIN]
        assert await poll(source, server) in ([FULL, PLAIN], [FULL, FULL, PLAIN])  # a closed connection is tried again
        assert source._filter.mode is Mode.IGNORED
        for _ in range(3):
            assert await poll(source, server) == [PLAIN]
        assert source.health().errors == {}
        await source.aclose()


async def test_the_plain_page_comes_first_and_a_server_that_honours_names_is_not_asked_for_it_again():
    async with FaultServer(page()) as server:
        source = await honoured(server)
        server.behaviour = split(page(), servers.error())
        for _ in range(3):
            assert await poll(source, server) == [FULL]
        await source.aclose()


async def honoured(server: FaultServer, clock: VirtualClock | None = None) -> EngineSource:
    """A source that has found out that names are honoured."""
    source = source_for(server, OPTIONS, clock)
    assert await poll(source, server) == [PLAIN]
    assert await poll(source, server) == [FULL]
    assert source._filter.mode is Mode.HONOURED
    return source


async def test_histograms_are_asked_for_first_and_then_every_sixth_second():
    clock = VirtualClock()
    async with FaultServer(page()) as server:
        source = source_for(server, OPTIONS, clock)
        for n in range(14):
            await poll(source, server)
            clock.now += 1.0 + (0.01 if n % 2 else -0.01)
        await source.aclose()
    asked = [request.names for request in server.requests]
    assert [n for n, names in enumerate(asked) if names in ((), NAMES.full)] == [0, 6, 12]
    assert asked.count(NAMES.poll) == 11


async def test_histograms_that_could_not_be_fetched_are_asked_for_again_at_the_next_poll():
    clock = VirtualClock()
    async with FaultServer(page()) as server:
        source = await honoured(server, clock)
        clock.now += 6
        server.behaviour = servers.error("503 Service Unavailable")
        assert await source.poll() is None
        server.behaviour = page()
        await poll(source, server)
        await source.aclose()
    assert [request.names for request in server.requests[-2:]] == [NAMES.full, NAMES.full]


async def test_a_server_that_stops_honouring_names_is_followed_within_the_same_poll():
    async with FaultServer(page()) as server:
        source = await honoured(server)
        server.behaviour = split(servers.empty(), page())
        assert await poll(source, server) == [FULL, PLAIN]
        assert await poll(source, server) == [PLAIN]
        await source.aclose()


async def test_an_overloaded_server_that_honours_names_is_not_asked_twice():
    async with FaultServer(page()) as server:
        source = await honoured(server)
        server.behaviour = servers.error("503 Service Unavailable")
        assert await source.poll() is None
        assert server.requests[-1].path == FULL
        assert len(server.requests) == 3
        assert source._filter.mode is Mode.HONOURED
        await source.aclose()


async def ignoring(server: FaultServer, clock: VirtualClock) -> EngineSource:
    source = source_for(server, OPTIONS, clock)
    assert await poll(source, server) == [PLAIN]
    assert await poll(source, server) == [FULL, PLAIN]
    assert await poll(source, server) == [PLAIN]
    return source


NOT_FOUND = servers.error("404 Not Found")


async def test_what_a_server_ignored_is_tried_again_after_ten_minutes_without_losing_a_poll():
    clock = VirtualClock()
    async with FaultServer(split(NOT_FOUND, page())) as server:
        source = await ignoring(server, clock)
        clock.now += 599
        assert await poll(source, server) == [PLAIN]
        clock.now += 2
        assert await poll(source, server) == [FULL, PLAIN]
        clock.now += 601
        server.behaviour = page()
        assert await poll(source, server) == [FULL]
        assert source._filter.mode is Mode.HONOURED
        await source.aclose()


CHANGES = {"a new process start": page(9.0, started=2.0e9), "a counter that fell": page(1.0)}


@pytest.mark.parametrize("changed", CHANGES.values(), ids=CHANGES)
async def test_a_restarted_server_is_probed_again(changed: Behaviour):
    first = page(5.0, started=1.0e9) if changed is CHANGES["a new process start"] else page(5.0)
    async with FaultServer(split(NOT_FOUND, first)) as server:
        source = await ignoring(server, VirtualClock())
        server.behaviour = changed
        assert await poll(source, server) == [PLAIN]
        assert await poll(source, server) == [FULL]
        assert server.requests[-1].names == NAMES.full
        await source.aclose()


async def test_a_server_that_was_down_is_probed_again_after_its_plain_page():
    async with FaultServer(split(NOT_FOUND, page())) as server:
        source = await ignoring(server, VirtualClock())
        await server.stop()
        assert await source.poll() is None
        server.behaviour = page()
        await server.start()
        assert await poll(source, server) == [PLAIN]
        assert await poll(source, server) == [FULL]
        await source.aclose()


async def test_when_both_addresses_fail_the_plain_ones_error_is_told_and_nothing_is_concluded():
    async with FaultServer(page()) as server:
        source = source_for(server, OPTIONS)
        await poll(source, server)
        server.behaviour = split(NOT_FOUND, servers.error())
        assert await source.poll() is None
        assert source.health().reason == "http_500"
        assert "/metrics answered 500" in source.health().error
        assert source._filter.mode is Mode.UNKNOWN
        await source.aclose()


async def test_never_asks_only_for_the_whole_page():
    async with FaultServer(page()) as server:
        source = source_for(server, PollSettings(filter="never", timeout_seconds=5.0))
        assert await poll(source, server) == [PLAIN]
        await source.aclose()


async def test_always_never_asks_for_the_whole_page():
    async with FaultServer(split(NOT_FOUND, page())) as server:
        source = source_for(server, PollSettings(filter="always", timeout_seconds=5.0))
        assert await source.poll() is None
        assert "/metrics/ answered 404" in source.health().error
        assert [request.path for request in server.requests] == [FULL]
        await source.aclose()


async def test_a_server_without_engines_yet_gives_its_empty_page_and_is_probed_when_they_appear():
    nothing_yet = servers.page(b"process_start_time_seconds 1.0\n")
    async with FaultServer(nothing_yet) as server:
        source = source_for(server, OPTIONS)
        found = await source.poll()
        assert found.engines == ()
        assert await poll(source, server) == [FULL, PLAIN]
        server.behaviour = page()
        assert await poll(source, server) == [PLAIN]
        assert await poll(source, server) == [FULL]
        await source.aclose()


@pytest.mark.parametrize(
    ("url", "path", "plain", "filtered"),
    [
        ("http://h:1", "/metrics", "http://h:1/metrics", "http://h:1/metrics/?name%5B%5D=vllm:a&name%5B%5D=b"),
        ("https://[::1]:8/", "m", "https://[::1]:8/m", "https://[::1]:8/m/?name%5B%5D=vllm:a&name%5B%5D=b"),
        ("http://h/x", "/m/", "http://h/x/m/", "http://h/x/m/?name%5B%5D=vllm:a&name%5B%5D=b"),
        ("http://h", "/m?q=1", "http://h/m?q=1", "http://h/m/?q=1&name%5B%5D=vllm:a&name%5B%5D=b"),
        ("http://u:p@h", "/m", "http://h/m", "http://h/m/?name%5B%5D=vllm:a&name%5B%5D=b"),
    ],
)
def test_addresses_are_made_from_the_base_and_the_path(url: str, path: str, plain: str, filtered: str):
    urls = page_urls(url, path, ("vllm:a", "b"), ("c",))
    assert (str(urls.plain), str(urls.poll)) == (plain, filtered)
    assert str(urls.full).endswith("?name%5B%5D=c") or "&name%5B%5D=c" in str(urls.full)


@pytest.mark.parametrize("url", ["ftp://host", "host:8000", "http://", "http://h:99999", "http://[::1"])
def test_an_address_that_cannot_be_asked_is_an_error_that_does_not_repeat_it(url: str):
    with pytest.raises(SourceError) as caught:
        page_urls(url, "/metrics", (), ())
    assert caught.value.reason == "bad_url"


async def test_a_target_with_a_bad_address_is_down_instead_of_ending_its_task():
    source = source_for("http://[broken", OPTIONS)
    assert await source.poll() is None
    assert source.health().reason == "bad_url"


def test_only_the_same_process_with_counters_that_grew_is_no_restart():
    def of(tokens: float, started: float | None = None) -> EnginePage:
        return EnginePage(0.0, (EngineSample("m", "0", {}, {"generation_tokens": tokens}),), started)

    assert not restarted(None, of(1))
    assert not restarted(of(1), of(1))
    assert not restarted(of(1, 5.0), of(0, 5.0))
    assert restarted(of(1, 5.0), of(2, 6.0))
    assert restarted(of(2), of(1))
    assert restarted(EnginePage(0.0, ()), of(1))
    assert not restarted(of(1), EnginePage(0.0, ()))


@pytest.mark.parametrize("behaviour", ["honours", "ignores", "empty", "missing"])
async def test_a_recorded_vllm_gives_the_same_samples_however_it_treats_names(behaviour: servers.Filter):
    recorded = servers.read_trace(TRACES / "preemption-thrash.jsonl.xz")[:12]
    expected = [PageReader().read(body, t) for t, body in recorded]
    replay = Replay(recorded, filter=behaviour)
    clock = VirtualClock()
    async with FaultServer(replay) as server:
        options = PollSettings(timeout_seconds=5.0)
        names = PollNames(POLL_NAMES, ALL_NAMES)
        source = EngineSource(Target(server.url), PageReader(), names, options, clock)
        pages = []
        for _ in recorded:
            pages.append(await source.poll())
            clock.now += 1.0
        await source.aclose()
    assert source.health().errors == {}
    for n, (got, wanted) in enumerate(zip(pages, expected, strict=True)):
        assert (got.t, got.started) == (1.8e9 + 1000.0 + n, wanted.started)
        for engine, whole in zip(got.engines, wanted.engines, strict=True):
            assert engine.gauges == whole.gauges
            assert "generation_tokens" in engine.counters
            assert engine.counters.items() <= whole.counters.items()
            assert engine == whole or not engine.histograms
    full = [n for n, page in enumerate(pages) if page.engines[0].histograms]  # type: ignore[union-attr]
    assert full == ([0, 6] if behaviour == "honours" else list(range(12)))
    assert pages[0].engines[0].cache == expected[0].engines[0].cache  # type: ignore[union-attr]
    if behaviour == "honours":
        first = len(recorded[0][1])  # the plain page, once
        assert (source.bytes_received - first) / (len(pages) - 1) < 8 * 1024

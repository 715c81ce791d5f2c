"""Every way a target can misbehave: its reason, its sentence, and that nobody else notices."""

import asyncio
import contextlib
import itertools
import random
import re
import socket
import threading
import tracemalloc
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest

from kvpressure.config.settings import PollSettings
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engine_state import Pipeline, PipelineSettings
from kvpressure.engines.engine import INLINE_BYTES, EngineSource, PollNames
from kvpressure.engines.reader import PageReader
from kvpressure.model.samples import EnginePage, SourceHealth
from kvpressure.model.verdict import Cause, Diagnosis
from kvpressure.net.guard import PollCounts
from kvpressure.runtimes.vllm.metrics import ALL_NAMES, POLL_NAMES
from tests.support import servers
from tests.support.engine_kit import FAST, GOOD_PAGE, Target, VirtualClock, source_for
from tests.support.servers import MIB, Behaviour, FaultServer, Filter, Request, answer, page, read_trace, restrict
from tests.support.snapshots import FakeTarget
from tests.support.tools import FIXTURES
from tests.support.virtual_time import LoopClock, run

GOOD = servers.page(GOOD_PAGE)
QUICK = PollSettings(interval_seconds=0.5, timeout_seconds=0.15)
PATIENT = PollSettings(interval_seconds=10.0, timeout_seconds=8.0)


async def poll_once(behaviour: Behaviour, options: PollSettings = PATIENT) -> EngineSource:
    """A source after one failed poll of such a server, and after it has recovered from that."""
    async with FaultServer(behaviour) as server:
        source = source_for(server, options)
        try:
            assert await source.poll() is None
            failed = source.health()
            assert not failed.up
            assert server.url in failed.error
            assert len(failed.error) < 400
            server.behaviour = GOOD
            await recovered(source)
            assert source.health().errors == {failed.reason: 1}
        finally:
            await source.aclose()
    source.failed = failed  # type: ignore[attr-defined]
    return source


async def recovered(source: EngineSource) -> EnginePage:
    page = await source.poll()
    assert page is not None, source.health().error
    assert source.health().up
    assert source.health().error == ""
    return page


CASES = {
    "http_500": (servers.error(), "http_500", "answered 500 Internal Server Error"),
    "http_503": (servers.error("503 Service Unavailable"), "http_503", "answered 503"),
    "http_401": (servers.error("401 Unauthorized"), "http_401", "check the credentials"),
    "http_404": (servers.error("404 Not Found"), "http_404", "check the path"),
    "no_content": (servers.always(b"HTTP/1.1 204 No Content\r\n\r\n"), "http_204", "answered 204"),
    "html": (servers.html(), "not_metrics", "no known series"),
    "json": (servers.json_answer(), "not_metrics", "no known series"),
    "empty": (servers.empty(), "not_metrics", "no known series"),
    "flood_chunked": (servers.floods(), "too_large", "more than 8 MiB"),
    "flood_declared": (servers.floods(with_length=True), "too_large", "more than 8 MiB"),
    "half_page": (servers.half_page(GOOD_PAGE, honest_length=False), "truncated", "cut short"),
    "half_page_honest": (servers.half_page(GOOD_PAGE, honest_length=True), "truncated", "last line is cut short"),
    "half_chunked": (servers.half_chunked(GOOD_PAGE), "truncated", "cut short"),
    "endless_headers": (servers.endless_headers, "bad_http", "does not answer in HTTP"),
    "bad_status_line": (servers.bad_status_line(), "bad_http", "does not answer in HTTP"),
    "closes_at_once": (servers.closes_at_once(), "disconnected", "closed the connection"),
    "gzip_bomb": (servers.gzip_bomb(), "encoded", "content encoding gzip, and none was requested; does a proxy"),
    "redirect": (servers.redirect("/elsewhere"), "redirect", "a redirect to /elsewhere"),
}


@pytest.mark.parametrize(("behaviour", "reason", "said"), CASES.values(), ids=CASES)
async def test_a_bad_answer_is_named_and_the_next_good_one_recovers(behaviour: Behaviour, reason: str, said: str):
    source = await poll_once(behaviour)
    assert source.failed.reason == reason  # type: ignore[attr-defined]
    assert said in source.failed.error  # type: ignore[attr-defined]


SLOW = {
    "hangs": servers.hangs,
    "hangs_after_headers": servers.hangs_after_headers,
    "drips": servers.drips(GOOD_PAGE),
}


BUSY = {"endless_continues": servers.endless_continues, "tiny_chunks": servers.tiny_chunks}


@pytest.mark.parametrize("behaviour", (SLOW | BUSY).values(), ids=SLOW | BUSY)
async def test_an_answer_that_never_ends_is_cut_at_the_deadline(behaviour: Behaviour):
    source = await poll_once(behaviour, QUICK)
    assert source.failed.reason == "timeout"  # type: ignore[attr-defined]
    assert re.search(
        r"connected to http://[\d.:]+/metrics, "
        r"(waited 0.15 s for the page|but only [\d,]+ bytes of the page came within 0.15 s); is the server hung",
        source.failed.error,  # type: ignore[attr-defined]
    )


async def test_a_connection_that_is_never_accepted_is_told_apart_from_an_answer_that_never_comes():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        with contextlib.ExitStack() as fillers:
            for _ in range(8):  # a full backlog drops further handshakes
                filler = fillers.enter_context(socket.socket())
                filler.setblocking(False)
                filler.connect_ex(("127.0.0.1", port))
            source = source_for(f"http://127.0.0.1:{port}", QUICK)
            await source.poll()
            await source.aclose()
    assert source.health().reason == "timeout"
    assert "no connection to" in source.health().error


async def test_a_refusing_port_is_named_and_found_again_when_the_server_is_back():
    server = FaultServer(GOOD)
    await server.start()
    await server.stop()
    source = source_for(server)
    assert await source.poll() is None
    assert source.health().reason == "refused"
    assert f"connection refused by {server.url}/metrics" in source.health().error
    async with server:
        await recovered(source)
    await source.aclose()


async def test_a_name_that_does_not_resolve_is_named(monkeypatch: pytest.MonkeyPatch):
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    source = source_for("http://vllm.example:8000", FAST)
    await source.poll()
    await source.aclose()
    assert source.health().reason == "dns"
    assert "Name or service not known" in source.health().error


async def test_a_name_server_that_hangs_holds_one_thread_per_target_and_says_dns(monkeypatch: pytest.MonkeyPatch):
    release, lookups = threading.Event(), []

    def hangs(host: str, *_: object, **__: object) -> list[object]:
        lookups.append(host)
        release.wait(10)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hangs)
    source = source_for("http://vllm.example:8000", QUICK)
    try:
        for _ in range(3):
            await source.poll()
        assert source.health().errors == {"dns": 3}
        assert lookups == ["vllm.example"]
    finally:
        release.set()
        await source.aclose()


async def test_a_redirect_is_never_followed_and_credentials_never_leave_for_another_host(tmp_path):
    token = tmp_path / "token"
    token.write_text("s3cret")
    async with FaultServer(GOOD) as elsewhere, FaultServer(servers.redirect(f"{elsewhere.url}/metrics")) as server:
        source = source_for(server, PATIENT, bearer_token_file=token)
        await source.poll()
        await source.aclose()
        assert source.health().reason == "redirect"
        assert elsewhere.url in source.health().error
        assert (elsewhere.connections, elsewhere.requests) == (0, [])


async def test_secrets_in_a_redirect_are_not_repeated():
    async with FaultServer(servers.redirect("http://user:pw@host.example/login?token=abc")) as server:
        source = source_for(server)
        await source.poll()
        await source.aclose()
    assert "host.example/login" in source.health().error
    assert not [secret for secret in ("pw", "abc", "user") if secret in source.health().error]


async def test_a_flood_is_not_kept_in_memory():
    async with FaultServer(servers.floods(100 * MIB)) as server:
        source = source_for(server, PATIENT)
        tracemalloc.start()
        try:
            await source.poll()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            await source.aclose()
    assert source.health().reason == "too_large"
    assert 8 * MIB < source.bytes_received < 9 * MIB
    assert peak < 16 * MIB


async def test_a_server_that_restarts_on_an_idle_connection_costs_no_poll():
    async with FaultServer(GOOD) as server:
        source = source_for(server)
        for _ in range(5):
            await recovered(source)
            await server.break_connections()
            await server.stop()
            await server.start()
        await source.aclose()
    assert source.health().errors == {}


async def test_a_connection_that_breaks_just_as_the_request_is_sent_is_tried_once_more_at_once():
    async with FaultServer(GOOD) as server:
        source = source_for(server)
        await recovered(source)
        broken: list[int] = []

        async def breaks_once(request: servers.Request, writer: asyncio.StreamWriter) -> None:
            if not broken:
                broken.append(request.connection)
                writer.close()
            else:
                await GOOD(request, writer)

        server.behaviour = breaks_once
        await recovered(source)
        await source.aclose()
    assert broken == [1]
    assert server.requests[-1].connection == 2


HOSTILE: dict[str, Behaviour] = SLOW | {
    "500": servers.error(),
    "html": servers.html(),
    "flood": servers.floods(),
    "half": servers.half_page(GOOD_PAGE, honest_length=False),
    "headers": servers.endless_headers,
    "closes": servers.closes_at_once(),
    "bomb": servers.gzip_bomb(MIB),
}


@contextlib.asynccontextmanager
async def hostile_sources(stack: contextlib.AsyncExitStack, clock: VirtualClock, options: PollSettings):
    sources = []
    for name, behaviour in HOSTILE.items():
        server = await stack.enter_async_context(FaultServer(behaviour))
        sources.append(source_for(server, options, clock, name=name))
    tasks = [asyncio.create_task(source.run(lambda _: None)) for source in sources]
    try:
        yield sources
    finally:
        await ended(tasks)


async def ended(tasks: Iterable[asyncio.Task[None]]) -> None:
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_beside_ten_hostile_targets_a_good_one_is_not_late_by_a_single_poll():
    """Virtual seconds pass as fast as the good target answers, so each poll of a hanging one spans many ticks."""
    assert len(HOSTILE) == 10
    clock, pages, ticks = VirtualClock(), asyncio.Queue[EnginePage](), 25
    options = PollSettings(interval_seconds=1.0, timeout_seconds=0.5)
    async with contextlib.AsyncExitStack() as stack:
        server = await stack.enter_async_context(FaultServer(GOOD))
        good = source_for(server, PollSettings(interval_seconds=1.0, timeout_seconds=30.0), clock, name="good")
        hostile = await stack.enter_async_context(hostile_sources(stack, clock, options))
        task = asyncio.create_task(good.run(pages.put_nowait))
        times = []
        for _ in range(ticks):
            await clock.advance(1.0)
            times.append((await asyncio.wait_for(pages.get(), 300)).t)
        expected = {"timeout", "http_500", "not_metrics", "too_large"}
        for _ in range(600):  # half a second where nothing else runs: the first deadlines of the hanging ones
            if expected <= {source.health().reason for source in hostile}:
                break
            await asyncio.sleep(0.05)
        await ended([task])
        counts = good.counts
        assert (counts.polls, counts.late, counts.missed) == (ticks, 0, 0)
        assert {round(b - a, 6) for a, b in itertools.pairwise(times)} == {1.0}
        assert {source.target.name: source.health().up for source in hostile} == dict.fromkeys(HOSTILE, False)
        assert {source.health().reason for source in hostile} >= expected
        by_name = {source.target.name: source.counts for source in hostile}
        assert by_name["hangs"].polls < ticks


async def test_a_good_target_answers_while_every_hanging_one_is_still_being_waited_for():
    clock = VirtualClock()
    async with contextlib.AsyncExitStack() as stack:
        waiting = []
        for behaviour in [servers.hangs, servers.hangs_after_headers, servers.drips(GOOD_PAGE, 0.01)] * 4:
            server = await stack.enter_async_context(FaultServer(behaviour))
            source = source_for(server, PATIENT, clock)
            stack.push_async_callback(source.aclose)
            waiting.append(asyncio.create_task(source.poll()))
        server = await stack.enter_async_context(FaultServer(GOOD))
        good = source_for(server, PATIENT, clock)
        for _ in range(20):
            await recovered(good)
        assert not [task for task in waiting if task.done()]
        await good.aclose()
        await ended(waiting)  # type: ignore[arg-type]


# A server in trouble answers late: it is read at its own pace, one request at a time, and nothing it sent is lost.


PAGES = [body for _, body in read_trace(FIXTURES / "traces" / "long-context-collapse.jsonl.xz")]
NAMES = PollNames(POLL_NAMES, ALL_NAMES)
Latency = Callable[[random.Random], float]

LATENCIES: dict[str, Latency] = {
    "0.1 s": lambda _: 0.1,
    "0.5 s": lambda _: 0.5,
    "0.9 s": lambda _: 0.9,
    "1.5 s": lambda _: 1.5,
    "3 s": lambda _: 3.0,
    "8 s": lambda _: 8.0,
    "uniform 0.2 to 3 s": lambda rng: rng.uniform(0.2, 3.0),
}


@dataclass
class SlowServer:
    """Serves a recording that runs on while it makes its clients wait; counts what is asked and answered."""

    latency: Latency
    filter: Filter = "honours"
    began: float = 0.0
    under_way: int = 0
    most_under_way: int = 0
    answered: list[float] = field(default_factory=list)
    _rng: random.Random = field(default_factory=lambda: random.Random(1))

    async def __call__(self, request: Request, writer: asyncio.StreamWriter) -> None:
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await asyncio.sleep(self.latency(self._rng))
            seconds = asyncio.get_running_loop().time() - self.began
            body = PAGES[min(int(seconds), len(PAGES) - 1)]
            if request.names:
                body = restrict(body, request.names) if self.filter == "honours" else b""
            writer.write(answer(body))
            if body:
                self.answered.append(seconds)
        finally:
            self.under_way -= 1


@dataclass
class Seen:
    """What came of polling a server."""

    server: SlowServer
    pages: list[EnginePage] = field(default_factory=list)
    verdicts: list[Diagnosis] = field(default_factory=list)
    health: SourceHealth | None = None
    counts: PollCounts | None = None
    requests: int = 0


def watched(server: SlowServer, seconds: float = float(len(PAGES)), options: PollSettings | None = None) -> Seen:
    """Poll for so many virtual seconds, as the exporter does."""

    async def main() -> Seen:
        seen = Seen(server)
        server.began = asyncio.get_running_loop().time()
        pipeline = Pipeline(PipelineSettings(), load_thresholds())

        def take(page: EnginePage) -> None:
            seen.pages.append(page)
            seen.verdicts += [view.diagnosis for view in pipeline.on_page(FakeTarget(), page) if view.diagnosis]

        async with FaultServer(server) as listening:
            source = EngineSource(Target(listening.url), PageReader(), NAMES, options, LoopClock())
            polling = asyncio.create_task(source.run(take))
            # Not at a whole second: an answer that is sent in the last instant is not read any more.
            await asyncio.sleep(seconds + 0.1)
            seen.health, seen.counts, seen.requests = source.health(), source.counts, source._client.requests
            polling.cancel()
            await asyncio.gather(polling, return_exceptions=True)
        return seen

    return run(main())


@pytest.mark.fault(
    "an engine answers after 0.1 to 8 s", "every answer is used, one request at a time, the cause is right"
)
@pytest.mark.parametrize("mode", ["honours", "empty"])
@pytest.mark.parametrize("latency", LATENCIES.values(), ids=LATENCIES)
def test_every_answer_of_a_slow_engine_is_used_and_its_cause_is_told(latency: Latency, mode: Filter):
    seen = watched(SlowServer(latency, mode))
    assert (seen.health.up, seen.health.errors) == (True, {})
    assert [page.t for page in seen.pages] == sorted({page.t for page in seen.pages})
    assert len(seen.pages) == len(seen.server.answered)
    assert seen.server.most_under_way == 1
    told = [verdict.cause for verdict in seen.verdicts]
    assert set(told) <= {Cause.UNKNOWN, Cause.KV_CACHE_PRESSURE}
    assert told[-1] is Cause.KV_CACHE_PRESSURE


@pytest.mark.fault("a verdict rests on a few slow answers", "it is reported with lower confidence")
def test_a_verdict_from_rare_answers_is_less_sure():
    sure, unsure = (watched(SlowServer(LATENCIES[name])).verdicts[-1] for name in ("0.1 s", "8 s"))
    assert sure.symptoms["admission_blocked"].state == unsure.symptoms["admission_blocked"].state
    assert 0.5 * sure.confidence <= unsure.confidence < 0.8 * sure.confidence


def test_how_slow_an_engine_is_shows_beside_that_it_is_up():
    health = watched(SlowServer(LATENCIES["3 s"]), 62.0).health
    assert health.up
    assert health.usual_seconds == pytest.approx(3.0)
    assert health.longest_seconds == pytest.approx(3.0)


def test_an_answer_that_is_still_awaited_counts_with_the_time_it_has_taken():
    waits = iter((0.1, 0.1, 0.1, *[9.0] * 9))
    health = watched(SlowServer(lambda _: next(waits)), 10.0).health
    assert health.up
    assert health.usual_seconds == pytest.approx(0.1)
    assert 5.0 < (health.longest_seconds or 0.0) < 7.5


@pytest.mark.fault("poll times pass while an answer is awaited", "they are skipped and counted, never bunched")
def test_ticks_that_pass_while_an_answer_is_awaited_are_skipped_and_counted():
    seen = watched(SlowServer(LATENCIES["3 s"]), 60.0)
    assert seen.counts.polls == pytest.approx(20, abs=1)
    assert seen.counts.polls + seen.counts.missed == pytest.approx(60, abs=3)
    assert seen.requests == seen.counts.polls


@pytest.mark.fault("an engine stalled once", "its next answer is read at once, without a pause")
def test_a_server_that_stalled_beyond_the_deadline_is_read_again_at_the_next_tick():
    waits = iter((0.1, 30.0, *[2.0] * 99))
    seen = watched(SlowServer(lambda _: next(waits), "empty"), 40.0)
    assert seen.health.errors == {}  # the probe of the filtered address stalled; the plain one was then asked
    assert seen.server.most_under_way == 2  # the server's: it goes on with what its client gave up
    gaps = [b.t - a.t for a, b in itertools.pairwise(seen.pages)]
    assert gaps[1:] == pytest.approx([2.0] * len(gaps[1:]), abs=0.1)
    assert len(gaps) > 10


@pytest.mark.fault("an engine takes longer than the deadline", "it is down, with an error that names what was awaited")
def test_an_engine_that_takes_longer_than_the_deadline_is_down_and_says_what_was_awaited():
    seen = watched(SlowServer(lambda _: 12.0), 60.0)
    assert seen.pages == []
    assert seen.health.reason == "timeout"
    assert "/metrics, waited 10 s for the page; is the server hung or overloaded?" in seen.health.error


async def test_the_deadline_counts_what_this_process_was_too_busy_for_and_says_so():
    """The loop is held up for real, so that the deadline is noticed late; the answer then is there and is used."""

    async def answers_while_we_are_busy(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(answer(PAGES[0]))

    async with FaultServer(answers_while_we_are_busy) as server:
        source = EngineSource(Target(server.url), PageReader(), NAMES, PollSettings(timeout_seconds=0.2))
        polling = asyncio.create_task(source.poll())
        await asyncio.sleep(0)
        hold_up(0.6)
        assert await polling is not None
        await source.aclose()


@pytest.mark.fault("the exporter itself is short of CPU", "the error of a timeout reports it")
async def test_a_timeout_that_this_process_noticed_late_says_that_it_was_short_of_cpu():
    async def hangs(request: Request, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    async with FaultServer(hangs) as server:
        source = EngineSource(Target(server.url), PageReader(), NAMES, PollSettings(timeout_seconds=0.2))
        polling = asyncio.create_task(source.poll())
        await asyncio.sleep(0.1)  # the request is on its way; whether it arrived makes no difference
        hold_up(0.8)
        assert await polling is None
        await source.aclose()
    assert "this exporter itself was short of CPU" in source.health().error


def hold_up(seconds: float) -> None:
    """Keep the event loop from running."""
    import time  # noqa: PLC0415 - nobody else here may block

    time.sleep(seconds)


async def test_a_long_page_is_read_aside_and_the_loop_goes_on():
    long = PAGES[0] + b"".join(b'other_metric_%d{a="%s"} 1.0\n' % (i, b"x" * 200) for i in range(6000))
    assert len(long) > INLINE_BYTES
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    async with FaultServer(page(long)) as server:
        source = EngineSource(Target(server.url), PageReader(), NAMES, PollSettings(filter="never"))
        ticking = asyncio.ensure_future(tick())
        found = await source.poll()
        ticking.cancel()
        await source.aclose()
    assert found.engines == PageReader().read(PAGES[0], found.t).engines
    assert ticks > 10

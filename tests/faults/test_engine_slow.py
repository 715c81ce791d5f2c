"""A server in trouble answers late: it is read at its own pace, one request at a time, and nothing it sent is lost."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from kvpressure.config.settings import PollSettings
from kvpressure.config.thresholds import load_thresholds
from kvpressure.engine_state import Pipeline, PipelineSettings
from kvpressure.engines.engine import INLINE_BYTES, EngineSource, EngineSourceStats, PollNames
from kvpressure.engines.reader import PageReader
from kvpressure.model.samples import EnginePage, SourceHealth
from kvpressure.model.verdict import Cause, Diagnosis
from kvpressure.runtimes.vllm.metrics import ALL_NAMES, POLL_NAMES
from tests.support.engine_kit import Target
from tests.support.servers import FaultServer, Filter, Request, answer, page, read_trace, restrict
from tests.support.snapshots import FakeTarget
from tests.support.tools import FIXTURES
from tests.support.virtual_time import LoopClock, run

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
    stats: EngineSourceStats | None = None


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
            seen.health, seen.stats = source.health(), source.stats()
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
    assert seen.health is not None
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
    assert health is not None
    assert health.up
    assert health.usual_seconds == pytest.approx(3.0)
    assert health.longest_seconds == pytest.approx(3.0)


def test_an_answer_that_is_still_awaited_counts_with_the_time_it_has_taken():
    waits = iter((0.1, 0.1, 0.1, *[9.0] * 9))
    health = watched(SlowServer(lambda _: next(waits)), 10.0).health
    assert health is not None
    assert health.up
    assert health.usual_seconds == pytest.approx(0.1)
    assert 5.0 < (health.longest_seconds or 0.0) < 7.5


@pytest.mark.fault("poll times pass while an answer is awaited", "they are skipped and counted, never bunched")
def test_ticks_that_pass_while_an_answer_is_awaited_are_skipped_and_counted():
    stats = watched(SlowServer(LATENCIES["3 s"]), 60.0).stats
    assert stats is not None
    assert stats.polls == pytest.approx(20, abs=1)
    assert stats.polls + stats.missed == pytest.approx(60, abs=3)
    assert stats.requests == stats.polls


@pytest.mark.fault("an engine stalled once", "its next answer is read at once, without a pause")
def test_a_server_that_stalled_beyond_the_deadline_is_read_again_at_the_next_tick():
    waits = iter((0.1, 30.0, *[2.0] * 99))
    seen = watched(SlowServer(lambda _: next(waits), "empty"), 40.0)
    assert seen.health is not None
    assert seen.health.errors == {}  # the probe of the filtered address stalled; the plain one was then asked
    assert seen.server.most_under_way == 2  # the server's: it goes on with what its client gave up
    gaps = [b.t - a.t for a, b in itertools.pairwise(seen.pages)]
    assert gaps[1:] == pytest.approx([2.0] * len(gaps[1:]), abs=0.1)
    assert len(gaps) > 10


@pytest.mark.fault("an engine takes longer than the deadline", "it is down, with an error that names what was awaited")
def test_an_engine_that_takes_longer_than_the_deadline_is_down_and_says_what_was_awaited():
    seen = watched(SlowServer(lambda _: 12.0), 60.0)
    assert seen.pages == []
    assert seen.health is not None
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
    assert found is not None
    assert found.engines == PageReader().read(PAGES[0], found.t).engines
    assert ticks > 10

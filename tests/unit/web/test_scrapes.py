from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import Callable
from functools import partial

import pytest
from aiohttp import web

from kvpressure.exposition import Snapshot, text
from kvpressure.web.scrapes import Scrapes

OPENMETRICS = "application/openmetrics-text;version=1.0.0"


def snapshot(number: float) -> Snapshot:
    return Snapshot(number, exporter={"polls_skipped_total": number})


class Rendering:
    """Counts what `text.render` does, and does it only when it is let."""

    def __init__(self) -> None:
        self.real = text.render
        self.made: list[tuple[float, bool]] = []
        self.threads: set[str] = set()
        self.let = threading.Event()
        self.let.set()
        self.began: Callable[[], None] = lambda: None

    def __call__(self, snapshot: Snapshot, *, openmetrics: bool, own: object) -> bytes:
        self.made.append((snapshot.t, openmetrics))
        self.threads.add(threading.current_thread().name)
        self.began()
        assert self.let.wait(60)
        if snapshot.t < 0:
            raise ValueError("cannot be written")
        return self.real(snapshot, openmetrics=openmetrics)


@pytest.fixture
def rendering(monkeypatch):
    made = Rendering()
    monkeypatch.setattr(text, "render", made)
    yield made
    made.let.set()


class World:
    """What is scraped: `now` can be replaced."""

    def __init__(self) -> None:
        self.now = snapshot(1.0)
        self.scrapes = Scrapes(lambda: self.now)

    async def scrape(self, accept: str = "", encoding: str = "") -> web.Response:
        return await self.scrapes.answer(accept, encoding)


def number(answer: web.Response) -> float:
    body = gzip.decompress(answer.body) if "Content-Encoding" in answer.headers else answer.body
    return float(body.split()[-1])


async def begun(rendering: Rendering, scrape: asyncio.Task[web.Response]) -> None:
    """Wait until the thread is in the middle of a page."""
    assert not scrape.done()
    event, loop = asyncio.Event(), asyncio.get_running_loop()
    rendering.began = partial(loop.call_soon_threadsafe, event.set)
    if not rendering.made:
        await event.wait()


async def test_a_snapshot_is_rendered_once_per_format_however_often_and_in_whatever_encoding_it_is_scraped(rendering):
    world = World()
    answers = [await world.scrape("", encoding) for encoding in ("", "gzip") * 3]
    await world.scrape(OPENMETRICS)
    await world.scrape(OPENMETRICS, "gzip")
    assert rendering.made == [(1.0, False), (1.0, True)]
    assert answers[0].body is answers[2].body
    assert answers[1].body is answers[3].body
    assert gzip.decompress(answers[1].body) == answers[0].body


async def test_pages_are_rendered_in_one_thread_that_is_not_the_event_loops(rendering):
    world = World()
    await asyncio.gather(*(world.scrape(accept) for accept in ("", OPENMETRICS)))
    assert rendering.threads == {"metrics-page_0"}


async def test_the_next_snapshot_is_shown_at_once():
    world = World()
    assert number(await world.scrape()) == 1.0
    world.now = snapshot(2.0)
    assert number(await world.scrape()) == 2.0
    assert number(await world.scrape("", "gzip")) == 2.0


@pytest.mark.fault(
    "fifty scrapes arrive while a page is being rendered", "they wait for that page; none is rendered again"
)
async def test_who_comes_while_a_page_is_rendered_waits_for_it(rendering):
    world = World()
    rendering.let.clear()
    first = asyncio.create_task(world.scrape())
    await asyncio.sleep(0)
    await begun(rendering, first)
    world.now = snapshot(2.0)
    more = [asyncio.create_task(world.scrape("", encoding)) for encoding in ("", "gzip") * 25]
    await asyncio.sleep(0)
    rendering.let.set()
    assert {number(await scrape) for scrape in (first, *more)} == {1.0}
    assert rendering.made == [(1.0, False)]
    assert number(await world.scrape()) == 2.0


@pytest.mark.fault("a scraper disconnects while its page is rendered", "the others that wait for that page get it")
@pytest.mark.parametrize("encoding", ["", "gzip"])
async def test_who_hangs_up_takes_the_page_from_nobody(rendering, encoding):
    world = World()
    rendering.let.clear()
    impatient, patient = (asyncio.create_task(world.scrape("", encoding)) for _ in range(2))
    await asyncio.sleep(0)
    impatient.cancel()
    await asyncio.gather(impatient, return_exceptions=True)
    assert impatient.cancelled()
    rendering.let.set()
    assert number(await patient) == 1.0
    assert len(rendering.made) == 1


@pytest.mark.fault("a page cannot be rendered", "waiting clients get an error, and the next snapshot is rendered again")
@pytest.mark.parametrize("encoding", ["", "gzip"])
async def test_a_page_that_cannot_be_rendered_is_an_error_for_its_snapshot_alone(rendering, encoding):
    world = World()
    world.now = snapshot(-1.0)
    for _ in range(2):
        with pytest.raises(ValueError, match="cannot be written"):
            await world.scrape("", encoding)
    world.now = snapshot(2.0)
    assert number(await world.scrape("", encoding)) == 2.0

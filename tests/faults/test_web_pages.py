"""Requests that no cache answers, in a flood: pages of single engines, the diagnosis, runbooks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from kvpressure.config.settings import WebSettings
from kvpressure.config.settings.keys import validate
from kvpressure.exposition import runbooks, status, text
from kvpressure.exposition.panel import ident
from kvpressure.web.scrapes import MAX_QUEUED, MAX_QUEUED_PER_CLIENT
from kvpressure.web.server import Listener
from tests.support.web_kit import METRICS, FakeExporter, Served, engines, get, serving, settled

CROWD = "127.0.0.2"


class Held:
    """A function that counts its calls and waits in each until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
        self.go = threading.Event()
        self.begun = threading.Event()
        self.calls = 0
        self._real = getattr(module, name)
        monkeypatch.setattr(module, name, self)

    def __call__(self, *args: Any, **more: Any) -> Any:
        self.calls += 1
        self.begun.set()
        self.go.wait()
        return self._real(*args, **more)


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    held = Held(monkeypatch, status, "status_html")
    yield held
    held.go.set()


def of_engines(count: int) -> tuple[FakeExporter, list[str]]:
    exporter = FakeExporter(engines(count))
    return exporter, [f"/?engine={ident(view.key)}" for view in exporter.current.engines]


async def flood(
    served: Served, paths: list[str], host: str = CROWD
) -> list[asyncio.Task[tuple[int, dict[str, str], bytes]]]:
    """Each path asked for at once; returns when the server has them all."""
    clients = [await served.client(get(path), host) for path in paths]
    answers = [asyncio.create_task(client.answer()) for client in clients]
    await settled()
    return answers


@pytest.mark.fault(
    "one address requests the pages of 40 engines at once",
    "four are drawn one after the other, the rest get 503 at once; a scrape waits for none, and others get their page",
)
async def test_pages_of_engines_are_drawn_one_by_one_and_few(page: Held) -> None:
    exporter, paths = of_engines(40)
    async with serving(exporter) as served:
        answers = await flood(served, paths)
        turned_away = [answer.result() for answer in answers if answer.done()]
        told = [(code, headers["retry-after"]) for code, headers, _ in turned_away]
        assert told == [(503, "1")] * (40 - MAX_QUEUED_PER_CLIENT)
        assert page.calls == 1
        assert (await served.get("/metrics", host=CROWD))[0] == 200
        assert (await served.get("/-/ready", host=CROWD))[0] == 200
        person = asyncio.create_task(served.get("/"))
        await settled()
        page.go.set()
        assert (await person)[0] == 200
        assert page.calls == MAX_QUEUED_PER_CLIENT + 1
        assert served.refused == {"pages": 40 - MAX_QUEUED_PER_CLIENT}


async def test_many_addresses_have_few_pages_drawn(page: Held) -> None:
    exporter, paths = of_engines(100)
    async with serving(exporter) as served:
        answers = []
        for number in range(10):
            answers += await flood(served, paths[10 * number : 10 * number + 10], f"127.0.0.{number + 2}")
        assert sum(not answer.done() for answer in answers) == MAX_QUEUED


@pytest.mark.fault("hundreds of unknown engines are requested (`?engine=`)", "one page is drawn for all of them")
async def test_engines_that_there_are_not_are_drawn_once(page: Held) -> None:
    page.go.set()
    async with serving() as served:
        answers = await flood(served, [f"/?engine=no-{number}" for number in range(200)])
        assert {(await answer)[0] for answer in answers} == {200}
        assert page.calls == 1


@pytest.mark.fault("the diagnosis is requested 200 times at once", "it is rendered once per snapshot, in a thread")
async def test_the_diagnosis_is_made_once_per_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Held(monkeypatch, status, "diagnosis_json")
    exporter = FakeExporter()
    async with serving(exporter) as served:
        answers = await flood(served, ["/api/v1/diagnosis"] * 200)
        assert (await served.get("/metrics"))[0] == 200
        made.go.set()
        assert {(await answer)[0] for answer in answers} == {200}
        assert made.calls == 1
        exporter.current = engines(2)
        assert b"engine-1" in (await served.get("/api/v1/diagnosis"))[2]
        assert made.calls == 2


@pytest.mark.fault(
    "one address requests 100 runbooks filled in differently", "four are rendered, the rest get 503 at once"
)
async def test_runbooks_are_filled_in_one_by_one_and_few(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Held(monkeypatch, runbooks, "page_html")
    async with serving() as served:
        answers = await flood(served, [f"/runbooks/KVPressureEngineStuck?pod={number}" for number in range(100)])
        assert sum(answer.done() and answer.result()[0] == 503 for answer in answers) == 100 - MAX_QUEUED_PER_CLIENT
        assert (await served.get("/metrics"))[0] == 200
        made.go.set()
        assert (
            sorted([(await answer)[0] for answer in answers])[:MAX_QUEUED_PER_CLIENT] == [200] * MAX_QUEUED_PER_CLIENT
        )


@pytest.mark.fault("scrapers come at once, 300 of them", "the page is rendered once for all of them")
async def test_three_hundred_scrapers_cost_one_rendering(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered = Held(monkeypatch, text, "render")
    rendered.go.set()
    async with serving() as served:
        answers = await flood(served, ["/metrics"] * 300, "127.0.0.1")
        assert {(await answer)[0] for answer in answers} == {200}
        assert rendered.calls == 1


@pytest.mark.fault(
    "the server is always busy with its clients' requests",
    "the event loop of the polls is not delayed: the server has its own thread",
)
async def test_a_busy_server_does_not_hold_up_the_loop_of_the_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered = Held(monkeypatch, text, "render")
    listener = Listener(FakeExporter(), validate(WebSettings, {"listen_address": "127.0.0.1:0"}))
    [url] = await listener.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    writer.write(METRICS)
    await asyncio.to_thread(rendered.begun.wait)
    for _ in range(50):  # the server's loop stands still in the middle of an answer
        await asyncio.sleep(0.001)
    rendered.go.set()
    assert (await reader.readline()).split()[1] == b"200"
    writer.close()
    await listener.close()


async def test_all_addresses_of_ipv6_are_those_of_ipv4_too() -> None:
    listener = Listener(FakeExporter(), validate(WebSettings, {"listen_address": "[::]:0"}))
    [url] = await listener.start()
    try:
        for host in ("127.0.0.1", "::1"):
            reader, writer = await asyncio.open_connection(host, int(url.rpartition(":")[2]))
            writer.write(METRICS)
            assert (await reader.readline()).split()[1] == b"200"
            writer.close()
    finally:
        await listener.close()

"""One request of one token, beside what tests/faults/test_canary.py lives through."""

from __future__ import annotations

import asyncio
import json
import socket

import pytest

from kvpressure.engines.canary import CanarySource, CanaryTarget
from kvpressure.model.samples import CanaryReport, CanaryResult
from kvpressure.net.schedule import SystemClock
from kvpressure.runtimes.registry import named
from tests.support.engine_kit import Target
from tests.support.servers import FaultServer, Request, answer, error

VLLM, SGLANG = named("vllm").asking, named("sglang").asking


async def ask(url: str, *, rank: str | None = None, asking=VLLM, seconds: float = 10.0) -> CanaryReport:
    engine = CanaryTarget(Target(url), "m", asking, rank)  # type: ignore[arg-type]
    return await CanarySource(engine, SystemClock(), deadline_seconds=seconds).send()


@pytest.mark.parametrize("rank", ["a\r\nX-Evil: 1", "", "٣", "-1"])
async def test_a_rank_that_is_no_number_is_never_sent(rank: str):
    async with FaultServer(error()) as server:
        report = await ask(server.url, rank=rank)
        assert server.requests == []
    assert report.result is CanaryResult.NOT_POSSIBLE


async def test_where_no_header_names_a_rank_several_cannot_be_asked():
    async with FaultServer(error()) as server:
        report = await ask(server.url, rank="1", asking=SGLANG)
        assert server.requests == []
    assert (report.result, report.unanswered) == (CanaryResult.NOT_POSSIBLE, None)


@pytest.mark.parametrize(("prefix", "asked"), [("", "/v1/completions"), ("/llm", "/llm/v1/completions")])
async def test_the_api_is_beside_the_page_wherever_its_runtime_has_that(prefix: str, asked: str):
    asking = named("trtllm").asking
    async with FaultServer(error()) as server:
        engine = CanaryTarget(Target(server.url, path=prefix + asking.page), "m", asking)  # type: ignore[arg-type]
        await CanarySource(engine, SystemClock(), deadline_seconds=10.0).send()
        assert [request.path for request in server.requests][:1] == [asked]


@pytest.mark.fault(
    "a name that resolves to a metadata service, in a target of one-token requests", "no connection is made"
)
async def test_a_name_never_leads_to_a_metadata_service(monkeypatch: pytest.MonkeyPatch):
    there = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("169.254.169.254", 80))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: there)
    report = await ask("http://vllm.example:80")
    assert (report.result, report.unanswered) == (CanaryResult.ERROR, None)
    assert "leads to 169.254.169.254" in report.text


async def test_a_deadline_that_this_process_noticed_late_is_no_evidence():
    asked = asyncio.Event()

    async def hangs(_: Request, __: asyncio.StreamWriter) -> None:
        asked.set()
        await asyncio.Event().wait()

    async with FaultServer(hangs) as server:
        asking = asyncio.create_task(ask(server.url, seconds=0.2))
        await asked.wait()
        import time  # noqa: PLC0415 - to hold up the loop is the point

        time.sleep(0.8)  # noqa: ASYNC251
        report = await asking
    assert (report.result, report.unanswered) == (CanaryResult.TIMEOUT, None)
    assert "short of CPU" in report.text


async def test_a_list_of_models_that_never_comes_is_not_the_engines_silence():
    async def api(request: Request, writer: asyncio.StreamWriter) -> None:
        if request.path == "/v1/models":
            writer.write(answer(b'{"data": ["junk", {"id": 7}]}'))
        else:
            writer.write(answer(json.dumps({"error": "no such model"}).encode(), "404 Not Found"))

    async with FaultServer(api) as server:
        report = await ask(server.url)
    assert (report.result, report.unanswered) == (CanaryResult.NOT_POSSIBLE, None)

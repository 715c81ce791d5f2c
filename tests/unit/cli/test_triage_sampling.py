"""How long `triage` samples, against a server on virtual time."""

import asyncio
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest

from kvpressure.cli.access import Access, gateways_of
from kvpressure.cli.sampling import Sampler, sample, targets_of
from kvpressure.engines.recordings import TraceLine, read_trace
from kvpressure.model.values import at
from kvpressure.model.verdict import Cause
from tests.support import servers, virtual_time
from tests.support.engines import THRESHOLDS
from tests.support.kv_publisher import Publisher, removed, stored
from tests.support.servers import FaultServer, Replay
from tests.support.tools import FIXTURES

POLLS = [line for line in read_trace(FIXTURES / "cold" / "stopped-core.jsonl.xz") if isinstance(line, TraceLine)]
STOPPED, GOING_ON = 20, 164
"""Polls of the recording: the first that is sure to stand still, and one just before it goes on."""


@dataclass(frozen=True)
class Sampled:
    cause: Cause
    seconds: float


def triage(first: int, seconds: float) -> Sampled:
    """What the command says of the recording from its poll `first` on, told to sample for `seconds`."""

    async def run() -> Sampled:
        clock = virtual_time.LoopClock()
        pages = [(poll.t, poll.page) for poll in POLLS[first:]]
        async with FaultServer(Replay(pages, clock=clock.monotonic)) as server:
            targets = targets_of([server.url], Access(), gpus=False)
            async with Sampler(targets, THRESHOLDS, clock=clock) as sampler:
                await sample(sampler, seconds)
                (seen,) = sampler.sampled()
                (view,) = seen.engines
                return Sampled(view.diagnosis.cause, sampler.seconds)

    return virtual_time.run(run())


@pytest.mark.fault(
    "an engine hangs while `triage` samples it", "it continues to sample until it can decide, at most 45 s more"
)
@pytest.mark.parametrize("seconds", [10.0, 30.0])
def test_an_engine_that_stands_still_is_sampled_until_it_can_be_called_stuck(seconds: float):
    """The default of 30 s ends just before, and would have called it healthy."""
    found = triage(STOPPED, seconds)
    assert found.cause is Cause.STUCK
    assert found.seconds <= 45


def test_one_that_goes_on_meanwhile_is_not_waited_for():
    found = triage(GOING_ON - 8, 10.0)
    assert found.cause is not Cause.STUCK
    assert found.seconds < 15


def test_one_that_moves_is_sampled_for_as_long_as_was_asked():
    found = triage(0, 12.0)
    assert found.cause is Cause.HEALTHY
    assert found.seconds == pytest.approx(12.0, abs=1.0)


def test_one_that_refuses_the_connection_is_given_up_within_two_seconds():
    async def run() -> float:
        targets = targets_of([":1"], Access(), gpus=False)
        async with Sampler(targets, THRESHOLDS, clock=virtual_time.LoopClock()) as sampler:
            await sample(sampler, 30.0)
            (seen,) = sampler.sampled()
            assert seen.problem.startswith("connection refused by http://localhost:1/metrics")
            return sampler.seconds

    assert virtual_time.run(run()) < 2


LIGHT = list(read_trace(FIXTURES / "traces" / "light-load.jsonl.xz"))
EPP = (FIXTURES / "gateways" / "llm-d-router-0.10.0-epp.prom").read_bytes()


def options(*gateways: str, **more: Any) -> dict[str, Any]:
    return {"config": None, "gateways": gateways, **more}


def behind(body: bytes) -> tuple[Cause, str, list[str]]:
    """What is said of an engine that is healthy by itself, behind a gateway whose metrics are `body`."""

    async def run() -> tuple[Cause, str, list[str]]:
        clock = virtual_time.LoopClock()
        pages = [(one.t, one.page) for one in LIGHT if isinstance(one, TraceLine)]
        engine = FaultServer(Replay(pages, clock=clock.monotonic))
        async with engine, FaultServer(servers.page(body)) as gateway:
            targets = targets_of([engine.url], Access(), gpus=False)
            given = gateways_of(options(gateway.url))
            async with Sampler(targets, THRESHOLDS, clock=clock, gateways=given) as sampler:
                await sample(sampler, 30.0)
                ((view,),) = (seen.engines for seen in sampler.sampled())
                return view.diagnosis.cause, view.diagnosis.grounds, sampler.problems

    return virtual_time.run(run())


def test_a_queue_at_the_gateway_is_named_where_it_stands():
    cause, grounds, problems = behind(EPP)
    assert cause is Cause.KV_CACHE_PRESSURE
    assert "Queued at the gateway: 46" in grounds
    assert problems == []


def test_a_gateway_without_a_queue_changes_nothing_and_one_that_cannot_be_read_is_one_line():
    assert behind(EPP.replace(b" 40\n", b" 0\n").replace(b" 6\n", b" 0\n"))[::2] == (Cause.HEALTHY, [])
    cause, _, problems = behind(b"<html>\n")
    assert cause is Cause.HEALTHY
    assert [problem.startswith("gateway 127.0.0.1:") for problem in problems] == [True]


def test_gateways_come_from_options_and_from_a_settings_file(tmp_path: Path):
    file = tmp_path / "kvpressure.yaml"
    file.write_text("gateways: {targets: [{url: 'http://epp:9090', engines: ['llama-*']}]}\n")
    given = gateways_of(options(":9090", config=file))
    assert [(one.url, one.engines) for one in given.targets] == [
        ("http://localhost:9090", ("*",)),
        ("http://epp:9090", ("llama-*",)),
    ]
    assert gateways_of(options()) is None


def test_a_gateway_without_a_host_is_refused():
    with pytest.raises(click.UsageError):
        gateways_of(options("http://"))


def with_events(port: int | None) -> tuple[float | None, list[str]]:
    """Evicted blocks as the KV events at `port` tell, and what is wrong with these; on the real clock, for a thread."""

    async def run() -> tuple[float | None, list[str]]:
        pages = [(one.t, one.page) for one in LIGHT if isinstance(one, TraceLine)]
        async with FaultServer(Replay(pages)) as engine:
            targets = targets_of([engine.url], Access(), gpus=False, kv_events_port=port)
            async with Sampler(targets, THRESHOLDS) as sampler:
                await sample(sampler, 6.0)
                ((view,),) = (seen.engines for seen in sampler.sampled())
                return at(view.derived, "kv_evicted_blocks_total"), sampler.problems

    return asyncio.run(run())


@pytest.mark.process
def test_kv_events_are_read_at_their_port_beside_the_page():
    with Publisher() as publisher:

        def publish() -> None:
            publisher.subscribed()
            publisher.send(stored([1, 2]))
            publisher.send(removed(1, 2))

        publishing = threading.Thread(target=publish)
        publishing.start()
        assert with_events(publisher.port) == (2.0, [])
        publishing.join()
    assert with_events(None) == (None, [])


@pytest.mark.process
def test_a_port_without_kv_events_is_one_line():
    evicted, problems = with_events(1)
    assert evicted is None
    assert [problem.startswith("KV events of 127.0.0.1:") for problem in problems] == [True]

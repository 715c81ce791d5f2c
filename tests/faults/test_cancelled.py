"""No cancellation gets lost, at whatever moment it comes."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from kvpressure.cli.triage.pod import PodTriage
from kvpressure.kubernetes.kubectl.forward import PortForward
from kvpressure.model.samples import GpuReport
from kvpressure.net import waiting
from kvpressure.sources.gpu.backend import GpuSettings
from kvpressure.sources.gpu.child import encode
from kvpressure.sources.gpu.process import GpuSource

TURNS = 50
"""Turns of the event loop in which everything that is ready has run."""


async def turns(count: int = TURNS) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.mark.fault(
    "the exporter gets SIGTERM at the moment in which a GPU child reports",
    "the task that follows the child ends, on every Python",
)
@pytest.mark.parametrize("after", range(8))
async def test_a_report_that_comes_with_the_cancellation_does_not_swallow_it(after: int) -> None:
    source = GpuSource("nvidia", GpuSettings())
    child = SimpleNamespace(lines=asyncio.Queue())
    following = asyncio.create_task(source._follow(child))  # type: ignore[arg-type]
    await turns()
    child.lines.put_nowait(encode(GpuReport(1.0, ())))
    await turns(after)
    following.cancel()
    await turns()
    assert following.cancelled()


@pytest.mark.fault(
    "a library loses the cancellation of a task", "the task is cancelled again, and its end has a deadline"
)
async def test_a_task_that_lost_its_cancellation_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "CANCEL_AGAIN_SECONDS", 0.01)
    asked = 0

    async def deaf() -> None:
        nonlocal asked
        while asked < 3:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                asked += 1

    task = asyncio.create_task(deaf())
    await turns()
    await waiting.cancel([task])
    assert task.done()
    assert asked == 3


async def slow_to_end() -> Any:
    try:
        await asyncio.Event().wait()
    finally:
        await turns(5)


async def is_cancelled_while_it_ends(ending: Any) -> bool:
    task = asyncio.create_task(ending)
    await turns(2)
    task.cancel()
    await turns()
    return task.cancelled()


@pytest.mark.fault("a Ctrl-C while a port-forward closes", "the command ends")
async def test_a_port_forward_that_is_cancelled_while_it_closes_ends_so() -> None:
    forward = PortForward(None, "prod", "llama-0", 8000)  # type: ignore[arg-type]
    forward._kept = asyncio.create_task(slow_to_end())
    await turns(1)
    assert await is_cancelled_while_it_ends(forward.__aexit__())


@pytest.mark.fault("a Ctrl-C while `triage` queries a cluster", "the command ends")
async def test_a_triage_that_is_cancelled_while_it_stops_looking_ends_so() -> None:
    async def look() -> None:
        pass

    async def looking() -> None:
        async with PodTriage._refreshing(SimpleNamespace(_refresh=look, _keep_refreshing=slow_to_end)):  # type: ignore[arg-type]
            await turns(1)

    assert await is_cancelled_while_it_ends(looking())

"""How long `triage` samples, against a server on virtual time."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from kvpressure.cli.access import Access
from kvpressure.cli.sampling import Sampler, sample, targets_of
from kvpressure.engines.recordings import TraceLine, read_trace
from kvpressure.model.verdict import Cause
from tests.support import virtual_time
from tests.support.engines import THRESHOLDS
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
                (seen,) = sampler.seen()
                (view,) = seen.engines
                assert view.diagnosis is not None
                return Sampled(view.diagnosis.cause, sampler.seconds)

    return virtual_time.run(run())


@pytest.mark.fault(
    "an engine hangs when `triage` is asked about it", "it samples on until it can tell, 45 s more at most"
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
            (seen,) = sampler.seen()
            assert seen.problem.startswith("connection refused by http://localhost:1/metrics")
            return sampler.seconds

    assert virtual_time.run(run()) < 2

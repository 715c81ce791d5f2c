"""The fast scheduler beside the slow, obvious one: the same requests are answered at the same moments."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpressure.simulation.clients import Clients
from kvpressure.simulation.queue_order import Request
from kvpressure.simulation.scheduler import Simulation
from kvpressure.simulation.server import Demand, RequestShape, Server, StepSeconds
from tests.support.reference_scheduler import ReferenceScheduler

Answer = tuple[int, int, float, float]

SHAPES = st.builds(
    lambda prompt, own, output: RequestShape(prompt, max(1, int(prompt * own)), output),
    st.integers(1, 900),
    st.sampled_from((1.0, 1.0, 0.5)),
    st.integers(1, 120),
)
SERVERS = st.builds(
    Server,
    pool_tokens=st.integers(1100, 6000).map(float),
    steps=st.builds(
        StepSeconds,
        st.sampled_from((0.0103171, 0.0307843)),
        st.sampled_from((0.0, 0.0002)),
        st.sampled_from((1 / 16_000, 1e-3)),
        # No time for contexts: steps up to an arrival are counted by the first of them, and would each be longer.
        st.just(0.0),
        st.sampled_from((0.0, 1e-8)),
    ),
    max_num_seqs=st.sampled_from((math.inf, 3, 8)),
    step_tokens=st.sampled_from((64.0, 500.0, 8192.0)),
    watermark_tokens=st.sampled_from((0.0, 100.0)),
    reuses=st.booleans(),
    kv_offload=st.booleans(),
)


class UnevenClients(Clients):
    """Clients that think for a little longer each time: none sends just when a step ends, where rounding decides."""

    answers: int = 0

    def hear(self, request: Request, now: float) -> None:
        self.answers += 1
        super().hear(request, now + 1e-5 * (self.answers * 61 % 97))


def fast(server: Server, demand: Demand) -> list[Answer]:
    """Who was answered, and when."""
    answers: list[Answer] = []

    class Recorded(UnevenClients):
        def hear(self, request: Request, now: float) -> None:
            answers.append((request.prompt, request.output, request.arrived, now))
            super().hear(request, now)

    simulation = Simulation(server, demand)
    simulation.clients = Recorded(server, demand)
    simulation.outcome(answers=60)
    return answers


@given(server=SERVERS, shapes=st.lists(SHAPES, min_size=1, max_size=6), clients=st.integers(1, 16), mixed=st.booleans())
@settings(max_examples=60, deadline=None)
def test_clients_that_wait_are_answered_when_the_slow_one_answers_them(server, shapes, clients, mixed) -> None:
    alike(server, Demand(tuple(sorted(shapes)), clients, mixed=mixed))


@given(server=SERVERS, shapes=st.lists(SHAPES, min_size=1, max_size=6), rate=st.sampled_from((0.5, 4.0, 30.0)))
@settings(max_examples=30, deadline=None)
def test_those_at_a_rate_are_answered_when_the_slow_one_answers_them(server, shapes, rate) -> None:
    alike(server, Demand(tuple(sorted(shapes)), rate=rate, queue=3, seconds=20.0))


def alike(server: Server, demand: Demand) -> None:
    answers = fast(server, demand)
    slow = ReferenceScheduler(server, UnevenClients(server, demand))
    expected = [
        (request.prompt, request.output, request.arrived, now)
        for request, now in itertools.islice(slow.answered(), len(answers))
    ]
    assert answers
    for one, other in zip(answers, expected, strict=True):
        assert one == pytest.approx(other, rel=1e-6), "(prompt, output, arrived, answered)"

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvpressure.model.limits import Limit, Limits
from kvpressure.simulation.server import Server, StepSeconds
from kvpressure.simulation.steps import UnknownError
from kvpressure_planner.capacity.described import (
    STEEPEST,
    DescriptionError,
    MeanAndP95,
    Traffic,
    alternatives,
    in_two_groups,
    spread,
    under,
    within_caps,
)

ROOMY = Server(120_000.0, StepSeconds(0.03, 0.0, 1 / 16_000))
TRAFFIC = Traffic(MeanAndP95(1400, 4000), MeanAndP95(300, 800), clients=40)


@given(st.floats(10, 100_000), st.floats(1.05, STEEPEST - 0.01))
@settings(deadline=None)
def test_lengths_have_the_mean_that_was_described_and_one_in_twenty_beyond_the_p95(mean: float, factor: float) -> None:
    found = spread(MeanAndP95(mean, mean * factor))
    assert found.mean == pytest.approx(mean, rel=1e-6)
    assert sum(one.share for one in found.buckets) == pytest.approx(1.0)
    beyond = sum(one.share for one in found.buckets if one.low >= mean * factor * (1 - 1e-9))
    assert beyond == pytest.approx(0.05)


def test_in_two_groups_the_same_mean_and_p95_have_no_tail():
    found = in_two_groups(MeanAndP95(1400, 4000))
    assert found.mean == pytest.approx(1400)
    assert found.at(0.95) == found.longest == 4000
    # Steeper than any lognormal: the only shape that is left.
    assert spread(MeanAndP95(1000, 8000)) == in_two_groups(MeanAndP95(1000, 8000))


@pytest.mark.parametrize(("mean", "p95", "why"), [(500, 400, "below the mean"), (10, 4000, "cannot be as small")])
def test_lengths_that_nothing_has_are_refused(mean: float, p95: float, why: str):
    with pytest.raises(DescriptionError, match=why):
        spread(MeanAndP95(mean, p95))


def test_described_traffic_is_the_likeliest_one_and_others_of_the_same_description():
    found = alternatives(ROOMY, TRAFFIC)
    assert len(found) == 4
    assert all(one.demand.clients == 40 for one in found)
    alike = [one.output for one in found[1].demand.requests]
    assert alike == sorted(alike)
    assert [one.output for one in found[0].demand.requests] != alike
    growing = found[3].server.steps
    batch = found[0].measured.running
    assert growing.of(batch, 0) == pytest.approx(0.03)
    assert growing.of(2 * batch, 0) == pytest.approx(0.039)


def test_requests_that_never_fit_cannot_be_predicted():
    with pytest.raises(UnknownError, match="does one fit"):
        list(under(Server(16.0, ROOMY.steps), TRAFFIC))


def test_described_traffic_comes_behind_the_caps_that_are_in_force():
    limits = Limits(max_input_tokens=Limit(2000), max_output_tokens=Limit(100), max_model_len=Limit(4096))
    server = within_caps(ROOMY, limits)
    assert (server.cap_prompt, server.cap_output, server.cap_total) == (2000, 100, 4096)
    assert within_caps(ROOMY, Limits()).cap_prompt == math.inf
    (known, *_) = under(server, TRAFFIC)
    assert known.measured.tokens_per_second > 0

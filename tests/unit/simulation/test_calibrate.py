from __future__ import annotations

from dataclasses import replace

import pytest

from kvpressure.config.thresholds import load_thresholds
from kvpressure.model.view import Observed, Unfinished
from kvpressure.simulation import calibrate
from kvpressure.simulation.arrivals import Arrivals
from kvpressure.simulation.calibrate import Given, Known, known
from kvpressure.simulation.config_changes import kv_in_8_bits, replicas
from kvpressure.simulation.models import model_of
from kvpressure.simulation.scheduler import simulate
from kvpressure.simulation.steps import UnknownError
from tests.support.observed import pressed_view

pytestmark = pytest.mark.recorded

THRESHOLDS = load_thresholds()
REAL = (
    "traces/long-context-collapse.jsonl.xz",
    "traces/preemption-thrash.jsonl.xz",
    "traces/v0.12-preemption.jsonl.xz",
)
LAB = ("lab/kv-collapse-0.33.0.jsonl.xz", "lab/kv-json-0.33.0.jsonl.xz", "lab/kv-watermark-long-0.33.0.jsonl.xz")


def shown(recording: str) -> Observed:
    observed = pressed_view(recording).observed
    assert observed is not None
    return observed


@pytest.mark.parametrize("recording", REAL + LAB)
def test_simulated_as_it_is_an_engine_does_what_was_recorded_of_it(recording):
    """Recordings of a real vLLM among them: only what the page tells went in."""
    view = pressed_view(recording)
    found = known(Given(view.observed, view.limits, THRESHOLDS))
    outcome = simulate(found.server, found.demand)
    assert outcome.tokens_per_second == pytest.approx(found.measured.tokens_per_second, rel=0.05)
    assert outcome.running == pytest.approx(found.measured.running, rel=0.05)
    assert outcome.waiting == pytest.approx(found.measured.waiting, rel=0.15)


@pytest.mark.parametrize("recording", LAB)
def test_step_times_are_found_on_the_page(recording):
    """The lab's: 30 ms and 1/16,000 s a prompt token, with a little for sequences and context."""
    view = pressed_view(recording)
    steps = known(Given(view.observed, view.limits, THRESHOLDS)).server.steps
    assert 0.029 < steps.fixed < 0.035
    assert steps.prompt_token == pytest.approx(1 / 16_000, rel=0.25)


def test_without_something_to_go_by_nothing_is_predicted():
    view = pressed_view(LAB[0])
    observed = shown(LAB[0])
    for broken, why in (
        (None, "traffic"),
        (replace(observed, outputs=None), "lengths are not known"),
        (replace(observed, intervals=observed.intervals[:4]), "too few polls"),
        (replace(observed, intervals=tuple(replace(i, steps=None) for i in observed.intervals)), "how long steps take"),
        (replace(observed, intervals=tuple(replace(i, generated=0.0) for i in observed.intervals)), "no tokens"),
    ):
        with pytest.raises(UnknownError, match=why):
            known(Given(broken, view.limits, THRESHOLDS))
    with pytest.raises(UnknownError, match="size of the KV pool"):
        known(
            Given(
                replace(observed, cache=replace(observed.cache, capacity_tokens=None)),
                replace(view.limits, kv_capacity_tokens=None),
                THRESHOLDS,
            )
        )


def test_an_engine_that_cannot_be_simulated_as_it_is_is_not_predicted():
    view, observed = pressed_view(LAB[0]), shown(LAB[0])
    # Ten times as many run as the pool holds of such requests: whatever they are, they are not what ended.
    odd = tuple(replace(i, running=20.0, generated=(i.generated or 0.0) * 10) for i in observed.intervals)
    with pytest.raises(UnknownError):
        model_of(Given(replace(observed, intervals=odd), view.limits, THRESHOLDS))


def test_long_requests_under_way_count_where_hardly_any_has_ended():
    view, observed = pressed_view(LAB[0]), shown(LAB[0])
    long = Unfinished(observed.outputs.count, 6000.0, 400.0)
    found = known(Given(replace(observed, unfinished=long), replace(view.limits), THRESHOLDS)).demand
    assert max(one.prompt for one in found.requests) == 6000
    few = replace(long, requests=1.0)
    assert (
        max(
            one.prompt
            for one in known(Given(replace(observed, unfinished=few), view.limits, THRESHOLDS)).demand.requests
        )
        < 5000
    )


def test_a_queue_that_grows_has_clients_that_do_not_wait():
    view, observed = pressed_view(LAB[0]), shown(LAB[0])
    assert known(Given(observed, view.limits, THRESHOLDS)).demand.clients == 12
    grows = tuple(replace(one, waiting=10.0 + number / 3) for number, one in enumerate(observed.intervals))
    demand = known(Given(replace(observed, intervals=grows), view.limits, THRESHOLDS)).demand
    # A request in three seconds comes whatever ends; for each that ends another one comes, as before.
    assert demand.rate == pytest.approx(1 / 3, rel=0.15)
    assert 0 < demand.clients < 12
    assert demand.counted_seconds < demand.seconds


def test_five_minutes_that_gave_more_than_the_window_widen_the_range_to_that_side():
    view = pressed_view(LAB[0])
    observed = view.observed
    assert observed.minutes is not None
    rate = known(Given(observed, view.limits, THRESHOLDS)).measured.tokens_per_second
    for factor, side in ((1.2, "high"), (0.85, "low")):
        minutes = replace(observed.minutes, tokens_per_second=factor * rate)
        more = model_of(Given(replace(observed, minutes=minutes), view.limits, THRESHOLDS)).figures([])
        other = model_of(Given(replace(observed, minutes=None), view.limits, THRESHOLDS)).figures([])
        assert (more.tokens_per_second.high > 1.1 * other.tokens_per_second.high) is (side == "high")
        assert (more.tokens_per_second.low < 0.9 * other.tokens_per_second.low) is (side == "low")
        busier = replace(minutes, running=2 * minutes.running, waiting=2 * minutes.waiting)
        calm = replace(minutes, running=minutes.running + minutes.waiting, waiting=0.0)
        for load in (busier, calm):
            assert known(Given(replace(observed, minutes=load), view.limits, THRESHOLDS)).measured.usual_ratio == 1.0


def test_where_requests_at_a_rate_would_take_other_steps_clients_wait(monkeypatch: pytest.MonkeyPatch):
    """Any server whose queue is empty gives the tokens that are asked of it: its steps tell it apart."""
    view = pressed_view(LAB[0])

    def at_rate(most: float) -> Known:
        arrivals = Arrivals(0.25 * finished, 0.0, 0.0, most)
        monkeypatch.setattr(calibrate, "arrivals_of", lambda _: arrivals)
        few = tuple(replace(one, generated=0.25 * (one.generated or 0.0)) for one in shown(LAB[0]).intervals)
        return known(Given(replace(shown(LAB[0]), intervals=few, minutes=None), view.limits, THRESHOLDS))

    finished = sum(one.finished or 0.0 for one in shown(LAB[0]).intervals) / len(shown(LAB[0]).intervals)
    may_wait = at_rate(1.0)
    assert may_wait.must_wait
    assert not may_wait.demand.rate
    assert at_rate(0.5).demand.rate


@pytest.mark.parametrize("recording", LAB)
@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_where_a_page_does_not_tell_what_sends_requests_the_range_holds_both(
    recording: str, ratio: float, monkeypatch: pytest.MonkeyPatch
):
    view = pressed_view(recording)
    rate = sum(one.finished or 0.0 for one in shown(recording).intervals) / 60
    for least, most in ((0.0, 1.0), (ratio, ratio)):
        arrivals = Arrivals(rate, ratio, least, most)
        monkeypatch.setattr(calibrate, "arrivals_of", lambda _, arrivals=arrivals: arrivals)
        model = model_of(Given(view.observed, view.limits, THRESHOLDS))
        otherwise = [one for one in model._others if "come at a rate" in one.known.question]
        if least == most or model.known.must_wait:
            assert not otherwise
            continue
        (other,) = otherwise
        assert bool(other.known.demand.rate) != bool(model.known.demand.rate)
        for change in (replicas(2), kv_in_8_bits()):
            tokens, outcome = model.figures([change]), other.beside(model.tokens_factor, [change])
            told = tokens.tokens_per_second
            assert told.low <= change.by * model.tokens_factor * outcome.tokens_per_second <= told.high

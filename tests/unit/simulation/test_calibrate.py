from dataclasses import replace

import pytest

from kvpressure.model.view import Observed, Unfinished
from kvpressure.simulation import calibrate
from kvpressure.simulation.calibrate import Known, known
from kvpressure.simulation.config_changes import kv_in_8_bits, replicas
from kvpressure.simulation.demand import Arrivals
from kvpressure.simulation.models import model_of
from kvpressure.simulation.scheduler import simulate
from kvpressure.simulation.steps import UnknownError
from tests.support.observed import given, pressed_view

pytestmark = pytest.mark.recorded

REAL = (
    "traces/long-context-collapse.jsonl.xz",
    "traces/preemption-thrash.jsonl.xz",
    "traces/v0.12-preemption.jsonl.xz",
)
LAB = ("lab/kv-collapse-0.33.0.jsonl.xz", "lab/kv-json-0.33.0.jsonl.xz", "lab/kv-watermark-long-0.33.0.jsonl.xz")


def shown(recording: str) -> Observed:
    return pressed_view(recording).observed


@pytest.mark.parametrize("recording", REAL + LAB)
def test_simulated_as_it_is_an_engine_does_what_was_recorded_of_it(recording):
    """Recordings of a real vLLM among them: only what the page tells went in."""
    engine = known(given(recording))
    outcome = simulate(engine.server, engine.demand)
    assert outcome.tokens_per_second == pytest.approx(engine.measured.tokens_per_second, rel=0.05)
    assert outcome.running == pytest.approx(engine.measured.running, rel=0.05)
    assert outcome.waiting == pytest.approx(engine.measured.waiting, rel=0.15)


@pytest.mark.parametrize("recording", LAB)
def test_step_times_are_found_on_the_page(recording):
    """The lab's: 30 ms and 1/16,000 s a prompt token, with a little for sequences and context."""
    steps = known(given(recording)).server.steps
    assert 0.029 < steps.fixed < 0.035
    assert steps.prompt_token == pytest.approx(1 / 16_000, rel=0.25)


def test_without_something_to_go_by_nothing_is_predicted():
    view, observed = pressed_view(LAB[0]), shown(LAB[0])
    no_pool = {
        "cache": replace(observed.cache, capacity_tokens=None),
        "limits": replace(view.limits, kv_capacity_tokens=None),
    }
    for broken, why in (
        ({"observed": None}, "traffic"),
        ({"outputs": None}, "lengths are not known"),
        ({"intervals": observed.intervals[:4]}, "too few polls"),
        ({"intervals": tuple(replace(polled, steps=None) for polled in observed.intervals)}, "how long steps take"),
        ({"intervals": tuple(replace(polled, generated=0.0) for polled in observed.intervals)}, "no tokens"),
        (no_pool, "size of the KV pool"),
    ):
        with pytest.raises(UnknownError, match=why):
            known(given(LAB[0], **broken))


def test_an_engine_that_cannot_be_simulated_as_it_is_is_not_predicted():
    # Ten times as many run as the pool holds of such requests: whatever they are, they are not what ended.
    odd = tuple(replace(i, running=20.0, generated=(i.generated or 0.0) * 10) for i in shown(LAB[0]).intervals)
    with pytest.raises(UnknownError):
        model_of(given(LAB[0], intervals=odd))


def test_long_requests_under_way_count_where_hardly_any_has_ended():
    def longest(unfinished: Unfinished) -> float:
        return max(request.prompt for request in known(given(LAB[0], unfinished=unfinished)).demand.requests)

    long = Unfinished(shown(LAB[0]).outputs.count, 6000.0, 400.0)
    assert longest(long) == 6000
    assert longest(replace(long, requests=1.0)) < 5000


def test_a_queue_that_grows_has_clients_that_do_not_wait():
    assert known(given(LAB[0])).demand.clients == 12
    grows = tuple(replace(polled, waiting=10.0 + number / 3) for number, polled in enumerate(shown(LAB[0]).intervals))
    demand = known(given(LAB[0], intervals=grows)).demand
    # A request in three seconds comes whatever ends; for each that ends another one comes, as before.
    assert demand.rate == pytest.approx(1 / 3, rel=0.15)
    assert 0 < demand.clients < 12
    assert demand.counted_seconds < demand.seconds


def test_five_minutes_that_gave_more_than_the_window_widen_the_range_to_that_side():
    rate = known(given(LAB[0])).measured.tokens_per_second
    for factor, side in ((1.2, "high"), (0.85, "low")):
        minutes = replace(shown(LAB[0]).minutes, tokens_per_second=factor * rate)
        more, other = (model_of(given(LAB[0], minutes=five)).figures([]) for five in (minutes, None))
        assert (more.tokens_per_second.high > 1.1 * other.tokens_per_second.high) is (side == "high")
        assert (more.tokens_per_second.low < 0.9 * other.tokens_per_second.low) is (side == "low")
        busier = replace(minutes, running=2 * minutes.running, waiting=2 * minutes.waiting)
        calm = replace(minutes, running=minutes.running + minutes.waiting, waiting=0.0)
        for load in (busier, calm):
            assert known(given(LAB[0], minutes=load)).measured.usual_ratio == 1.0


def test_where_requests_at_a_rate_would_take_other_steps_clients_wait(monkeypatch: pytest.MonkeyPatch):
    """Any server whose queue is empty gives the tokens that are asked of it: its steps tell it apart."""

    def at_rate(most: float) -> Known:
        arrivals = Arrivals(0.25 * finished, 0.0, 0.0, most)
        monkeypatch.setattr(calibrate, "arrivals_of", lambda _: arrivals)
        few = tuple(replace(polled, generated=0.25 * (polled.generated or 0.0)) for polled in intervals)
        return known(given(LAB[0], intervals=few, minutes=None))

    intervals = shown(LAB[0]).intervals
    finished = sum(polled.finished or 0.0 for polled in intervals) / len(intervals)
    may_wait = at_rate(1.0)
    assert may_wait.must_wait
    assert not may_wait.demand.rate
    assert at_rate(0.5).demand.rate


@pytest.mark.parametrize("recording", LAB)
@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_where_a_page_does_not_tell_what_sends_requests_the_range_holds_both(
    recording: str, ratio: float, monkeypatch: pytest.MonkeyPatch
):
    rate = sum(one.finished or 0.0 for one in shown(recording).intervals) / 60
    for least, most in ((0.0, 1.0), (ratio, ratio)):
        arrivals = Arrivals(rate, ratio, least, most)
        monkeypatch.setattr(calibrate, "arrivals_of", lambda _, arrivals=arrivals: arrivals)
        model = model_of(given(recording))
        otherwise = [another for another in model._others if "come at a rate" in another.known.question]
        if least == most or model.known.must_wait:
            assert not otherwise
            continue
        (other,) = otherwise
        assert bool(other.known.demand.rate) != bool(model.known.demand.rate)
        for change in (replicas(2), kv_in_8_bits()):
            tokens, outcome = model.figures([change]), other.beside(model.tokens_factor, [change])
            told = tokens.tokens_per_second
            assert told.low <= change.by * model.tokens_factor * outcome.tokens_per_second <= told.high

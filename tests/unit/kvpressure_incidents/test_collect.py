"""Verdicts of one engine become incidents: where they begin and end, which cause they get, what is kept of them."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import count, repeat
from typing import Any

import pytest

from kvpressure.config.thresholds import load_thresholds
from kvpressure.model.samples import EngineSample
from kvpressure.model.verdict import Cause, Diagnosis, Stage
from kvpressure.prometheus.names import Json
from kvpressure_incidents import words
from kvpressure_incidents.collect import MAX_PICTURE_POINTS, Collector, Ended
from tests.support.advice_cases import diagnosis
from tests.support.views import engine_view

STEP = 15.0
LIMITS = load_thresholds()
GAP = LIMITS.verdict.incident_gap_seconds
_Judged = tuple[Collector, list[Ended]]
WELL, KV, CAP = Cause.HEALTHY, Cause.KV_CACHE_PRESSURE, Cause.CONCURRENCY_BOUND


def judged(diagnoses: Iterable[Diagnosis], samples: Iterable[EngineSample], **derived: Any) -> _Judged:
    """A verdict every STEP seconds, from 0 on, with what was seen."""
    collector, found = Collector({"pod": "a"}, LIMITS, STEP), list[Ended]()
    for number, (verdict, sample) in enumerate(zip(diagnoses, samples, strict=False)):
        t = STEP * number
        found += collector.add(engine_view(t=t, diagnosis=replace(verdict, t=t), derived=derived), sample)
    return collector, found


def run(causes: Iterable[Cause], waiting: float = 3.0, detail: str | None = None) -> _Judged:
    gauges = {"running": 8.0, "waiting": waiting, "kv_usage": 0.9}
    samples = (EngineSample("m", "0", gauges, {"generation_tokens": 100.0 * number}) for number in count())
    return judged((diagnosis(cause, Stage.COLLAPSED, detail) for cause in causes), samples)


def going_on(diagnoses: Iterable[Diagnosis], **derived: Any) -> Json:
    """The one incident of verdicts without a sample."""
    collector, _ = judged(diagnoses, repeat(EngineSample("m", "0", {}, {})), **derived)
    (ended,) = collector.finish(ended=True)
    return ended.incident


def long(seconds: float) -> int:
    return int(seconds / STEP) + 1


def test_an_incident_begins_with_the_sample_before_the_first_verdict_and_ends_with_the_last() -> None:
    _, (one,) = run([WELL] * 4 + [KV] * 10 + [WELL] * (long(GAP) + 1))
    incident = one.incident
    assert (incident["began"], incident["ended"], incident["seconds"]) == (45.0, 195.0, 150.0)
    assert (incident["cause"], incident["causes"], incident["stage"]) == (KV.value, {KV.value: 150.0}, "collapsed")
    assert incident["confidence"] == pytest.approx(0.8)
    assert incident["peak"]["kv_usage_ratio"] == 0.9


def queued(causes: Iterable[Cause], waiting: Iterable[float], *, ended: bool = False) -> Ended:
    """The one incident of verdicts and queues, a step apart."""
    collector, found = judged(
        (diagnosis(cause, Stage.COLLAPSED) for cause in causes),
        (EngineSample("m", "0", {"running": 8.0, "waiting": many}, {}) for many in waiting),
    )
    (one,) = [*found, *collector.finish(ended=ended)]
    return one


def test_an_incident_is_dated_by_its_queue_and_not_by_verdicts_that_come_late() -> None:
    one = queued([WELL] * 8 + [KV] * 7 + [WELL], [0.0] * 5 + [4.0] * 7 + [0.0] * 4)
    # The queue is first seen at 75 s and last at 165 s; verdicts name it from 120 s to 210 s.
    assert (one.incident["began"], one.incident["ended"], one.incident["seconds"]) == (60.0, 180.0, 120.0)


def test_what_an_incident_lost_is_not_told_where_verdicts_speak_of_too_little_of_it() -> None:
    one = queued([WELL] * 8 + [KV] * 7 + [WELL], [0.0] * 5 + [4.0] * 7 + [0.0] * 4)
    assert (one.incident["judged_seconds"], one.incident["lost_tokens"]) == (75.0, None)
    assert words.lost(one.incident) == "not counted: verdicts cover 1 min 15 s of it"


@pytest.mark.parametrize(
    ("cause", "healthy", "said"),
    [
        (Cause.HOST_BOUND, 0, "no healthy time was seen before it to compare with"),
        (Cause.HOST_BOUND, 8, "2 min 0 s of healthy time before it are not enough to compare with"),
        (KV, 8, "its step times do not show what it would have generated with room for all"),
    ],
)
def test_why_it_is_not_known_what_was_lost_is_true_of_the_time_before(cause: Cause, healthy: int, said: str) -> None:
    collector, _ = run([WELL] * healthy + [cause] * 10)
    (one,) = collector.finish(ended=True)
    assert one.incident["healthy_seconds"] == healthy * STEP
    assert words.lost(one.incident) == f"not known: {said}"


def test_its_confidence_is_that_of_the_verdict_whose_evidence_is_listed_and_none_is_not_zero() -> None:
    def confident(*values: float) -> Json:
        return going_on(replace(diagnosis(KV), confidence=value) for value in values)

    assert confident(0.7, 0.0, 0.0, 0.0)["confidence"] == 0.7
    nothing = confident(0.0, 0.0)
    assert nothing["confidence"] is None
    assert not any("confidence" in line for line in words.lines(nothing))


def test_an_incident_whose_queue_is_served_does_not_go_on_whatever_the_verdict_says_still() -> None:
    assert queued([WELL] * 4 + [KV] * 8, [0.0] * 3 + [4.0] * 7 + [0.0] * 2).incident["ended"] == 150.0
    assert queued([WELL] * 4 + [KV] * 6 + [WELL] * 2, [0.0] * 3 + [4.0] * 7 + [0.0] * 2).incident["ended"] == 135.0
    assert queued([WELL] * 4 + [KV] * 8, [0.0] * 3 + [4.0] * 9).incident["ended"] is None


def test_a_queue_that_was_there_for_long_does_not_date_the_incident() -> None:
    one = queued([WELL] * 40 + [KV] * 8, [0.0] * 2 + [4.0] * 46)
    assert one.incident["began"] == 585.0


def test_an_incident_of_a_few_samples_is_said_to_be_too_short_to_date() -> None:
    one = queued([WELL] * 4 + [KV] * 4 + [WELL], [0.0] * 4 + [4.0] * 4 + [0.0])
    assert words.when(one.incident).endswith("1 min 0 s, exact to 15 s at best")


def test_trouble_that_comes_back_within_the_gap_is_the_same_and_after_it_another() -> None:
    near, far = int(GAP / STEP) - 1, long(GAP) + 1
    collector, ended = run([KV] * 8 + [WELL] * near + [KV] * 8)
    assert [*ended, *collector.finish(ended=True)][0].seconds == pytest.approx(STEP * (15 + near), abs=STEP)
    collector, ended = run([KV] * 8 + [WELL] * far + [KV] * 8)
    assert len([*ended, *collector.finish(ended=True)]) == 2


def test_the_cause_that_held_longest_names_it_and_the_others_are_kept() -> None:
    collector, _ = run([CAP] * 3 + [KV] * 9)
    (one,) = collector.finish(ended=True)
    assert one.incident["cause"] == KV.value
    assert set(one.incident["causes"]) == {CAP.value, KV.value}
    assert one.incident["causes"][KV.value] > one.incident["causes"][CAP.value]


def test_what_still_goes_on_at_the_end_has_no_end() -> None:
    collector, _ = run([WELL] * 4 + [KV] * 9)
    (one,) = collector.finish(ended=False)
    assert (one.incident["ended"], one.incident["seconds"]) == (None, 135.0)
    assert list(collector.finish(ended=True)) == []


def test_healthy_verdicts_are_no_incident() -> None:
    collector, found = run([WELL] * 40)
    assert [*found, *collector.finish(ended=True)] == []


def test_time_in_which_requests_waited_and_nothing_told_why_is_counted() -> None:
    collector, _ = run([Cause.UNKNOWN] * 6, detail="layers_differ")
    assert collector.unjudged == {"layers_differ": 90.0}
    idle, _ = run([Cause.UNKNOWN] * 6, waiting=0.0, detail="layers_differ")
    begins, _ = run([Cause.UNKNOWN] * 6, detail="too_few_polls")
    assert (idle.unjudged, begins.unjudged) == ({}, {})


def test_a_picture_has_the_time_before_and_stays_small_however_long_it_was() -> None:
    collector, _ = run([WELL] * 200 + [KV] * 2000)
    (one,) = collector.finish(ended=True)
    picture = one.incident["picture"]
    assert len(picture["t"]) <= MAX_PICTURE_POINTS
    assert picture["t"][0] < one.incident["began"]
    assert picture["t"][-1] > one.incident["began"] + 0.95 * one.seconds
    rates = [rate for rate in picture["tokens_per_second"] if rate is not None]
    assert rates == pytest.approx([100 / STEP] * len(rates), abs=1e-4)


def test_replicas_that_would_have_served_are_a_peak_where_demand_is_known() -> None:
    incident = going_on([diagnosis(KV)], demand_replicas={"kv_tokens": 2.0 * 0.7})
    assert incident["peak"]["desired_replicas"] == -(-1.4 // LIMITS.scaling.target_ratio) == 2


def test_replicas_that_would_have_served_are_four_more_or_double_in_five_minutes() -> None:
    incident = going_on([diagnosis(KV)] * long(660), demand_replicas={"kv_tokens": 3332.0})
    assert incident["peak"]["desired_replicas"] == (1 + 4) * 2 * 2

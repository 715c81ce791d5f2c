"""When a request of one token is due, and of what its answer is evidence, over polls made by hand."""

from __future__ import annotations

import pytest

from kvpressure.model.samples import CanaryReport, CanaryResult, EngineSample
from kvpressure.signals.canary import CanaryTimes, CanaryWatch
from kvpressure.signals.progress import progress_of
from kvpressure.signals.windows import EngineWindow

TIMES = CanaryTimes()
ANSWERED, SILENT, NOT_POSSIBLE = CanaryResult.ANSWERED, CanaryResult.TIMEOUT, CanaryResult.NOT_POSSIBLE


def report(sent: float, t: float, result: CanaryResult = ANSWERED, unanswered: bool | None = False) -> CanaryReport:
    return CanaryReport(sent, t, result, unanswered, "what happened")


class Watch(CanaryWatch):
    """One that has its engine's window beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.window = EngineWindow(60, 600)


def follow(
    watch: Watch, first: int, last: int, *, frozen_at: int | None = None, asleep: bool = False, keeps: bool = False
) -> None:
    """Poll at 1 Hz: idle, or since `frozen_at` with a request and nothing that moves."""
    for t in range(first, last + 1):
        gauges = {"running": 0.0 if frozen_at is None else 1.0, "waiting": 0.0, "awake": float(not asleep)}
        gauges |= {"keeps_last_step": 1.0} if keeps else {}
        watch.window.add(float(t), EngineSample("m", "0", gauges, {"generation_tokens": 9.0, "prompt_tokens": 9.0}))
        watch.follow(watch.window.points[-1], progress_of(watch.window))


def wanted_at(watch: Watch, seconds: range, **how: object) -> list[int]:
    """When it is due, if each request is sent at once and answered."""
    times = []
    for t in seconds:
        follow(watch, t, t, **how)  # type: ignore[arg-type]
        if watch.is_due(float(t), TIMES):
            times.append(t)
            watch.sent(float(t))
            watch.take(report(float(t), t + 0.1))
    return times


def test_an_idle_engine_gets_a_request_after_its_time_and_then_at_each_interval():
    assert wanted_at(Watch(), range(200)) == [30, 90, 150]


def test_an_engine_without_progress_gets_a_request_after_its_time_though_the_window_is_shorter():
    assert wanted_at(Watch(), range(100, 400), frozen_at=100) == [130, 190, 250, 310, 370]


def test_an_engine_whose_page_keeps_its_last_step_gets_a_request_too_for_it_may_hang():
    assert wanted_at(Watch(), range(100, 300), frozen_at=100, keeps=True) == [130, 190, 250]


def test_a_new_stall_gets_a_request_after_its_own_time():
    watch = Watch()
    assert wanted_at(watch, range(40)) == [30]
    assert wanted_at(watch, range(40, 80), frozen_at=40) == [70]


def test_a_server_that_takes_no_such_request_gets_one_ten_times_as_rarely():
    watch = Watch()
    follow(watch, 0, 30)
    watch.sent(30.0)
    watch.take(report(30.0, 30.1, NOT_POSSIBLE, None))
    follow(watch, 31, 640)
    assert [watch.is_due(t, TIMES) for t in (100.0, 600.0, 630.0)] == [False, False, True]
    assert watch.evidence(640.0, TIMES).text.startswith("what happened")


@pytest.mark.parametrize("unanswered", [True, False])
def test_an_answer_is_evidence_until_the_next_is_due(unanswered: bool):
    watch = Watch()
    follow(watch, 0, 30)
    watch.sent(30.0)
    watch.take(report(30.0, 60.0, SILENT, unanswered))
    assert watch.evidence(60.0, TIMES).state is unanswered
    assert watch.evidence(160.0, TIMES).state is unanswered
    assert watch.evidence(170.0, TIMES).state is None


def test_an_answer_of_another_process_or_from_before_a_pause_is_none():
    for forget in (lambda w: w.begin_anew(40.0, started=True), lambda w: follow(w, 40, 40, asleep=True)):
        watch = Watch()
        follow(watch, 0, 39)
        watch.sent(30.0)
        forget(watch)
        watch.take(report(30.0, 60.0, SILENT, unanswered=True))
        follow(watch, 60, 61)
        assert watch.evidence(61.0, TIMES).state is None
        assert watch.families() == {
            "canary_requests_total": {result: float(result is SILENT) for result in CanaryResult}
        }


def test_only_canary_needs_a_request_and_a_page_as_idle_as_that():
    watch = Watch()
    follow(watch, 0, 40)
    assert not watch.only_canary(40.0, 15.0)
    watch.sent(30.0)
    assert watch.only_canary(40.0, 15.0)
    assert not watch.only_canary(40.0, 45.0)

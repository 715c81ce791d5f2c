"""The detection benchmark's own arithmetic, on verdicts written by hand."""

from __future__ import annotations

import pytest

from bench.detection.score import KV, Score, Second, pressures, score_track
from bench.detection.truth import Accepted

HEALTHY: Accepted = frozenset({"healthy"})
PRESSED: Accepted = frozenset({KV})
EITHER: Accepted = frozenset({KV, "healthy"})


def track(*parts: tuple[int, Accepted, str], start: float = 1000.0) -> list[Second]:
    """Seconds of (how many, what may be said, what was said)."""
    seconds: list[Second] = []
    for count, accepted, verdict in parts:
        seconds += [Second(start + len(seconds) + n, verdict, accepted) for n in range(count)]
    return seconds


def test_right_verdicts_are_counted_under_their_cause() -> None:
    score = score_track(track((100, HEALTHY, "healthy"), (100, PRESSED, KV)))
    assert score.accuracy() == 1.0
    assert score.confusion == {("healthy", "healthy"): 100, (KV, KV): 100 - 46}
    assert score.excluded == 46


def test_a_wrong_verdict_costs_its_seconds_and_is_named() -> None:
    score = score_track(track((60, HEALTHY, "healthy"), (20, HEALTHY, "stuck"), (20, HEALTHY, "healthy")))
    assert score.accuracy("healthy") == 0.8
    (wrong,) = score.wrong
    assert (wrong.begin, wrong.seconds, wrong.truth, wrong.verdict) == (60.0, 20, "healthy", "stuck")


def test_a_late_verdict_is_excused_for_45_seconds_after_the_label_changed_and_no_longer() -> None:
    def late(seconds: int) -> Score:
        return score_track(track((60, HEALTHY, "healthy"), (seconds, PRESSED, "healthy"), (100, PRESSED, KV)))

    assert late(46).accuracy(KV) == 1.0
    assert late(56).confusion[KV, "healthy"] == 10


def test_the_start_of_a_recording_is_no_label_change() -> None:
    assert score_track(track((20, PRESSED, "healthy"), (20, PRESSED, KV))).accuracy(KV) == 0.5


@pytest.mark.parametrize(("seconds", "counted"), [(15, 0), (25, 10)])
def test_unknown_is_wrong_but_for_the_first_15_seconds(seconds: int, counted: int) -> None:
    score = score_track(track((seconds, HEALTHY, "unknown"), (50, HEALTHY, "healthy")))
    assert score.unknown_seconds() == counted
    assert score.confusion["healthy", "unknown"] == counted


def test_what_may_be_said_either_way_counts_apart_and_only_other_verdicts_are_wrong() -> None:
    score = score_track(track((50, EITHER, "healthy"), (30, EITHER, KV), (20, EITHER, "stuck")))
    assert (score.between_right, score.between_wrong) == (80, 20)
    assert score.accuracy() is None
    assert [stretch.verdict for stretch in score.wrong] == ["stuck"]
    assert not score.false_claims


def test_a_delay_runs_from_the_onset_to_the_first_right_verdict() -> None:
    score = score_track(track((60, HEALTHY, "healthy"), (17, PRESSED, "healthy"), (100, PRESSED, KV)))
    assert [pressure.delay for pressure in score.pressures] == [17.0]
    assert score.found() == 1


def test_a_verdict_that_was_there_before_the_onset_has_no_delay() -> None:
    score = score_track(track((60, HEALTHY, "healthy"), (20, EITHER, KV), (60, PRESSED, KV)))
    assert [pressure.delay for pressure in score.pressures] == [0.0]


def test_pressure_that_is_named_too_late_or_never_is_missed() -> None:
    late = score_track(track((30, PRESSED, "healthy"), (46, HEALTHY, "healthy"), (9, HEALTHY, KV)))
    never = score_track(track((100, PRESSED, "concurrency_bound")))
    assert [pressure.delay for pressure in (*late.pressures, *never.pressures)] == [None, None]
    assert late.found() == never.found() == 0


def test_pressure_too_short_to_matter_need_not_be_found() -> None:
    assert pressures(track((30, HEALTHY, "healthy"), (8, PRESSED, "healthy"), (30, HEALTHY, "healthy"))) == []


def test_pressure_that_is_unclear_for_a_while_is_one_stretch_and_relief_ends_it() -> None:
    unclear = track((30, PRESSED, KV), (20, EITHER, KV), (30, PRESSED, KV))
    relieved = track((30, PRESSED, KV), (20, HEALTHY, KV), (30, PRESSED, KV))
    assert [(p.onset, p.end) for p in pressures(unclear)] == [(1000.0, 1079.0)]
    assert [(p.onset, p.end) for p in pressures(relieved)] == [(1000.0, 1029.0), (1050.0, 1079.0)]


def test_a_restart_ends_a_stretch_and_begins_another() -> None:
    seconds = track((30, PRESSED, KV)) + track((30, PRESSED, KV), start=1050.0)
    assert [pressure.onset for pressure in pressures(seconds)] == [1000.0, 1050.0]


def test_a_claim_of_pressure_is_false_when_none_was_near() -> None:
    near = score_track(track((60, PRESSED, KV), (44, HEALTHY, KV), (60, HEALTHY, "healthy")))
    outlasting = score_track(track((60, PRESSED, KV), (100, HEALTHY, KV)))
    far = score_track(track((60, PRESSED, KV), (46, HEALTHY, "healthy"), (5, HEALTHY, KV), (60, HEALTHY, "healthy")))
    before = score_track(track((60, HEALTHY, KV), (1, HEALTHY, "healthy"), (60, PRESSED, KV)))
    assert [len(score.false_claims) for score in (near, outlasting, far, before)] == [0, 0, 1, 1]
    assert far.false_claims[0].begin == 106.0


def test_scores_add_up() -> None:
    total = Score()
    for parts in ((80, HEALTHY, "healthy"), (20, HEALTHY, "stuck")):
        total.add(score_track(track(parts)))
    assert total.accuracy("healthy") == 0.8
    assert total.confusion.total() == 100
    assert total.delay_quantile(0.5) is None


def test_no_verdicts_score_nothing() -> None:
    assert score_track([]) == Score()

"""What wakes people, scored on made-up tracks: found in time, begun after the end, false."""

from __future__ import annotations

from bench.detection.judge import Outcome
from bench.detection.paging import PageScore, RightScore, chosen, pages_table, summary
from bench.detection.rules import Firing, firing
from bench.detection.score import KV, Second

CALM, PRESSED = frozenset({"healthy"}), frozenset({KV})


def track(onset: int, end: int, seconds: int = 900) -> list[Second]:
    return [Second(float(t), "", PRESSED if onset <= t < end else CALM) for t in range(seconds)]


def score(onset: int, end: int, true: range) -> PageScore:
    found = PageScore()
    fired = firing([float(t) for t in true], 0.0, 180.0)
    found.add("e", fired, track(onset, end), [(float(t), 30.0) for t in range(0, 900, 15)])
    return found


def test_a_stretch_is_told_in_time_with_its_delay_and_what_people_waited():
    found = score(300, 600, range(345, 600, 15))
    assert found.rows == [("e", 299.0, 30.0, 45.0)]
    assert (found.late, found.false) == ([], [])
    assert found.firing / found.evaluations > 0.8


def test_a_page_that_begins_within_a_minute_after_the_end_is_late_and_the_stretch_is_missed():
    found = score(300, 600, range(615, 660, 15))
    assert found.late == ["e"]
    assert found.delays == []


def test_a_page_without_any_pressure_is_false():
    assert score(300, 600, range(60, 120, 15)).false == ["e"]
    assert score(300, 600, range(750, 800, 15)).false == ["e"]


def test_what_begins_after_the_last_page_is_neither():
    found = PageScore()
    found.add("e", firing([105.0], 0.0), track(0, 100, seconds=100), [])
    assert (found.late, found.false) == ([], [])


def test_a_stretch_of_less_than_two_minutes_is_not_counted_and_may_be_told():
    found = score(300, 360, range(330, 360, 15))
    assert (found.rows, found.late, found.false) == ([], [], [])


def test_the_tables_have_a_row_for_every_stretch_and_one_for_each_wrong_page():
    scores = {
        15: {"A (critical)": score(300, 600, range(345, 600, 15))},
        60: {"A (critical)": score(300, 600, range(0))},
    }
    assert [row[1:4] for row in summary("here", scores).rows] == [("1", "100.0 %", "45"), ("1", "0.0 %", "-")]
    assert pages_table("here", scores, "A (critical)").rows == (("e", "299", "30", "45", "missed"),)
    scores[15]["A (critical)"].late.append("e")
    assert pages_table("here", scores, "A (critical)").rows[-1] == ("e: begun late", "", "", "yes", "")


def test_the_subset_has_every_cause_and_most_of_it_is_about_the_kv_cache():
    some, all_ = chosen(full=False), chosen(full=True)
    assert {one.cause for one in some} == {one.cause for one in all_}
    assert sum(one.cause == KV for one in some) > len(some) / 4


def test_an_alert_is_right_where_what_it_is_about_was_true_within_45_seconds():
    track = [Second(float(t), "", frozenset({"concurrency_bound" if t < 100 else "healthy"})) for t in range(300)]
    outcome, fired = Outcome("one", "lab", "cap"), Firing([60.0, 75.0, 120.0, 240.0, 400.0])
    found = {}
    for alert in ("KVPressureQueueNotServed", "KVPressureSLOBurn", "KVPressureBatchCollapsed"):
        found[alert] = RightScore()
        found[alert].add(alert, outcome, fired, track)
    # It begins at 60, 120 and 240 s; nobody knows what is true at 400.
    assert found["KVPressureQueueNotServed"] == RightScore(alerts=3, right=2, evaluations=4, right_evaluations=3)
    assert found["KVPressureSLOBurn"] == RightScore(alerts=3, evaluations=4)
    assert found["KVPressureBatchCollapsed"] == found["KVPressureQueueNotServed"]

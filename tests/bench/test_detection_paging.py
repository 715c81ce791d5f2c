"""What wakes people, scored on made-up tracks: found in time, begun after the end, false."""

from __future__ import annotations

from bench.detection.episodes import RESTARTS, long_scenario, long_specs, restart_times
from bench.detection.judge import Outcome, Scrape
from bench.detection.paging import RESTARTING, PageScore, RightScore, pages_table, summary
from bench.detection.rules import CONTAINER_RESTARTS, Firing, firing, samples
from bench.detection.score import KV, Second
from bench.detection.shipped import Rule
from bench.simulator.scenarios import CAUSES

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


def test_an_alert_is_right_where_what_it_is_about_was_true_within_45_seconds():
    track = [Second(float(t), "", frozenset({"concurrency_bound" if t < 100 else "healthy"})) for t in range(300)]
    outcome, fired = Outcome("one", "lab", "cap"), Firing([60.0, 75.0, 120.0, 240.0, 400.0])
    found = {}
    for alert in ("KVPressureQueueNotServed", "KVPressureSLOBurn", "KVPressureBatchCollapsed"):
        found[alert] = RightScore()
        found[alert].add(Rule(f"{alert} (warning)", "", 0.0), outcome, fired, track)
    # It begins at 60, 120 and 240 s; nobody knows what is true at 400.
    assert found["KVPressureQueueNotServed"] == RightScore(alerts=3, right=2, evaluations=4, right_evaluations=3)
    assert found["KVPressureSLOBurn"] == RightScore(alerts=3, evaluations=4)
    assert found["KVPressureBatchCollapsed"] == found["KVPressureQueueNotServed"]


def test_an_alert_of_restarts_is_right_where_as_many_were_counted_as_it_says():
    track = [Second(float(t), "", CALM) for t in range(2400)]
    fired = Firing([330.0, 400.0, 1300.0, 1400.0])
    own, kubernetes = (Rule(f"{RESTARTING} (warning)", expr, 0.0) for expr in ("", f"changes({CONTAINER_RESTARTS})"))

    def right(rule: Rule, *restarts: float, replaced: bool = False) -> int:
        score = RightScore()
        score.add(rule, Outcome("one", "restarts", "", restarts=restarts, replaced=replaced), fired, track)
        return score.right_evaluations

    assert right(kubernetes, 320.0) == 2  # a quarter of an hour, and not from 1280 s on
    assert right(kubernetes, 320.0, replaced=True) == 0
    assert right(own, 320.0) == 0
    assert right(own, 320.0, 390.0) == right(own, 320.0, 390.0, replaced=True) == 1
    assert right(own) == 0


def test_kubernetes_counts_on_in_a_pod_and_from_nothing_in_a_new_one():
    scrapes = {"0": [Scrape(15.0 * number) for number in range(4)]}
    counts = {}
    for replaced in (False, True):
        outcome = Outcome("one", "restarts", "", scrapes=scrapes, restarts=(20.0, 40.0), replaced=replaced)
        counts[replaced] = [sample.value for sample in samples([outcome]) if sample.name == CONTAINER_RESTARTS]
    assert counts == {False: [3, 3, 4, 5], True: [3, 3, 0, 0]}


def test_long_episodes_have_every_cause_for_a_quarter_of_an_hour_and_servers_that_start_again():
    about = {spec.cause: long_scenario(spec.cause, spec.seed) for spec in long_specs()}
    assert set(about) == {*CAUSES, RESTARTS}
    for cause, scenario in about.items():
        assert cause == RESTARTS or sum(one.seconds for one in scenario.phases if one.label == cause) >= 900
    counts = [len(restart_times(long_scenario(RESTARTS, one.seed))) for one in long_specs() if one.cause == RESTARTS]
    assert counts.count(1) == len(counts) / 2
    assert max(counts) > 2

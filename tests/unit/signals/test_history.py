import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from kvpressure.model.values import Value
from kvpressure.model.verdict import Cause, Diagnosis, Evidence, Stage
from kvpressure.signals import history
from kvpressure.signals.history import MAX_CAUSES, POINTS, STEP_SECONDS, Histories, Span

START = 1_767_225_600.0


@dataclass(frozen=True)
class Reading:
    labels: tuple[str, ...] = ("t",)
    derived: Mapping[str, Value] = field(default_factory=dict)
    diagnosis: Diagnosis | None = None

    @property
    def key(self) -> tuple[str, ...]:
        return self.labels


def verdict(cause: Cause, since: float, **blocked: float) -> Diagnosis:
    symptoms = {name: Evidence(name, True, "", value, 0.5, "ratio") for name, value in blocked.items()}
    return Diagnosis(since, since, cause, 1.0, 0.25, Stage.NONE, symptoms)


def running(value: float, name: str = "t") -> Reading:
    return Reading((name,), {"requests_running": value})


def points(histories: Histories, row: str = "running", name: str = "t") -> list[float]:
    past = histories.engine((name,))
    return list(past.values[row])


def test_a_history_holds_the_newest_quarter_of_an_hour_oldest_first():
    histories = Histories()
    for step in range(POINTS + 50):
        histories.add(START + step * STEP_SECONDS, [running(step)], [])
    assert points(histories) == [float(step) for step in range(50, POINTS + 50)]
    past = histories.engine(("t",))
    assert past.t - past.began == (POINTS - 1) * STEP_SECONDS == 895.0


def test_the_last_snapshot_of_five_seconds_is_the_one_that_stays():
    histories = Histories()
    for second, value in enumerate((1.0, 2.0, 3.0)):
        histories.add(START + second, [running(value)], [])
    assert points(histories)[-1] == 3.0
    assert math.isnan(points(histories)[-2])


def test_what_was_not_known_or_not_read_is_a_gap_not_zero():
    histories = Histories()
    histories.add(START, [running(1.0)], [])
    histories.add(START + 5, [Reading()], [])
    histories.add(START + 25, [running(2.0)], [])
    newest = points(histories)[-6:]
    assert [None if math.isnan(value) else value for value in newest] == [1.0, None, None, None, None, 2.0]


def test_what_single_precision_cannot_hold_is_not_known():
    histories = Histories()
    histories.add(START, [running(1e300)], [])
    assert math.isnan(points(histories)[-1])


def test_after_a_quarter_of_an_hour_unseen_an_engine_is_forgotten_and_before_that_it_is_not():
    histories = Histories()
    histories.add(START, [running(1.0)], [])
    histories.add(START + 890, [running(1.0, "other")], [])
    assert points(histories)[1] == 1.0
    histories.add(START + 910, [running(1.0, "other")], [])
    assert histories.engine(("t",)) is None


def test_a_clock_set_back_by_a_moment_keeps_the_past_and_by_more_starts_it_again():
    histories = Histories()
    histories.add(START, [running(1.0)], [])
    histories.add(START - 0.5, [running(2.0)], [])
    assert points(histories)[-1] == 2.0
    histories.add(START - 3600, [running(3.0)], [])
    assert [value for value in points(histories) if not math.isnan(value)] == [3.0]


def test_a_jump_forward_of_any_length_leaves_nothing_old_behind():
    histories = Histories()
    histories.add(START, [running(1.0)], [])
    histories.add(START + 1e6, [running(2.0)], [])
    assert [value for value in points(histories) if not math.isnan(value)] == [2.0]


def test_causes_become_spans_with_gaps_where_nothing_was_read():
    histories = Histories()
    for second in range(120):
        if 60 <= second < 80:
            continue
        cause, since = (Cause.IDLE, 0.0) if second < 30 else (Cause.HEALTHY, START + 30)
        histories.add(START + second, [Reading(diagnosis=verdict(cause, since))], [])
    past = histories.engine(("t",))
    assert past.causes == (
        Span(START, START + 29, "idle"),
        Span(START + 30, START + 59, "healthy"),
        Span(START + 80, START + 119, "healthy"),
    )


def test_a_chart_shows_the_exported_values_and_the_score():
    derived: dict[str, Value] = {"admission_blocked_ratio": 0.4}
    histories = Histories()
    histories.add(START, [Reading(("a",), derived, verdict(Cause.HEALTHY, START))], [])
    assert round(points(histories, "blocked", "a")[-1], 3) == 0.4
    assert points(histories, "score", "a")[-1] == 0.25


def test_memory_of_a_gpu_is_a_share_and_absent_without_a_total():
    histories = Histories()
    both: dict[str, Value] = {
        "gpu_memory_used_bytes": 30.0,
        "gpu_memory_total_bytes": 40.0,
        "gpu_utilization_ratio": 0.5,
    }
    histories.add(START, [], [Reading(("known",), both), Reading(("odd",), {"gpu_memory_used_bytes": 30.0})])
    known, odd = histories.gpu(("known",)), histories.gpu(("odd",))
    assert (known.values["memory"][-1], known.values["busy"][-1]) == (0.75, 0.5)
    assert math.isnan(odd.values["memory"][-1])


def test_nothing_grows_with_time_or_with_engines_that_come_and_go(monkeypatch):
    monkeypatch.setattr(history, "MAX_HISTORIES", 8)
    histories = Histories()
    for step in range(400):
        cause = Cause.IDLE if step % 2 else Cause.HEALTHY
        at = START + step * STEP_SECONDS
        histories.add(at, [Reading((f"pod-{step // 5}",), {}, verdict(cause, at)), running(1.0)], [])
    rings = histories._engines
    assert len(rings) == 8
    assert ("t",) in rings
    assert max(len(ring.causes) for ring in rings.values()) <= MAX_CAUSES


def test_engines_beyond_the_cap_take_the_place_of_none_that_is_alive(monkeypatch):
    monkeypatch.setattr(history, "MAX_HISTORIES", 2)
    histories = Histories()
    for step in range(3):
        histories.add(START + step * 5, [running(1.0, name) for name in "abc"], [])
    assert (histories.engine(("a",)) is None, histories.engine(("c",)) is None) == (False, True)


def test_sixty_four_engines_cost_a_few_hundred_kilobytes():
    histories = Histories()
    histories.add(START, [running(1.0, str(number)) for number in range(64)], [])
    assert sum(ring.values.itemsize * len(ring.values) for ring in histories._engines.values()) < 500_000


@given(st.lists(st.tuples(st.floats(0, 4000), st.floats(0, 1)), max_size=40))
def test_however_time_goes_every_row_has_all_its_points_and_the_newest_value(readings):
    histories = Histories()
    for offset, value in readings:
        histories.add(START + offset, [running(value)], [])
        past = histories.engine(("t",))
        assert {len(row) for row in past.values.values()} == {POINTS}
        assert math.isclose(past.values["running"][-1], value, rel_tol=1e-6, abs_tol=1e-30)

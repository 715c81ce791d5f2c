from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from kvpressure.features import history as trails
from kvpressure.features.history import MAX_CAUSES, POINTS, STEP_SECONDS, Span, Trail
from kvpressure.model.values import Value
from kvpressure.model.verdict import Cause, Diagnosis, Evidence, Stage

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


def points(trail: Trail, row: str = "running", name: str = "t") -> list[float]:
    past = trail.engine((name,))
    assert past is not None
    return list(past.values[row])


def test_a_trail_holds_the_newest_quarter_of_an_hour_oldest_first():
    trail = Trail()
    for step in range(POINTS + 50):
        trail.add(START + step * STEP_SECONDS, [running(step)], [])
    assert points(trail) == [float(step) for step in range(50, POINTS + 50)]
    past = trail.engine(("t",))
    assert past is not None
    assert past.t - past.began == (POINTS - 1) * STEP_SECONDS == 895.0


def test_the_last_snapshot_of_five_seconds_is_the_one_that_stays():
    trail = Trail()
    for second, value in enumerate((1.0, 2.0, 3.0)):
        trail.add(START + second, [running(value)], [])
    assert points(trail)[-1] == 3.0
    assert math.isnan(points(trail)[-2])


def test_what_was_not_known_or_not_read_is_a_gap_not_zero():
    trail = Trail()
    trail.add(START, [running(1.0)], [])
    trail.add(START + 5, [Reading()], [])
    trail.add(START + 25, [running(2.0)], [])
    assert [None if math.isnan(value) else value for value in points(trail)[-6:]] == [1.0, None, None, None, None, 2.0]


def test_what_single_precision_cannot_hold_is_not_known():
    trail = Trail()
    trail.add(START, [running(1e300)], [])
    assert math.isnan(points(trail)[-1])


def test_after_a_quarter_of_an_hour_unseen_an_engine_is_forgotten_and_before_that_it_is_not():
    trail = Trail()
    trail.add(START, [running(1.0)], [])
    trail.add(START + 890, [running(1.0, "other")], [])
    assert points(trail)[1] == 1.0
    trail.add(START + 910, [running(1.0, "other")], [])
    assert trail.engine(("t",)) is None


def test_a_clock_set_back_by_a_moment_keeps_the_past_and_by_more_starts_it_again():
    trail = Trail()
    trail.add(START, [running(1.0)], [])
    trail.add(START - 0.5, [running(2.0)], [])
    assert points(trail)[-1] == 2.0
    trail.add(START - 3600, [running(3.0)], [])
    assert [value for value in points(trail) if not math.isnan(value)] == [3.0]


def test_a_jump_forward_of_any_length_leaves_nothing_old_behind():
    trail = Trail()
    trail.add(START, [running(1.0)], [])
    trail.add(START + 1e6, [running(2.0)], [])
    assert [value for value in points(trail) if not math.isnan(value)] == [2.0]


def test_causes_become_spans_with_gaps_where_nothing_was_read():
    trail = Trail()
    for second in range(120):
        if 60 <= second < 80:
            continue
        cause, since = (Cause.IDLE, 0.0) if second < 30 else (Cause.HEALTHY, START + 30)
        trail.add(START + second, [Reading(diagnosis=verdict(cause, since))], [])
    past = trail.engine(("t",))
    assert past is not None
    assert past.causes == (
        Span(START, START + 29, "idle"),
        Span(START + 30, START + 59, "healthy"),
        Span(START + 80, START + 119, "healthy"),
    )


def test_a_chart_shows_the_exported_values_and_the_score():
    derived: dict[str, Value] = {"admission_blocked_ratio": 0.4}
    trail = Trail()
    trail.add(START, [Reading(("a",), derived, verdict(Cause.HEALTHY, START))], [])
    assert round(points(trail, "blocked", "a")[-1], 3) == 0.4
    assert points(trail, "score", "a")[-1] == 0.25


def test_memory_of_a_gpu_is_a_share_and_absent_without_a_total():
    trail = Trail()
    both: dict[str, Value] = {
        "gpu_memory_used_bytes": 30.0,
        "gpu_memory_total_bytes": 40.0,
        "gpu_utilization_ratio": 0.5,
    }
    trail.add(START, [], [Reading(("known",), both), Reading(("odd",), {"gpu_memory_used_bytes": 30.0})])
    known, odd = trail.gpu(("known",)), trail.gpu(("odd",))
    assert known is not None
    assert odd is not None
    assert (known.values["memory"][-1], known.values["busy"][-1]) == (0.75, 0.5)
    assert math.isnan(odd.values["memory"][-1])


def test_nothing_grows_with_time_or_with_engines_that_come_and_go(monkeypatch):
    monkeypatch.setattr(trails, "MAX_TRAILS", 8)
    trail = Trail()
    for step in range(400):
        cause = Cause.IDLE if step % 2 else Cause.HEALTHY
        at = START + step * STEP_SECONDS
        trail.add(at, [Reading((f"pod-{step // 5}",), {}, verdict(cause, at)), running(1.0)], [])
    rings = trail._engines
    assert len(rings) == 8
    assert ("t",) in rings
    assert max(len(ring.causes) for ring in rings.values()) <= MAX_CAUSES


def test_engines_beyond_the_cap_take_the_place_of_none_that_is_alive(monkeypatch):
    monkeypatch.setattr(trails, "MAX_TRAILS", 2)
    trail = Trail()
    for step in range(3):
        trail.add(START + step * 5, [running(1.0, name) for name in "abc"], [])
    assert (trail.engine(("a",)) is None, trail.engine(("c",)) is None) == (False, True)


def test_sixty_four_engines_cost_a_few_hundred_kilobytes():
    trail = Trail()
    trail.add(START, [running(1.0, str(number)) for number in range(64)], [])
    assert sum(ring.values.itemsize * len(ring.values) for ring in trail._engines.values()) < 500_000


@given(st.lists(st.tuples(st.floats(0, 4000), st.floats(0, 1)), max_size=40))
def test_however_time_goes_every_row_has_all_its_points_and_the_newest_value(readings):
    trail = Trail()
    for offset, value in readings:
        trail.add(START + offset, [running(value)], [])
        past = trail.engine(("t",))
        assert past is not None
        assert {len(row) for row in past.values.values()} == {POINTS}
        assert math.isclose(past.values["running"][-1], value, rel_tol=1e-6, abs_tol=1e-30)

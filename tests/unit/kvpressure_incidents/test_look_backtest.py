"""Two settings of thresholds on one past: what is the same, what is lost, new, or called otherwise."""

from typing import Any

from kvpressure.config.thresholds import load_thresholds
from kvpressure_incidents.look import compared

LIMITS = load_thresholds()
OTHER = LIMITS.with_values(kv_saturated_min_ratio=0.99)


def incident(began: float, seconds: float = 300.0, cause: str = "kv_cache_pressure", **changes: Any) -> dict[str, Any]:
    named = {"target": "a", "model_name": "m", "engine": "0", "detail": None, "lost_tokens": 10}
    return {**named, "began": began, "ended": began + seconds, "seconds": seconds, "cause": cause, **changes}


def test_those_that_overlap_on_one_engine_are_the_same_though_cut_in_two() -> None:
    found = compared(LIMITS, [incident(0.0)], OTHER, [incident(10.0, 100.0), incident(200.0, 90.0)])
    assert (found["same"], found["only_before"], found["only_after"], found["changed_cause"]) == (1, [], [], [])
    assert (found["thresholds"], [one["began"] for one in found["incidents"]]) == (OTHER.hash, [10.0, 200.0])


def test_lost_and_new_ones_and_other_engines() -> None:
    found = compared(
        LIMITS, [incident(0.0), incident(0.0, target="b")], OTHER, [incident(1000.0), incident(0.0, target="b")]
    )
    assert found["same"] == 1
    assert [(one["target"], one["began"]) for one in found["only_before"]] == [("a", 0.0)]
    assert [(one["target"], one["began"]) for one in found["only_after"]] == [("a", 1000.0)]


def test_another_cause_is_that_of_the_one_that_shares_most_time() -> None:
    others = [incident(0.0, 50.0), incident(100.0, 200.0, cause="concurrency_bound", detail="max_num_seqs")]
    (one,) = compared(LIMITS, [incident(0.0)], OTHER, others)["changed_cause"]
    assert one["before"] == {"cause": "kv_cache_pressure", "detail": None}
    assert one["after"] == {"cause": "concurrency_bound", "detail": "max_num_seqs"}


def test_the_thresholds_that_differ_are_named_with_both_values() -> None:
    changed = compared(LIMITS, [], OTHER, [])["changed_thresholds"]
    assert changed == {"kv_saturated_min_ratio": {"before": LIMITS.symptoms.kv_saturated_min_ratio, "after": 0.99}}

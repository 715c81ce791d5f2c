"""The rules that other autoscalers go by, the objective, and the traffic of the scaling benchmark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.scaling.__main__ import OURS, PEERS, Run, all_tables
from bench.scaling.fleet import Hpa, Seen, by_average, by_value, llm_d, seen
from bench.scaling.shapes import SECONDS, SHAPES, Shape
from tests.lab.clock import BEGIN

RESULTS = Path(__file__).parents[2] / "bench" / "scaling" / "results.json"
PAGE = b"""# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 3.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
"""


def waiting(replicas: list[Seen]) -> float:
    return sum(one.waiting for one in replicas)


def test_the_other_rules_read_two_gauges_of_a_page():
    assert seen(PAGE) == Seen(3.0, 0.25)


def test_an_average_asks_for_as_many_as_the_target_goes_into_the_total():
    rule = by_average(waiting, 5.0)
    assert rule([Seen(11, 0.5), Seen(0, 0.5)], 2) == 3
    assert rule([Seen(10, 0.5), Seen(0, 0.5)], 2) == 2
    assert rule([Seen(0, 0.5)], 3) == 0


def test_a_value_multiplies_the_replicas_that_serve_and_a_tenth_off_is_nothing():
    rule = by_value(lambda replicas: replicas[0].usage, 0.6)
    assert rule([Seen(0, 0.9), Seen(0, 0.9)], 4) == 3
    assert rule([Seen(0, 0.65), Seen(0, 0.65)], 4) == 4


@pytest.mark.parametrize(
    ("replicas", "current", "wanted"),
    [
        ([Seen(0, 0.5), Seen(0, 0.5)], 2, 2),  # one alone would have 1.0
        ([Seen(0, 0.75), Seen(0, 0.68)], 2, 3),  # 0.085 of the cache to spare
        ([Seen(0, 0.1), Seen(3, 0.1)], 2, 2),  # one alone would have room for two in its queue
        ([Seen(4, 0.1), Seen(3, 0.1)], 2, 3),
        ([Seen(9, 0.9), Seen(0, 0.5)], 2, 2),  # a full one does not count
        ([Seen(9, 0.9)], 1, 2),
        ([Seen(0, 0.1), Seen(0, 0.1)], 2, 1),
        ([Seen(9, 0.9)], 2, 2),  # one is still starting
    ],
)
def test_llm_d_asks_for_one_more_or_one_fewer_by_what_is_spare(replicas: list[Seen], current: int, wanted: int):
    assert llm_d(replicas, current) == wanted


def test_an_hpa_goes_up_at_once_and_down_to_the_highest_of_five_minutes():
    asked = iter([4, 1, 1, 1])
    hpa = Hpa(lambda _, __: next(asked))
    assert hpa.wanted(0.0, {}, 2) == 4
    assert hpa.wanted(15.0, {}, 4) == 4
    assert hpa.wanted(299.0, {}, 4) == 4
    assert hpa.wanted(320.0, {}, 4) == 1


def test_the_traffic_is_the_same_each_time_and_ends_with_the_run():
    day: Shape = SHAPES[0]
    first = day.requests()
    assert first == day.requests()
    assert len(first) == pytest.approx(2.2 * SECONDS, rel=0.1)
    assert all(BEGIN <= one.arrived < BEGIN + SECONDS and 500 <= one.prompt <= 1300 for one in first)


def test_the_tables_of_the_docs_are_those_of_the_results():
    runs = [Run(**one) for one in json.loads(RESULTS.read_text())]
    assert {run.autoscaler for run in runs if not run.is_static} == {OURS, *PEERS}
    assert {run.shape for run in runs} <= {shape.name for shape in SHAPES}
    docs = (RESULTS.parents[2] / "docs" / "internals" / "accuracy" / "scaling.md").read_text()
    assert "\n\n".join(all_tables(runs)) in docs


def test_the_sums_are_of_shapes_that_everyone_was_run_on_and_beside_the_peer_with_the_fewest_bad_minutes():
    def run(shape: str, who: str, bad: int, hours: float) -> Run:
        return Run(shape, who, bad, hours, requests=1, late=0, slow=0, replicas=[], bad=[])

    whole = [run(shape, who, 10 + n, 2.0 + n) for shape in ("day", "burst") for n, who in enumerate(PEERS)]
    whole += [run("day", OURS, 3, 1.5), run("burst", OURS, 4, 1.5), run("low", OURS, 99, 99.0)]
    *_, sums = all_tables(whole)
    lines = sums.splitlines()
    assert lines[0] == f"| all 2 | bad minutes | replica-hours | beside {PEERS[0]} |"
    assert lines[2] == f"| {OURS} | 7 | 3.0 | -25.0 % |"
    assert lines[4] == f"| {PEERS[1]} | 22 | 6.0 | +50.0 % |"

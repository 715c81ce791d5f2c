"""Unevenness of replicas: the same fleets as the promtool tests of the rules, and what stands around them."""

import re
from typing import Any

import pytest
import yaml

from kvpressure.advice.workload import (
    POD_OF_WORKLOAD,
    Workload,
    demand_replicas,
    desired_replicas,
    unevenness,
    workload_of,
)
from kvpressure.config.thresholds import load_thresholds
from kvpressure.model.verdict import Cause, Diagnosis, Stage
from kvpressure.model.view import EngineKey, EngineView
from tests.support.tools import ROOT

THRESHOLDS = load_thresholds()
_TEXT = (ROOT / "rules" / "tests" / "replicas-uneven.yaml").read_text()
FLEETS = [fleet for fleet in yaml.load(_TEXT, yaml.BaseLoader)["tests"] if "for a long time" not in fleet["name"]]
"""Without those whose replicas are uneven by what was before: a look at one moment cannot tell them."""
_SERIES = re.compile(r"kvpressure_(\w+)\{(.*)\}", re.DOTALL)
_LABEL = re.compile(r'(\w+)="([^"]*)"')


def views(fleet: dict[str, Any]) -> list[EngineView]:
    """The engines that a promtool test has series of, with the first value of each, or what it grows by."""
    derived: dict[EngineKey, dict[str, Any]] = {}
    causes: dict[EngineKey, Cause] = {}
    places: dict[EngineKey, tuple[str, str]] = {}
    for series in fleet["input_series"]:
        match = _SERIES.fullmatch(series["series"].strip())
        labels, value = dict(_LABEL.findall(match[2])), float(re.split("[x ]", series["values"])[0].rpartition("+")[2])
        if "engine" not in labels:
            continue
        key = EngineKey(labels["target"], labels["model_name"], labels["engine"])
        places[key] = labels.get("namespace", ""), labels.get("pod", "")
        known = derived.setdefault(key, {})
        if match[1] == "bottleneck":
            causes |= {key: Cause(labels["cause"])} if value else {}
        elif (label := labels.get("constraint") or labels.get("role") or labels.get("kind")) is not None:
            known.setdefault(match[1].replace("tokens_total", "tokens_per_second"), {})[label] = value
        else:
            known[match[1]] = value
    diagnosis = {key: Diagnosis(0.0, 0.0, causes[key], 1.0, None, Stage.NONE, {}) for key in causes}
    return [EngineView(key, key, 0.0, known, diagnosis.get(key), *places[key]) for key, known in derived.items()]


@pytest.mark.parametrize("fleet", FLEETS, ids=[fleet["name"] for fleet in FLEETS])
def test_a_fleet_is_uneven_where_the_alert_of_the_bundle_fires(fleet: dict[str, Any]) -> None:
    by_workload: dict[Workload, list[EngineView]] = {}
    for view in views(fleet):
        by_workload.setdefault(workload_of(view), []).append(view)
    fires = any(asked["exp_alerts"] for asked in fleet["alert_rule_test"])
    found = [uneven for some in by_workload.values() if (uneven := unevenness(some, THRESHOLDS)) is not None]
    assert len(found) == fires
    for uneven in found:
        assert {view.key for view in uneven.hot}.isdisjoint(view.key for view in uneven.free)
        assert THRESHOLDS.alert.uneven_fits_min_ratio <= uneven.fits_ratio <= 1
        assert f":8000{uneven.reason}. " in str(fleet["alert_rule_test"])


def test_both_kinds_of_fleets_are_among_them() -> None:
    fires = [any(asked["exp_alerts"] for asked in fleet["alert_rule_test"]) for fleet in FLEETS]
    assert (fires.count(True), fires.count(False)) >= (2, 5)


def test_the_rules_name_workloads_by_the_same_pattern() -> None:
    assert f'"{POD_OF_WORKLOAD}"' in (ROOT / "rules" / "recording" / "uneven.yaml.j2").read_text()


@pytest.mark.parametrize(
    ("pod", "name"),
    [
        ("vllm-7c9d8b5f6-aaaaa", "vllm"),
        ("llama-70b-0", "llama-70b"),
        ("llama-70b-12", "llama-70b"),
        ("vllm-canary-7c9d8b5f6-x2x4z", "vllm-canary"),
        ("llama", ""),
        ("", ""),
    ],
)
def test_a_pod_is_of_the_workload_that_its_name_begins_with(pod: str, name: str) -> None:
    key = EngineKey("t", "m", "0")
    assert workload_of(EngineView(key, key, 0.0, {}, None, "prod", pod)) == Workload("prod", "m", name, "")


LIMITS = load_thresholds()
TARGET = LIMITS.scaling.target_ratio


def test_shares_of_replicas_add_up_to_replicas():
    told = [("a", {"kv_tokens": 0.9, "sequences": 0.2}), ("b", {"kv_tokens": 0.7, "sequences": 0.3})]
    assert demand_replicas(told) == pytest.approx({"kv_tokens": 1.6, "sequences": 0.5})


def test_requests_that_come_faster_than_one_serves_take_as_many_as_leave_the_margin_free():
    for arriving, served, count in ((12, 7.4, 2), (3.6, 1.3, 4), (12, 7.0, 3), (6, 7.4, 1), (6.5, 7.4, 2)):
        assert desired_replicas({"kv_tokens": arriving / served}, LIMITS) == count


def test_ranks_behind_one_address_are_one_replica_and_the_fullest_counts():
    told = [("a", {"kv_tokens": 0.2}), ("a", {"kv_tokens": 1.4}), ("b", {"kv_tokens": 0.2})]
    assert demand_replicas(told) == pytest.approx({"kv_tokens": 1.6})


def test_the_constraint_that_binds_decides():
    assert desired_replicas({"kv_tokens": 0.1, "sequences": 1.9 * TARGET, "prefill": 0.5}, LIMITS) == 2


def test_a_replica_that_tells_nothing_counts_as_the_others_do():
    assert demand_replicas([("a", {"kv_tokens": 1.1}), ("b", {})]) == pytest.approx({"kv_tokens": 2.2})
    told = [("a", {"kv_tokens": 1.1}), ("b", {"sequences": 0.1})]
    assert demand_replicas(told) == pytest.approx({"kv_tokens": 1.1, "sequences": 0.1})


def test_no_demand_is_one_replica_and_nothing_known_is_no_number():
    assert desired_replicas({"kv_tokens": 0.0}, LIMITS) == 1
    assert desired_replicas({}, LIMITS) is None
    assert demand_replicas([]) == {}


def test_more_are_requested_at_once_up_to_twice_as_many_as_before_or_four_more():
    assert desired_replicas({"kv_tokens": 34.0}, LIMITS) == 5
    assert desired_replicas({"kv_tokens": 34.0}, LIMITS, 9) == 18

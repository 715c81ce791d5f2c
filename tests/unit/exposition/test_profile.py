"""What a fleet's exporter leaves out, and that alerts do not miss it."""

import dataclasses
import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvpressure.bundle import Options, load_rules
from kvpressure.config.thresholds import load_thresholds
from kvpressure.exposition import Snapshot, text
from kvpressure.exposition.families import FAMILIES
from kvpressure.exposition.profile import _FLEET, ALERTED_SYMPTOMS, Profile, families, shown
from kvpressure.model.family import Scope
from kvpressure.model.view import Unreachable
from tests.support.snapshots import collapsed, healthy
from tests.support.tools import ROOT

pytestmark = pytest.mark.recorded

BY_KEY = {family.key: family for family in FAMILIES}


def series(snapshot: Snapshot, profile: Profile) -> list[tuple[str, dict[str, str], float]]:
    page = text.render(dataclasses.replace(snapshot, profile=profile), openmetrics=False).decode()
    return [
        (sample.name.removeprefix("kvpressure_"), sample.labels, sample.value)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    ]


def of_engine(snapshot: Snapshot, profile: Profile) -> list[tuple[str, dict[str, str], float]]:
    return [one for one in series(snapshot, profile) if "engine" in one[1]]


@pytest.fixture(scope="module")
def sick() -> Snapshot:
    return dataclasses.replace(collapsed(), histories=None)


def test_an_engine_has_ten_to_nineteen_series_and_a_fifth_of_all(sick: Snapshot) -> None:
    well = dataclasses.replace(sick, engines=(healthy(sick.engines[0]),))
    counts = [len(of_engine(one, Profile.FLEET)) for one in (sick, well)]
    assert all(10 <= count <= 19 for count in counts), counts
    assert len(of_engine(sick, Profile.FULL)) > 6 * max(counts)


def test_the_relabel_example_of_the_docs_keeps_what_the_profile_exports() -> None:
    (kept,) = re.findall(r"^ +regex: (kvpressure_.*)$", (ROOT / "docs" / "scaling.md").read_text(), re.MULTILINE)
    pattern = re.compile(kept)
    # And what alerts use besides: tests/deploy/test_remote_write.py.
    assert {key for key in _FLEET if not pattern.fullmatch(f"kvpressure_{key}")} == set()


def test_what_is_exported_has_the_values_of_the_full_page(sick: Snapshot) -> None:
    full = series(sick, Profile.FULL)
    assert [one for one in series(sick, Profile.FLEET) if one not in full] == []


def test_of_causes_and_symptoms_only_those_that_are_there(sick: Snapshot) -> None:
    told = [(name, labels, value) for name, labels, value in of_engine(sick, Profile.FLEET)]
    causes = [(labels["cause"], value) for name, labels, value in told if name == "bottleneck"]
    assert causes == [("kv_cache_pressure", 1.0)]
    symptoms = {labels["symptom"]: value for name, labels, value in told if name == "symptom"}
    assert symptoms
    assert set(symptoms) <= set(ALERTED_SYMPTOMS)
    assert set(symptoms.values()) == {1.0}


@pytest.mark.parametrize(
    ("demand", "told"),
    [
        ({"kv_tokens": 1.0, "sequences": 0.4, "prefill": 0.09}, {"kv_tokens", "sequences"}),
        ({"kv_tokens": 0.1, "sequences": 0.9}, {"kv_tokens", "sequences"}),
        ({"kv_tokens": 0.0, "sequences": 0.0}, {"kv_tokens", "sequences"}),
        ({"prefill": 0.2}, {"prefill"}),
    ],
)
def test_of_demand_what_is_left_out_is_negligible(demand: dict[str, float], told: set[str]) -> None:
    found = shown(Profile.FLEET, {"demand_replicas": demand})["demand_replicas"]
    assert found == {constraint: demand[constraint] for constraint in told}


def test_engines_bound_by_different_constraints_are_asked_for_together() -> None:
    engines = [{"kv_tokens": 1.2, "sequences": 0.7}, {"kv_tokens": 0.6, "sequences": 0.9}]
    told = [shown(Profile.FLEET, {"demand_replicas": demand})["demand_replicas"] for demand in engines]
    assert told == engines


def test_an_engine_that_does_not_answer_is_down_and_nothing_else(sick: Snapshot) -> None:
    silent = dataclasses.replace(sick.engines[0], silence=Unreachable(20.0, 3.0))
    gone = dataclasses.replace(sick, engines=(), silent=(silent,))
    told = {name: value for name, _, value in of_engine(gone, Profile.FLEET)}
    assert told == {"engine_up": 0.0}


def test_nothing_is_said_of_gpus_and_all_of_the_exporter(sick: Snapshot) -> None:
    kept = families(Profile.FLEET)
    assert not [family for family in kept if family.scope is Scope.GPU]
    assert [family for family in BY_KEY.values() if family.scope is Scope.EXPORTER and family not in kept] == []
    assert set(BY_KEY) >= _FLEET, "a name that is no family"


def test_the_alerts_of_the_bundle_find_what_they_ask_for() -> None:
    files = load_rules(Options(load_thresholds()))
    kept = {family.name for family in families(Profile.FLEET)}
    rules = [rule for file in files for group in file.groups for rule in group["rules"]]
    recorded = {rule["record"]: rule["expr"] for rule in rules if "record" in rule}
    missing: dict[str, set[str]] = {}
    for alert in (alert for file in files for alert in file.alerts):
        expr = alert.rule["expr"]
        done: set[str] = set()
        while used := set(re.findall(r"\b(?:namespace_model|engine|target):\w+:\w+", expr)) - done:
            done |= used
            expr += "".join(f"\n{recorded[name]}" for name in used)
        assert set(re.findall(r'symptom="(\w+)"', expr)) <= set(ALERTED_SYMPTOMS), alert.name
        if lacks := set(re.findall(r"(?<![:\w])kvpressure_\w+", expr)) - kept:
            missing[alert.name] = lacks
    assert missing == {}

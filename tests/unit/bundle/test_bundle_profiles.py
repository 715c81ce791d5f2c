"""Rules beside exporters of the profile `fleet`."""

import dataclasses
import re
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from kvpressure.bundle import Options, load_rules, of_sparse
from kvpressure.bundle.options import FLAVOURS
from kvpressure.bundle.rules import RuleFile
from kvpressure.config.strict_yaml import ConfigError
from kvpressure.config.thresholds import load_thresholds
from kvpressure.exposition.profile import Profile, families

FULL = Options(load_thresholds(), all_alerts=True)
FLEET = dataclasses.replace(FULL, profile=Profile.FLEET)


def rules(files: Sequence[RuleFile]) -> Iterator[dict[str, Any]]:
    yield from (rule for file in files for group in file.groups for rule in group["rules"])


def names(files: Sequence[RuleFile]) -> set[str]:
    return {rule.get("record") or rule["alert"] for rule in rules(files)}


def test_what_is_left_reads_only_what_is_there() -> None:
    found = load_rules(FLEET)
    exported, recorded = {family.name for family in families(Profile.FLEET)}, names(found)
    for rule in rules(found):
        read = set(re.findall(r"(?<![:\w])kvpressure_\w+", rule["expr"]))
        assert read <= exported, rule
        assert set(re.findall(r"\w+:kvpressure_\w+:\w+", rule["expr"])) <= recorded, rule


def test_alerts_of_the_default_bundle_stay() -> None:
    default = dataclasses.replace(FLEET, all_alerts=False)
    gone = names(load_rules(dataclasses.replace(FULL, all_alerts=False))) - names(load_rules(default))
    assert {name for name in gone if name.startswith("KVPressure")} == set()
    assert {alert.name for file in load_rules(default) for alert in file.alerts} <= names(load_rules(default))


def test_a_record_of_a_record_that_is_gone_goes_too() -> None:
    gone = names(load_rules(FULL)) - names(load_rules(FLEET))
    assert "namespace_model:kvpressure_requests_finished:rate" in gone, "reads a histogram"
    assert "namespace_model:kvpressure_request_prompt_tokens:p95_rate5m" in gone, "reads a record of a histogram"
    assert "namespace_model:kvpressure_engines:sum" not in gone


def test_a_flavour_without_exporters_has_no_profile() -> None:
    with pytest.raises(ConfigError, match="--profile"):
        load_rules(dataclasses.replace(FLEET, flavour=FLAVOURS["vllm-only"], selector=""))


def test_no_average_is_of_what_is_told_only_while_it_is_there() -> None:
    sparse = re.compile(r"(?:avg|stddev|quantile|min)_over_time\(kvpressure_(?:bottleneck|symptom)\b")
    assert [rule["expr"] for rule in rules(load_rules(FLEET)) if sparse.search(rule["expr"])] == []
    assert any(sparse.search(rule["expr"]) for rule in rules(load_rules(FULL)))
    alerts = {alert.name: alert.rule["expr"] for file in load_rules(FLEET) for alert in file.alerts}
    assert "sum_over_time(kvpressure_engine_up" in alerts["KVPressureEngineStuck"]


def test_matchers_of_a_cause_are_not_asked_of_the_engine() -> None:
    given = 'avg_over_time(kvpressure_symptom{job="a}", symptom=~"b|c", namespace=""}[5m]) > 1'
    assert 'sum_over_time(kvpressure_engine_up{job="a}", namespace=""}[5m])' in of_sparse(given)

"""The bench of rules reads every rule of either profile's bundle, and tells each group's part."""

from __future__ import annotations

import pytest

from bench.fleet.expressions import rules, table
from bench.fleet.server import configuration
from kvpressure.exposition.profile import Profile
from tests.support import built


@pytest.mark.parametrize("profile", list(Profile))
def test_every_rule_of_the_profiles_bundle_is_evaluated_and_timed(profile: Profile) -> None:
    found = list(rules(built.bundle(profile)))
    names = {rule.name for rule in found}
    assert {"kvpressure_desired_replicas", "KVPressureCacheTooSmall critical"} <= names
    assert ("namespace_model:kvpressure_latency_seconds:max" in names) == (profile is Profile.FULL)
    assert {rule.interval_seconds for rule in found} <= {15.0, 30.0, 60.0, 120.0, 300.0}
    files = configuration(9, 1, profile)["rule_files"]
    assert files == [str(path) for path in sorted(built.bundle(profile).glob("prometheus/*/*.yaml"))]


def test_the_table_has_the_costly_groups_first_and_cores_above_them() -> None:
    found = [rule for rule in rules(built.bundle()) if rule.group in {"kvpressure-deployment", "kvpressure-replicas"}]
    costs = {rule: 0.3 if rule.group == "kvpressure-deployment" else 0.003 for rule in found}
    lines = list(table(Profile.FULL, 1_000, {"before": costs, "after": dict.fromkeys(found, 0.0)}))
    replicas = sum(rule.group == "kvpressure-replicas" for rule in found)
    cores = ((len(found) - replicas) * 0.3 + replicas * 0.003) / 15
    assert lines[1].split()[-2:] == [f"{cores:.4f}", "0.0000"]
    assert [line.split()[0] for line in lines[2:] if line.startswith("  kv")] == [
        "kvpressure-deployment",
        "kvpressure-replicas",
    ]
    assert lines[2].split()[1:] == [f"{300.0 * (len(found) - replicas):.1f}", "0.0"]

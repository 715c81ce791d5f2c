"""What other projects are offered is the bundle's: the same alerts, which pass its tests without recorded series."""

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy.upstream_files import LONGEST, TEXTS, UPSTREAM, alone, upstream_files

from kvpressure.bundle import Options, load_rules
from kvpressure.bundle.options import VLLM_ONLY
from kvpressure.config.thresholds import load_thresholds
from kvpressure.exposition.profile import Profile, families
from tests.support.tools import ROOT, need

AWESOME = yaml.safe_load((UPSTREAM / "awesome-prometheus-alerts/rules.yml").read_text())
TESTS = ROOT / "rules" / "vllm-only" / "tests"


def promtool(*arguments: object) -> str:
    command = [need("promtool", "prometheus"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_files_are_what_the_rules_give() -> None:
    for name, text in upstream_files().items():
        assert (UPSTREAM / name).read_text() == text, f"deploy/upstream/{name}: run `make rules`"


def test_alerts_that_stand_alone_read_only_what_vllm_serves() -> None:
    for rule in alone():
        assert len(rule["expr"]) < LONGEST
        assert re.findall(r"\w+:\w+:\w+", rule["expr"]) == []
        assert {name.partition(":")[0] for name in re.findall(r"\b[a-z]\w*:\w+", rule["expr"])} == {"vllm"}


def _tests_of_offered() -> list[str]:
    names = {rule["alert"] for rule in alone()}
    asked = {path.stem: set(re.findall(r"alertname: (\w+)", path.read_text())) for path in TESTS.glob("*.yaml")}
    return sorted(case for case, alerts in asked.items() if alerts & names)


@pytest.mark.parametrize("case", _tests_of_offered())
def test_they_fire_in_the_tests_of_the_rules_as_those_do(case: str, tmp_path: Path) -> None:
    written = yaml.safe_load((TESTS / f"{case}.yaml").read_text())
    asked = {each["alertname"] for test in written["tests"] for each in test.get("alert_rule_test", ())}
    rules = [
        {key: value for key, value in rule.items() if key != "annotations"}
        for rule in alone()
        if rule["alert"] in asked
    ]
    names = {rule["alert"] for rule in rules}
    kept = 0
    for test in written["tests"]:
        test["alert_rule_test"] = [
            _bare(each) for each in test.get("alert_rule_test", ()) if each["alertname"] in names
        ]
        test.pop("promql_expr_test", None)
        kept += len(test["alert_rule_test"])
    assert kept
    written["rule_files"], written["group_eval_order"] = ["alone.yaml"], ["alone"]
    (tmp_path / "alone.yaml").write_text(
        yaml.safe_dump({"groups": [{"name": "alone", "interval": "15s", "rules": rules}]})
    )
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(written))
    assert "SUCCESS" in promtool("test", "rules", tmp_path / "test.yaml")


def _bare(test: dict[str, Any]) -> dict[str, Any]:
    return {**test, "exp_alerts": [{"exp_labels": each["exp_labels"]} for each in test.get("exp_alerts") or ()]}


def test_the_entry_has_the_fields_and_the_order_of_its_project() -> None:
    (service,) = AWESOME["services"]
    (exporter,) = service["exporters"]
    assert list(service) == ["name", "logo", "exporters"]
    assert list(exporter) == ["name", "slug", "doc_url", "comments", "rules"]
    fields = ["name", "description", "query", "severity", "for"]
    for rule, made in zip(exporter["rules"], alone(), strict=True):
        assert list(rule) == fields[: len(rule)]
        assert (rule["query"], rule["severity"]) == (made["expr"], made["labels"]["severity"])
    categories = [category for category, *_ in TEXTS.values()]
    assert categories == sorted(categories, key=categories.index)


def test_the_other_files_have_every_alert_and_load(tmp_path: Path) -> None:
    operator = yaml.safe_load((UPSTREAM / "production-stack/observability/vllm-alerts.yaml").read_text())
    plain = UPSTREAM / "vllm/examples/online_serving/dashboards/prometheus/alerts.yaml"
    assert operator["spec"] == yaml.safe_load(plain.read_text())
    options = Options(load_thresholds(), selector="", flavour=VLLM_ONLY, scrape_seconds=30)
    ours = [rule for file in load_rules(options) for group in file.groups for rule in group["rules"]]
    theirs = [rule for group in operator["spec"]["groups"] for rule in group["rules"]]
    assert [rule["expr"] for rule in theirs] == [rule["expr"] for rule in ours]
    assert [rule.get("alert", "VLLM")[:4] for rule in theirs] == ["VLLM"] * len(theirs)
    assert "kvpressure" not in plain.read_text().partition("\n")[2].lower()
    assert "SUCCESS" in promtool("check", "rules", plain)


def test_the_proposal_names_series_that_are_exported() -> None:
    proposal = (UPSTREAM / "semconv-genai" / "proposal.md").read_text()
    named = set(re.findall(r"`(kvpressure_\w+)`", proposal))
    assert len(named) > 6
    assert named <= {family.name for family in families(Profile.FULL)}
    model = yaml.safe_load((UPSTREAM / "semconv-genai" / "metrics.yaml").read_text())
    assert {metric["name"] for metric in model["metrics"]} == set(
        re.findall(r"^\| `(gen_ai\.\S+)`", proposal, re.MULTILINE)
    )

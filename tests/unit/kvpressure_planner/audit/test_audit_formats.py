"""What the SARIF 2.1.0 specification requires of a log file (section numbers in the tests)."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kvpressure.cli import main
from tests.support.tools import FIXTURES

FILES = ("deployment-bare.yaml", "broken-and-good.yaml", "kserve.yaml")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.chdir(FIXTURES / "manifests")
    answer = CliRunner().invoke(main, ["audit", *FILES, "--sarif"], catch_exceptions=False)
    assert answer.exit_code == 1
    read: dict[str, Any] = json.loads(answer.stdout)
    return read


def test_the_log_names_its_version_and_holds_one_run_with_a_named_tool(log: dict[str, Any]) -> None:
    assert log["version"] == "2.1.0"  # 3.13.2
    assert log["$schema"].endswith("sarif-schema-2.1.0.json")
    (run,) = log["runs"]
    assert run["tool"]["driver"]["name"] == "kvpressure-audit"  # 3.18.2, 3.19.8
    assert run["columnKind"] in {"utf16CodeUnits", "unicodeCodePoints"}  # 3.14.17


def test_rules_have_stable_ids_help_and_a_level(log: dict[str, Any]) -> None:
    rules = log["runs"][0]["tool"]["driver"]["rules"]
    ids = [rule["id"] for rule in rules]  # 3.49.3
    assert len(set(ids)) == len(ids)
    for rule in rules:
        assert all(rule[key]["text"] for key in ("shortDescription", "fullDescription", "help"))  # 3.49.9-3.49.13
        assert rule["defaultConfiguration"]["level"] in {"error", "warning", "note"}  # 3.50.3


def test_results_refer_to_rules_and_only_failures_have_levels(log: dict[str, Any]) -> None:
    run = log["runs"][0]
    rules, results = run["tool"]["driver"]["rules"], run["results"]
    assert {result["level"] for result in results} == {"error", "warning", "note"}  # 3.27.10
    for result in results:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]  # 3.27.5, 3.27.6
        assert result["kind"] == "fail"  # 3.27.9
        assert result["message"]["text"].strip()  # 3.27.11


def test_locations_are_relative_files_with_lines_counted_from_one(log: dict[str, Any]) -> None:
    for result in log["runs"][0]["results"]:
        (location,) = result["locations"]  # 3.27.12
        physical = location["physicalLocation"]
        uri = physical["artifactLocation"]["uri"]  # 3.4.3: a URI, here relative to the checkout
        assert uri in FILES
        lines = Path(FIXTURES / "manifests" / uri).read_text().splitlines()
        assert 1 <= physical["region"]["startLine"] <= len(lines)  # 3.30.5
        assert location["logicalLocations"][0]["fullyQualifiedName"]  # 3.33.5


def test_results_can_be_told_apart_over_runs(log: dict[str, Any]) -> None:
    marks = [tuple(result["partialFingerprints"].items()) for result in log["runs"][0]["results"]]  # 3.27.17
    assert len(set(marks)) == len(marks)


def test_what_could_not_be_read_is_a_notification_with_its_line(log: dict[str, Any]) -> None:
    (invocation,) = log["runs"][0]["invocations"]
    assert invocation["executionSuccessful"] is True  # 3.20.14
    told = invocation["toolExecutionNotifications"]  # 3.20.21
    regions = [one["locations"][0]["physicalLocation"]["region"]["startLine"] for one in told]
    assert regions == [4, 18]
    assert all(one["message"]["text"] and one["level"] == "error" for one in told)  # 3.58.5, 3.58.6


def test_without_an_engine_the_run_is_not_a_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(FIXTURES / "manifests")
    answer = CliRunner().invoke(main, ["audit", "no-engine.yaml", "--sarif"], catch_exceptions=False)
    assert answer.exit_code == 2
    assert json.loads(answer.stdout)["runs"][0]["invocations"][0]["executionSuccessful"] is False


def test_paths_are_written_as_uris(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a b#c.yaml").write_text((FIXTURES / "manifests" / "deployment-bare.yaml").read_text())
    monkeypatch.chdir(tmp_path)
    answer = CliRunner().invoke(main, ["audit", "a b#c.yaml", "--sarif"], catch_exceptions=False)
    location = json.loads(answer.stdout)["runs"][0]["results"][0]["locations"][0]
    assert location["physicalLocation"]["artifactLocation"]["uri"] == "a%20b%23c.yaml"

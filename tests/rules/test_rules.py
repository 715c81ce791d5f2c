"""What every rule must keep: tests, a runbook, series that exist, labels that survive, words for people."""

import json
import re

import promql_parser as promql
import pytest
import yaml

from kvpressure.bundle import Options, load_rules
from kvpressure.bundle.options import VLLM_ONLY
from kvpressure.bundle.rules import SEVERITIES
from kvpressure.config.thresholds import load_thresholds
from tests.support.rules import (
    AUTOSCALERS,
    ROOT,
    TESTS,
    alert_names,
    alerts,
    files,
    known_series,
    options,
    promtool_tests,
    recorded,
    rule_files,
    selectors,
    walk,
)

ALERTS = alerts()
NAMES = alert_names()
VLLM_ONLY_RULES = load_rules(Options(load_thresholds(), selector="", flavour=VLLM_ONLY))
WITHOUT_AN_EXPORTER = [alert for file in VLLM_ONLY_RULES for alert in file.alerts]
EXPRESSIONS = [(alert.name, alert.rule["expr"]) for alert in ALERTS] + list(recorded().items())
MAX_RULES = 20
"""Mimir's default of `ruler_max_rules_per_rule_group`."""
PROMETHEUS_LABELS = {"job", "instance", "cluster"}

each_alert = pytest.mark.parametrize("name", NAMES)
each_rule = pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: f"{alert.name}-{alert.severity}")
each_expression = pytest.mark.parametrize(("name", "expr"), EXPRESSIONS)


def checks(name: str) -> list[list[dict]]:
    """The alert's checks, by group of input series."""
    stem = next(alert.file for alert in ALERTS if alert.name == name).removeprefix("alerts/").removesuffix(".yaml.j2")
    assert (TESTS / f"{stem}.yaml").exists(), f"{name} has no tests: write rules/tests/{stem}.yaml"
    groups = [group.get("alert_rule_test", []) for group in promtool_tests(stem)["tests"]]
    return [[check for check in group if check["alertname"] == name] for group in groups]


def seconds(duration: str) -> int:
    return sum(int(n) * {"s": 1, "m": 60, "h": 3600}[unit] for n, unit in re.findall(r"(\d+)([smh])", duration))


def test_every_name_says_whose_alert_it_is() -> None:
    assert [name for name in NAMES if not name.startswith("KVPressure")] == []


@each_alert
def test_every_severity_of_an_alert_has_a_test_in_which_it_fires(name: str) -> None:
    fired = {a["exp_labels"]["severity"] for group in checks(name) for check in group for a in check["exp_alerts"]}
    assert fired == {alert.severity for alert in ALERTS if alert.name == name}


@each_alert
def test_every_alert_has_a_test_in_which_it_stays_quiet(name: str) -> None:
    assert any(group and not any(check["exp_alerts"] for check in group) for group in checks(name))


@each_alert
def test_every_alert_has_a_test_in_which_it_recovers(name: str) -> None:
    recovered: set[str] = set()
    for group in checks(name):
        ordered = sorted(group, key=lambda check: seconds(check["eval_time"]))
        if ordered and not ordered[-1]["exp_alerts"]:
            recovered |= {a["exp_labels"]["severity"] for check in ordered for a in check["exp_alerts"]}
    assert recovered == {alert.severity for alert in ALERTS if alert.name == name}


def test_every_runbook_and_every_promtool_test_belongs_to_a_rule() -> None:
    books = {path.stem for path in (ROOT / "docs" / "runbooks").glob("*.md")}
    assert books - {"README"} == {*NAMES, *(alert.name for alert in WITHOUT_AN_EXPORTER)}
    named = {re.sub(r"^(alerts|recording)/|\.yaml\.j2$", "", file.path) for file in rule_files()}
    together = {"idle", "muted-symptoms", "paused", "rolling-restart", "not-kv", "texts"}
    assert {path.stem for path in TESTS.glob("*.yaml")} - together <= named


@each_expression
def test_rules_query_only_series_that_exist(name: str, expr: str) -> None:
    known = known_series() | {record: set() for record in recorded()}
    assert [selector.name for selector in selectors(expr) if selector.name not in known] == []


@each_expression
def test_rules_match_only_labels_that_the_series_has(name: str, expr: str) -> None:
    known = known_series()
    for selector in selectors(expr):
        if labels := known.get(selector.name):
            asked = {matcher.name for matcher in selector.matchers.matchers}
            assert asked <= labels | PROMETHEUS_LABELS, f"{name}: {selector}"


@each_expression
def test_every_selector_is_of_this_exporter_and_no_other(name: str, expr: str) -> None:
    own = {"job": "kvpressure"}
    for selector in selectors(expr):
        if selector.name not in {*recorded(), *AUTOSCALERS}:
            matchers = {matcher.name: matcher.value for matcher in selector.matchers.matchers}
            assert own.items() <= matchers.items(), f"{name}: {selector}"


@each_expression
def test_the_namespace_survives_every_aggregation(name: str, expr: str) -> None:
    if name.startswith("cluster:"):
        return
    for node in walk(promql.parse(expr)):
        if isinstance(node, promql.AggregateExpr):
            assert node.modifier is not None, f"{name}: {node} drops every label"
            by = node.modifier.type == promql.AggModifierType.By
            assert ("namespace" in node.modifier.labels) == by, f"{name}: {node}"


@each_expression
def test_engines_of_two_clusters_are_never_taken_for_one(name: str, expr: str) -> None:
    for node in walk(promql.parse(expr)):
        if isinstance(node, promql.AggregateExpr) and node.modifier is not None:
            by = node.modifier.type == promql.AggModifierType.By
            assert ("cluster" in node.modifier.labels) == by, f"{name}: {node}"
        elif isinstance(node, promql.BinaryExpr) and node.modifier is not None and node.modifier.matching is not None:
            on = node.modifier.matching.type == promql.LabelModifierType.Include
            assert ("cluster" in node.modifier.matching.labels) == on, f"{name}: {node}"


@each_rule
def test_what_an_alert_says_is_of_its_own_cluster(alert) -> None:
    for asked in re.findall(r"\{[^{}]*=%q[^{}]*\}", str(alert.rule["annotations"])):
        assert "cluster=%q" in asked, asked


@each_expression
def test_nothing_averages_quantiles_or_adds_ratios(name: str, expr: str) -> None:
    for node in walk(promql.parse(expr)):
        if isinstance(node, promql.AggregateExpr):
            assert str(node.op) in {"sum", "max", "min", "count", "quantile"}, f"{name}: {node}"
            if str(node.op) in {"sum", "quantile"}:
                middles = [(selector.name.split(":") * 2)[1] for selector in selectors(str(node.expr))]
                assert [
                    m
                    for m in middles
                    if re.search(
                        r"_(quantile|score|seconds)$"
                        if str(node.op) == "quantile"
                        else r"_(ratio|quantile|score|seconds)$",
                        m,
                    )
                ] == [], f"{name}: {node}"


@pytest.mark.parametrize("alert", [*ALERTS, *WITHOUT_AN_EXPORTER], ids=lambda alert: f"{alert.name}-{alert.severity}")
def test_numbers_that_mean_bad_come_from_the_thresholds(alert) -> None:
    template = (ROOT / "rules" / alert.file).read_text()
    expressions = re.findall(r"expr: \|\n(.*?)\n +for:", template, re.DOTALL)
    assert expressions
    for expr in expressions:
        literals = re.findall(r"(?:[<>=!]=|[<>])\s*(?:bool\s*)?([0-9.]+)", expr)
        assert set(literals) <= {"0", "1"}, f"{alert.name}: {literals}"


@each_rule
def test_an_alert_says_what_it_must(alert) -> None:
    assert alert.severity in SEVERITIES
    annotations = alert.rule["annotations"]
    assert set(annotations) == {"summary", "description", "runbook"}
    assert alert.words.endswith(".")
    assert "\n" not in annotations["summary"]
    assert set(alert.rule["labels"]) == {"severity", "component"}
    facts, _, command = annotations["description"].partition("\nRun: ")
    assert facts
    assert command
    assert "\n" not in facts + command


def test_few_alerts_are_on_by_default_and_the_others_say_why_not() -> None:
    on = {alert.name for file in load_rules(Options(load_thresholds())) for alert in file.alerts}
    assert {alert.name for alert in ALERTS if not alert.off_because} == on
    assert 2 * len(on) < len(NAMES)


def test_each_other_alert_says_how_often_it_was_right_and_none_was_wrong_more_often_than_not() -> None:
    rights = json.loads((ROOT / "rules" / "rights.json").read_text())
    sections = {part.partition("\n")[0]: part for part in files()["alerts.md"].split("\n## ")}
    for alert in ALERTS:
        if alert.off_because:
            measured = rights[alert.name].values()
            right, total = sum(right for right, _ in measured), sum(total for _, total in measured)
            assert 2 * right >= total > 0, alert.name
            assert sections[alert.name].count(f"\nRight in {right} of {total}") == 1


def test_a_page_is_about_a_model_or_about_all_exporters_and_never_about_one_replica() -> None:
    pages = {(alert.name, alert.component) for alert in ALERTS if alert.severity == "critical"}
    assert {component for _, component in pages} == {"deployment", "exporter"}
    for alert in ALERTS:
        if alert.severity == "critical" and alert.component == "exporter":
            assert "max by (cluster, namespace, job)" in alert.rule["expr"]


def test_no_group_has_more_rules_than_mimir_takes() -> None:
    groups = [group for file in rule_files() for group in file.groups]
    assert [group["name"] for group in groups if len(group["rules"]) > MAX_RULES] == []
    assert len({group["name"] for group in groups}) == len(groups)


@each_rule
def test_what_oscillates_keeps_firing_through_the_gaps(alert) -> None:
    counts_back = re.search(r"(increase|changes)\(", alert.rule["expr"]) is not None
    assert alert.rule.get("keep_firing_for") or counts_back


@each_rule
def test_annotations_use_only_labels_that_the_alert_can_have(alert) -> None:
    known = known_series() | {recorded: known_series()["kvpressure_score_ratio"] for recorded in recorded()}
    labels = set(PROMETHEUS_LABELS)
    for selector in selectors(alert.rule["expr"]):
        labels |= known[selector.name]
    calls = (node for node in walk(promql.parse(alert.rule["expr"])) if isinstance(node, promql.Call))
    labels |= {call.args[1].val for call in calls if call.func.name == "label_replace"}
    texts = (alert.rule["annotations"][key] for key in ("summary", "description"))
    if alert.name == "KVPressureExporterDown":
        labels |= {"namespace"}  # of the exporter's own pod, which Prometheus adds
    used = {label for text in texts for label in re.findall(r"\$labels\.(\w+)", text)}
    assert used <= labels


@each_rule
def test_no_alert_is_both_loud_and_immediate(alert) -> None:
    """What pages has lasted: by the rule's own `for`, or by a series that says for how long it has."""
    if alert.severity == "critical" and seconds(alert.rule["for"]) < 60:
        kind = re.search(r"replicas_(\w+):ratio", alert.rule["expr"])
        record = recorded()[f"engine:kvpressure_{kind[1]}:bool"].partition("1, 1")[0]
        says = (
            r"kvpressure_queue_unserved_seconds{[^}]*} >= (\d+)|engine:kvpressure_silent:seconds > (\d+)"
            r"|avg_over_time.*\[2m\]|changes\(.*\[30m\]"
        )
        ways = re.split(r"\n    or\n", record)
        lasted = [re.search(says, way) for way in ways]
        assert all(found is not None and int(found[1] or found[2] or 120) >= 20 for found in lasted), ways


def test_alerts_are_muted_by_alerts_that_exist_and_by_nothing_in_a_circle() -> None:
    muted = {alert.name: set(alert.muted_by) for alert in ALERTS}
    assert set().union(*muted.values()) <= set(NAMES)
    assert not [(a, b) for a, by in muted.items() for b in by if a in muted[b]]
    assert "KVPressureCacheTooSmall" in muted["KVPressureBatchCollapsed"]


def test_the_rules_carry_the_hash_of_their_thresholds() -> None:
    (differ,) = (alert for alert in ALERTS if alert.name == "KVPressureThresholdsDiffer")
    assert f'hash!="{options().thresholds.hash}"' in differ.rule["expr"]


def test_the_page_of_alerts_is_what_the_templates_say() -> None:
    stale = "docs/alerts.md is stale: run `make rules` and look at the diff"
    generated = (ROOT / "docs" / "alerts.md").read_text().partition("\n## An alert as it arrives")[0]
    assert generated == files()["alerts.md"], stale


def test_the_tests_know_the_thresholds_of_the_rules() -> None:
    for path in TESTS.glob("*.yaml"):
        found = set(re.findall(r'kvpressure_thresholds_info\{[^}]*hash="(\w+)"', path.read_text()))
        assert found <= {options().thresholds.hash, "0123456789abcdef"}, f"{path.name} names another hash"


def test_generated_yaml_reads_back_as_the_rules_that_were_rendered() -> None:
    for file in rule_files():
        text = files()[f"prometheus/{file.path.removesuffix('.j2')}"]
        assert yaml.safe_load(text) == {"groups": list(file.groups)}

"""The rules on vLLM's own series: promtool tests, series of some version, what they cannot know, names apart."""

import re
from itertools import groupby
from pathlib import Path

import pytest
import yaml

from kvpressure.bundle import Options, bundle_files, load_rules
from kvpressure.bundle.options import VLLM_ONLY
from kvpressure.bundle.rules import seconds
from kvpressure.config.thresholds import load_thresholds
from kvpressure.runtimes.gateways import NAMES as OF_GATEWAYS
from kvpressure.sources.gpu.exporter_pages import WANTED as OF_GPUS
from tests.support import built
from tests.support.rules import (
    ROOT,
    alert_names,
    evaluate,
    known_vllm_series,
    promql,
    promtool_each,
    recorded,
    rules_of,
    selectors,
    told,
    walk,
)

TEMPLATES = ROOT / "rules" / "vllm-only"
CASES = sorted(path.stem for path in (TEMPLATES / "tests").glob("*.yaml"))
OF_A_SERIES_OWN = {"pid", "reason", "finished_reason", "engine", "le", "handler", "method", "status"}
"""What may be taken from a series' labels; `engine` only where vLLM counts by server."""


def options(selector: str = "", scrape_seconds: int = 15) -> Options:
    return Options(load_thresholds(), selector=selector, scrape_seconds=scrape_seconds, flavour=VLLM_ONLY)


OF_OTHERS = {"up", *(name.decode() for name in OF_GATEWAYS | OF_GPUS)}
"""What gateways and other exporters of GPUs report beside engines."""

OF_THE_SERVER = {"http_requests_total"}
"""What the instrumentator of vLLM's web server adds to its page."""

FILES = load_rules(options())
ALERTS = [alert for file in FILES for alert in file.alerts]
RULES = [rule for file in FILES for group in file.groups for rule in group["rules"]]
RECORDED = {rule["record"]: rule["expr"] for rule in RULES if "record" in rule}
OF_POOLS = {name for name in RECORDED if name.startswith("gateway:")}
OF_WORKLOADS = {"engine:vllm_overflow:requests", "engine:vllm_room:requests", "engine:vllm_kv_per_request:ratio"}
"""What is compared among the replicas of a workload."""
each_alert = pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("alert") or rule["record"])


# --- promtool


@each_alert
def test_every_alert_is_tested_firing_silent_and_recovering(alert) -> None:
    stem = Path(alert.file).name.removesuffix(".yaml.j2")
    tests = yaml.safe_load((TEMPLATES / "tests" / f"{stem}.yaml").read_text())["tests"]
    # Two checks that say the same, one after the other, are one state.
    fired = [[state for state, _ in groupby(bool(c["exp_alerts"]) for c in one["alert_rule_test"])] for one in tests]
    assert {check["alertname"] for one in tests for check in one["alert_rule_test"]} == {alert.name}
    assert [False, True, False] in fired
    assert any(not any(one) for one in fired)


def fires(promtool: str, folder: Path, alert: str, series: dict[str, str], at: dict[int, int], every: int = 15) -> None:
    """Evaluate the generated rules on series, and compare how many alerts of that name fire at each minute."""
    rules = rules_of(bundle_files(options(scrape_seconds=every), with_dashboards=False), folder, alert)
    firing = f'count(ALERTS{{alertname="{alert}", alertstate="firing"}}) or vector(0)'
    checks = [told(firing, minute, count) for minute, count in at.items()]
    given = [{"series": name, "values": values} for name, values in series.items()]
    test = {"interval": f"{every}s", "input_series": given, "promql_expr_test": checks}
    evaluate(promtool, folder, rules, test)


@promtool_each
@pytest.mark.parametrize(
    ("usage", "waiting", "count"),
    [
        ("1", "2x60", 1),  # vllm#57104: two hold all blocks
        ("0.6", "2x60", 1),
        ("0.2", "20x60", 1),
        ("0.2", "2x14 2+1x40", 1),
        ("0.2", "2x60", 0),  # sessions that wait for their clients
    ],
)
def test_what_waits_deferred_and_never_moves_is_told_where_it_is_no_open_session(
    promtool: str, usage: str, waiting: str, count: int, tmp_path: Path
) -> None:
    labels = 'job="vllm", instance="a:8000", model_name="m", engine="0"'
    values = {
        "num_requests_running": "2x19 0x60",
        "num_requests_waiting": f"0x19 {waiting}",
        "kv_cache_usage_perc": f"0.5x19 {usage}x60",
        "generation_tokens_total": "1000+600x19 12400x60",
        "prompt_tokens_total": "1000+9000x19 181000x60",
        "num_preemptions_total": "0x80",
        "time_to_first_token_seconds_count": "1+1x19 20x60",
    }
    series = {f"vllm:{name}{{{labels}}}": text for name, text in values.items()}
    by_reason = "vllm:num_requests_waiting_by_reason{%s, reason=%s}"
    series[by_reason % (labels, '"capacity"')] = "0x80"
    series[by_reason % (labels, '"deferred"')] = f"0x19 {waiting}"
    fires(promtool, tmp_path, "KVPressureVLLMNoProgress", series, {8: 0, 10: count, 15: count})


UP = 'up{job="vllm", instance="a:8000", pod="p"}'
RUNS = 'vllm:num_requests_running{job="vllm", instance="a:8000", pod="p", model_name="m", engine="0"}'
NEXT_UP = 'up{job="vllm", instance="a:8000", pod="q"}'


@promtool_each
@pytest.mark.parametrize(
    ("series", "at"),
    [
        ({UP: "1x40 0x900", RUNS: "2x40 stale"}, {14: 0, 16: 1, 120: 1, 220: 1}),  # dead for hours
        ({UP: "1x500", RUNS: "2x40 stale"}, {14: 0, 16: 1, 110: 1}),  # answers, without metrics
        ({UP: "1x40 0x15 1x100", RUNS: "2x40 stale _x14 2x100"}, {16: 0, 30: 0}),  # a restart of four minutes
        ({UP: "1x40 stale", RUNS: "2x40 stale", NEXT_UP: "_x40 0x60"}, {16: 0, 20: 0}),  # a new pod at its address
    ],
)
def test_metrics_are_absent_for_as_long_as_the_target_is_there(
    promtool: str, series: dict[str, str], at: dict[int, int], tmp_path: Path
) -> None:
    fires(promtool, tmp_path, "KVPressureVLLMMetricsAbsent", series, at)


@promtool_each
@pytest.mark.parametrize("scrape_seconds", [15, 30, 60])
def test_a_queue_that_does_not_fit_is_told_at_every_interval_with_a_scrape_missed(
    promtool: str, scrape_seconds: int, tmp_path: Path
) -> None:
    scrapes = 10 * 60 // scrape_seconds
    labels = 'instance="a:8000", model_name="llama"'
    waiting = " ".join(["0"] * scrapes + ["9"] * (scrapes // 2) + ["_"] + ["9"] * (scrapes // 2) + ["0"] * 3 * scrapes)
    values = {"num_requests_waiting": waiting, "num_requests_running": "2x200", "gpu_cache_usage_perc": "0.8x200"}
    counters = {"num_preemptions_total": "0x200", "time_to_first_token_seconds_count": "0+3x200"}
    series = {f"vllm:{name}{{{labels}}}": text for name, text in (values | counters).items()}
    times = {9: 0, 12: 1, 15: 1, 16: 1, 19: 1, 35: 0}
    fires(promtool, tmp_path, "KVPressureVLLMCacheTooSmall", series, times, scrape_seconds)


# --- expressions


@each_rule
def test_only_series_are_asked_for_that_some_vllm_has_or_these_rules_record(rule) -> None:
    for selector in selectors(rule["expr"]):
        assert selector.name in known_vllm_series() | OF_OTHERS | OF_THE_SERVER | RECORDED.keys(), selector


@each_rule
def test_labels_by_which_people_know_their_engines_survive(rule) -> None:
    for node in walk(promql.parse(rule["expr"])):
        if isinstance(node, promql.AggregateExpr):
            asked = {one.name for one in selectors(node.prettify())}
            if asked <= OF_OTHERS | OF_POOLS or asked & OF_WORKLOADS:
                # Of a pool, a workload or a pod, which are found again by where they are.
                assert {"cluster", "namespace"} <= set(node.modifier.labels), node
                continue
            assert node.modifier.type == promql.AggModifierType.Without, node
            assert set(node.modifier.labels) <= OF_A_SERIES_OWN, node


@each_rule
def test_a_selector_reaches_every_series_of_vllm(rule) -> None:
    own = 'cluster="a",job=~"vllm.*"'
    found = [one for file in load_rules(options(own)) for group in file.groups for one in group["rules"]]
    (same,) = [one for one in found if one.get("record", one.get("alert")) == rule.get("record", rule.get("alert"))]
    for selector in selectors(same["expr"]):
        matchers = {matcher.name for matcher in selector.matchers.matchers}
        assert selector.name in {*RECORDED, *OF_OTHERS} or {"cluster", "job"} <= matchers, selector


@pytest.mark.parametrize("scrape_seconds", [15, 30, 60])
def test_every_window_holds_four_scrapes(scrape_seconds: int) -> None:
    text = "".join(
        rule["expr"]
        for file in load_rules(options(scrape_seconds=scrape_seconds))
        for group in file.groups
        for rule in group["rules"]
    )
    found = re.findall(r"\[(\w+)\]", text)
    assert len(found) > 15
    assert min(map(seconds, found)) >= 4 * scrape_seconds


# --- words, names, links


@each_alert
def test_every_alert_is_short_and_its_runbook_says_what_it_cannot_know(alert) -> None:
    assert "triage" in alert.rule["annotations"]["description"].partition("\nRun: ")[2]
    assert set(alert.rule["labels"]) == {"severity", "component"}
    assert (alert.severity, alert.component) == ("warning", "vllm"), "a guess wakes nobody"
    assert alert.words.endswith(".")
    book = (ROOT / "docs" / "runbooks" / f"{alert.name}.md").read_text()
    assert re.search(r"does not know|knows the hits, and not|and not why", " ".join(book.split()))


@pytest.mark.parametrize("case", CASES)
def test_what_arrives_is_at_most_200_characters_before_the_command(case: str) -> None:
    tests = yaml.safe_load((TEMPLATES / "tests" / f"{case}.yaml").read_text())["tests"]
    told = [one["exp_annotations"] for test in tests for c in test["alert_rule_test"] for one in c["exp_alerts"]]
    assert told
    for texts in told:
        before, _, command = texts["description"].partition("\nRun: ")
        assert re.search(r"First: \w+ .*\.$", before)
        assert len(texts["summary"] + before) <= 200, texts
        assert "unknown" not in before
        assert command.strip()


@pytest.mark.parametrize("scrape_seconds", [15, 30, 60])
def test_every_alert_waits_for_a_second_scrape(scrape_seconds: int) -> None:
    alerts = [alert for file in load_rules(options("", scrape_seconds)) for alert in file.alerts]
    at_once = {alert.name for alert in alerts if seconds(alert.rule["for"]) < scrape_seconds}
    # Its expression itself asks for two, which rules/vllm-only/tests have it do.
    assert at_once == {"KVPressureVLLMCacheTooSmall"}
    assert all(
        "> 0\nand\nengine:vllm_requests_waited_twice:bool == 1\nand (" in alert.rule["expr"]
        for alert in alerts
        if alert.name in at_once
    )


def test_names_are_apart_from_those_of_the_exporters_flavour() -> None:
    names = [alert.name for alert in ALERTS]
    assert len(names) == len(set(names))
    assert all(name.startswith("KVPressureVLLM") for name in names)
    assert not [name for name in alert_names() if name.startswith("KVPressureVLLM")]
    assert not RECORDED.keys() & recorded().keys()
    groups = {group["name"] for file in FILES for group in file.groups}
    assert all(name.startswith("kvpressure-vllm-") for name in groups)


def test_where_the_exporter_runs_too_its_alerts_come_first() -> None:
    config = yaml.safe_load((built.vllm_only() / "alertmanager" / "alertmanager.yaml").read_text())
    first, *causes = config["inhibit_rules"]
    assert first["source_matchers"] == ['alertname=~"KVPressure.+"', 'component="engine"']
    assert first["target_matchers"] == ['component="vllm"']
    assert set(first["equal"]) == {"cluster", "namespace", "pod", "model_name"}
    assert all("KVPressureVLLM" in one["source_matchers"][0] for one in causes)


def test_links_lead_to_the_alerts_own_runbook_and_to_the_board() -> None:
    given = Options(
        load_thresholds(), selector="", flavour=VLLM_ONLY, runbook_url="https://h/r", dashboard_url="https://g"
    )
    (alert,) = (a for file in load_rules(given) for a in file.alerts if a.name == "KVPressureVLLMNoProgress")
    annotations = alert.rule["annotations"]
    assert annotations["runbook_url"].startswith("https://h/r/KVPressureVLLMNoProgress?namespace={{ $labels.namespace")
    assert annotations["dashboard_url"].startswith("https://g/d/kvpressure-vllm-only?var-namespace=")
    assert "var-instance=" in annotations["dashboard_url"]

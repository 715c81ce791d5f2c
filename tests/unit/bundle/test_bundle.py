"""`kvpressure generate`: options, files, and a folder that is replaced whole or not at all."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from kvpressure.bundle import Options, bundle_files, load_rules, write_bundle
from kvpressure.bundle import write as writing
from kvpressure.bundle.alertmanager import inhibitions
from kvpressure.bundle.rules import COMPONENTS, SEVERITIES, read_rules, seconds
from kvpressure.bundle.templates import percent, plain, render
from kvpressure.bundle.write import dump
from kvpressure.cli import main
from kvpressure.config.strict_yaml import ConfigError
from kvpressure.config.thresholds import load_thresholds
from kvpressure.exposition import runbooks
from kvpressure.model.family import Scope
from tests.support.tools import FIXTURES, ROOT

pytestmark = pytest.mark.exhaustive

CRD = FIXTURES / "schemas" / "monitoring.coreos.com_prometheusrules.yaml"


def options(**changes: Any) -> Options:
    return Options(load_thresholds(), **changes)


def generate(*flags: str) -> Result:
    return CliRunner().invoke(main, ["generate", *flags])


def tree(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def rules_of(text: str) -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]


# --- the command


def test_generate_writes_the_whole_bundle_and_says_so(tmp_path: Path) -> None:
    result = generate("--out", str(tmp_path / "out"))
    assert (result.exit_code, result.stderr) == (0, "")
    assert tree(tmp_path / "out") == bundle_files(options())
    assert load_thresholds().hash in result.output
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *("alertmanager", "alerts.md", "bundle.json", "grafana", "kubernetes", "prometheus", "runbooks")
    }
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_runbooks_come_along_for_every_alert() -> None:
    files = bundle_files(options())
    for name in {alert.name for file in load_rules(options()) for alert in file.alerts}:
        assert files[f"runbooks/{name}.md"] == runbooks.for_people(name)


def test_thresholds_of_a_file_reach_the_rules_and_their_hash(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("alert_unserved_ticket_min_seconds: 123\n")
    assert generate("--out", str(tmp_path / "out"), "--thresholds", str(own), "--all-alerts").exit_code == 0
    files, hash_ = tree(tmp_path / "out"), load_thresholds(own.read_text()).hash
    assert ">= 123" in files["prometheus/alerts/queue-not-served.yaml"]
    assert f'hash!="{hash_}"' in files["prometheus/alerts/thresholds-differ.yaml"]
    assert json.loads(files["bundle.json"])["thresholds_hash"] == hash_ != load_thresholds().hash


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("alert_score_min_ratio: 1.5\n", "own.yaml:1: alert_score_min_ratio: must be from 0 to 1, got 1.5"),
        ("\nalert_score_min: 0.5\n", "own.yaml:2: alert_score_min: unknown threshold; did you mean"),
        ("gpu_memory_high_warn_ratio: 0.95\n", "(0.95) must be below gpu_memory_high_critical_ratio (0.9)"),
        ("a: [\n", "is not YAML"),
    ],
)
def test_thresholds_out_of_range_are_refused_with_the_reason_and_nothing_is_written(
    tmp_path: Path, text: str, reason: str
) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(text)
    result = generate("--out", str(tmp_path / "out"), "--thresholds", str(own))
    assert result.exit_code == 2
    assert reason in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("flag", "value", "reason"),
    [
        ("--selector", "", "is missing"),
        ("--selector", " ", "is missing"),
        ("--selector", "{job='x'}", "is not label matchers"),
        ("--selector", 'job="x"}[5m]) or up{a="b"', "is not label matchers"),
        ("--selector", 'job="x" cluster="y"', "is not label matchers"),
        ("--selector", 'job="x",', "is not label matchers"),
        ("--selector", 'job="`x`"', "is not label matchers"),
        ("--runbook-url", "runbooks", "is not an http(s) address"),
        ("--runbook-url", "javascript://x/", "is not an http(s) address"),
        ("--runbook-url", "http://x/{{ query `up` }}", "is not an http(s) address"),
        ("--dashboard-url", "http://x/?a=b", "is not an http(s) address"),
        ("--page-url", "", "is not an http(s) address"),
        ("--ticket-url", 'http://x/"', "is not an http(s) address"),
        ("--label", "a b=c", "is not a Kubernetes label"),
        ("--label", "release", "'release' is not KEY=VALUE"),
        ("--flavour", "vllm", "is not one of 'exporter', 'vllm-only'"),
        ("--scrape-interval", "61s", "not from 1 s to 60 s"),
        ("--scrape-interval", "soon", "no duration"),
        ("--scrape-interval", "", "no dur"),
    ],
)
def test_a_bad_option_is_refused_with_the_reason_and_nothing_is_written(
    tmp_path: Path, flag: str, value: str, reason: str
) -> None:
    result = generate("--out", str(tmp_path / "out"), flag, value)
    assert result.exit_code == 2
    assert reason in result.stderr
    assert flag in result.stderr
    assert not (tmp_path / "out").exists()


def test_every_problem_is_told_at_once(tmp_path: Path) -> None:
    result = generate("--out", str(tmp_path / "out"), "--selector", "", "--page-url", "x", "--label", "!=")
    assert result.stderr.count("generate: ") == 3


# --- what options change


def test_a_selector_reaches_every_expression_and_every_query_of_a_description() -> None:
    selector = 'job="gpu",cluster=~"a|b"'
    for name, text in bundle_files(options(selector=selector), with_runbooks=False).items():
        assert 'job="kvpressure"' not in text, name
        if name.startswith("prometheus/alerts/"):
            assert all(selector in rule["expr"] or ":kvpressure_" in rule["expr"] for rule in rules_of(text)), name


def test_links_lead_where_somebody_says_and_otherwise_to_the_file_in_the_bundle() -> None:
    page = "prometheus/alerts/engine-stuck.yaml"
    files = bundle_files(options())
    (none,) = rules_of(files[page])
    assert not {"runbook_url", "dashboard_url"} & set(none["annotations"])
    assert none["annotations"]["runbook"] in files
    assert "$labels.instance }}" not in " ".join(none["annotations"].values())
    (other,) = rules_of(bundle_files(options(runbook_url="https://h/r/", dashboard_url="https://g/"))[page])
    assert other["annotations"]["runbook_url"].startswith("https://h/r/KVPressureEngineStuck?namespace={{ $labels.name")
    assert "&target={{ $labels.target | urlquery }}" in other["annotations"]["runbook_url"]
    assert other["annotations"]["dashboard_url"].startswith("https://g/d/kvpressure-engine?var-namespace=")


def test_a_model_has_the_fleets_board() -> None:
    files = bundle_files(options(dashboard_url="https://g"))
    (failing,) = rules_of(files["prometheus/alerts/replicas-failing.yaml"])
    board = failing["annotations"]["dashboard_url"]
    assert board.startswith("https://g/d/kvpressure-fleet?var-namespace=")
    assert "&var-model_name=" in board


@pytest.mark.parametrize("interval", ["15s", "30s", "1m"])
def test_every_window_holds_four_scrapes_at_every_interval(tmp_path: Path, interval: str) -> None:
    flags = ("--scrape-interval", interval, "--all-alerts", "--no-dashboards")
    assert generate("--out", str(tmp_path / "out"), *flags).exit_code == 0
    files = {name: text for name, text in tree(tmp_path / "out").items() if name.startswith("prometheus/")}
    looked_back = [found for text in files.values() for found in re.findall(r"\[(\d+[smhd]\w*)\]", text)]
    assert len(looked_back) > 40
    assert min(map(seconds, looked_back)) >= 4 * seconds(interval)
    for rule in (rule for text in files.values() for rule in rules_of(text) if "alert" in rule):
        assert seconds(rule["for"]) == 0 or seconds(rule["for"]) >= 2 * seconds(interval)
        kept = rule.get("keep_firing_for")
        assert kept is None or seconds(kept) >= 4 * seconds(interval)


def test_by_default_only_what_pages_or_needs_a_ticket_is_written() -> None:
    few, all_ = bundle_files(options()), bundle_files(options(all_alerts=True))
    assert "prometheus/alerts/throughput-plateau.yaml" in set(all_) - set(few)
    assert few["alerts.md"] == all_["alerts.md"]  # the page tells of both
    names = {
        rule["alert"] for name, text in few.items() if name.startswith("prometheus/alerts/") for rule in rules_of(text)
    }
    assert names == {alert.name for file in load_rules(options()) for alert in file.alerts}


def test_labels_and_webhooks_reach_their_files(tmp_path: Path) -> None:
    urls = ("--page-url", "http://127.0.0.1:1/p", "--ticket-url", "http://127.0.0.1:1/t")
    assert generate("--out", str(tmp_path / "out"), "--label", "release=prom", *urls).exit_code == 0
    files = tree(tmp_path / "out")
    assert yaml.safe_load(files["kubernetes/prometheusrule-alerts.yaml"])["metadata"]["labels"]["release"] == "prom"
    config = yaml.safe_load(files["alertmanager/alertmanager.yaml"])
    assert [r["webhook_configs"][0]["url"] for r in config["receivers"][:2]] == [urls[1], urls[3]]


def test_what_explains_an_alert_mutes_it_where_both_are_about_the_same() -> None:
    """A label that only one of the two has is never equal, and one that neither has always is."""
    alerts = [alert for file in load_rules(options(all_alerts=True)) for alert in file.alerts]
    engine = {"cluster", "instance", *Scope.ENGINE.labels}
    labels = {
        "container": {"cluster", "instance", *Scope.CONTAINER.labels},
        "exporter": {"cluster", "instance", *Scope.SOURCE.labels},
        "deployment": {"cluster", "namespace", "model_name"},
    }
    about: dict[str, set[str]] = {}
    for alert in alerts:
        about.setdefault(alert.name, set()).update(labels.get(alert.component, engine))
    found = inhibitions(alerts, options())
    causes = [rule for rule in found if rule.why.startswith("A cause")]
    targets = {name for rule in causes for name in rule.target[0].value.split("|")}
    assert targets == {alert.name for alert in alerts if alert.muted_by}
    for rule in causes:
        for name in (*rule.source[0].value.split("|"), *rule.target[0].value.split("|")):
            assert set(rule.equal) <= about[name], name
    for rule in found:
        assert len(set(rule.equal)) == len(rule.equal) > 0


def test_the_object_for_the_operator_inhibits_what_the_example_does() -> None:
    files = bundle_files(options())
    rules = yaml.safe_load(files["kubernetes/alertmanagerconfig.yaml"])["spec"]["inhibitRules"]
    example = yaml.safe_load(files["alertmanager/alertmanager.yaml"])["inhibit_rules"]
    assert [rule["equal"] for rule in rules] == [rule["equal"] for rule in example]
    written = [[f'{one["name"]}{one["matchType"]}"{one["value"]}"' for one in rule["sourceMatch"]] for rule in rules]
    assert written == [[one.replace('="', '=~"') for one in rule["source_matchers"]] for rule in example]


# --- PrometheusRule objects


KINDS: dict[str, Any] = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int}


def violations(schema: dict[str, Any], value: Any, where: str = "") -> Iterator[str]:
    """What of the OpenAPI schema of a CRD `value` breaks: types, required and unknown keys, patterns, enums."""
    expected = (int, str) if schema.get("x-kubernetes-int-or-string") else KINDS.get(schema.get("type", ""), object)
    if not isinstance(value, expected):
        yield f"{where} is no {schema.get('type')}"
    elif isinstance(value, dict):
        yield from violations_of_mapping(schema, value, where)
    elif isinstance(value, list):
        for position, inner in enumerate(value):
            yield from violations(schema.get("items", {}), inner, f"{where}[{position}]")
    elif isinstance(value, str) and not (
        re.search(schema.get("pattern", ""), value) and value in schema.get("enum", [value])
    ):
        yield f"{where} {value!r} is not allowed"


def violations_of_mapping(schema: dict[str, Any], value: dict[str, Any], where: str) -> Iterator[str]:
    yield from (f"{where} lacks {key}" for key in schema.get("required", ()) if key not in value)
    for key, inner in value.items():
        below = schema.get("properties", {}).get(key, schema.get("additionalProperties"))
        if below is None and "properties" in schema:
            yield f"{where}.{key} is unknown"
        else:
            yield from violations(below or {}, inner, f"{where}.{key}")


def crd_schema() -> dict[str, Any]:
    crd = yaml.safe_load(CRD.read_text())
    schema: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


@pytest.mark.parametrize("kind", ["alerts", "recording"])
def test_prometheus_rule_objects_follow_the_operators_schema(kind: str) -> None:
    files = bundle_files(options())
    object_ = yaml.safe_load(files[f"kubernetes/prometheusrule-{kind}.yaml"])
    assert (object_["apiVersion"], object_["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert list(violations(crd_schema(), object_)) == []
    plain_files = [text for name, text in files.items() if name.startswith(f"prometheus/{kind}/")]
    assert object_["spec"]["groups"] == [group for text in plain_files for group in yaml.safe_load(text)["groups"]]
    names = [group["name"] for group in object_["spec"]["groups"]]
    assert len(names) == len(set(names))


def test_the_schema_check_can_fail() -> None:
    object_ = yaml.safe_load(bundle_files(options())["kubernetes/prometheusrule-alerts.yaml"])
    object_["spec"]["groups"][0]["rules"][0]["for"] = "soon"
    object_["spec"]["groups"][0]["words"] = "x"
    del object_["spec"]["groups"][1]["name"]
    assert len(list(violations(crd_schema(), object_))) == 3


# --- writing


def test_an_older_bundle_is_replaced_and_what_it_had_more_is_gone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_bundle(out, {"a/b": "1", "bundle.json": '{"files": ["a/b", "bundle.json"]}'})
    write_bundle(out, {"c": "2", "bundle.json": '{"files": ["c", "bundle.json"]}'})
    assert sorted(tree(out)) == ["bundle.json", "c"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("name", ["mine.txt", "prometheus/alerts/mine.yaml"])
def test_a_folder_with_files_of_others_is_refused_and_left_alone(tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    write_bundle(out, bundle_files(options()))
    (out / name).write_text("mine")
    before = tree(out)
    result = generate("--out", str(out))
    assert result.exit_code == 2
    assert f"contains other files: {name}" in result.stderr
    assert tree(out) == before


@pytest.mark.parametrize(
    ("flag", "path", "reason"),
    [
        ("--out", "file", "file: is a file"),
        ("--out", "file/out", "file/out: cannot be written"),
        ("--thresholds", "none.yaml", "No such file"),
    ],
)
def test_a_path_that_is_none_is_refused_by_its_name(tmp_path: Path, flag: str, path: str, reason: str) -> None:
    (tmp_path / "file").write_text("mine")
    result = generate("--out", str(tmp_path / "out"), flag, str(tmp_path / path))
    assert (result.exit_code, reason in result.stderr, path in result.stderr) == (2, True, True), result.stderr
    assert sorted(found.name for found in tmp_path.iterdir()) == ["file"]


@pytest.mark.parametrize("inside", [".", "deep/er"])
def test_the_folder_that_somebody_stands_in_is_refused_and_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inside: str
) -> None:
    out = tmp_path / "out"
    (out / inside).mkdir(parents=True)
    monkeypatch.chdir(out / inside)
    result = generate("--out", str(out))
    assert (result.exit_code, "the folder you are in" in result.stderr) == (2, True)
    assert Path.cwd() == (out / inside).resolve()


@pytest.mark.parametrize("failing", ["_fill", "rename"])
def test_a_disk_that_fills_up_leaves_the_older_bundle_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    out = tmp_path / "out"
    write_bundle(out, {"a": "1", "bundle.json": '{"files": ["a"]}'})
    fill, rename = writing._fill, Path.rename

    def half(folder: Path, files: dict[str, str]) -> None:
        fill(folder, dict(list(files.items())[:1]))
        raise OSError(28, "No space left on device")

    def refuse(self: Path, target: Path) -> Path:
        if self.name == "new":
            raise OSError(16, "Device or resource busy")
        return rename(self, target)

    if failing == "_fill":
        monkeypatch.setattr(writing, "_fill", half)
    else:
        monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(ConfigError, match="nothing was changed"):
        write_bundle(out, {"b": "2", "c": "3"})
    assert tree(out) == {"a": "1", "bundle.json": '{"files": ["a"]}'}
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_link_to_a_folder_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    write_bundle(tmp_path / "link", {"a": "1"})
    assert (tmp_path / "link").is_symlink()
    assert tree(tmp_path / "real") == {"a": "1"}


# --- templates and rule files

RULE = """groups:
  - name: g
    rules:
      - alert: A
        words: w
        expr: up == [[ limits.alert_score_min_ratio ]]
        for: 1m
        labels: {severity: info, component: engine}
        annotations: {summary: s, facts: f, run: r}
"""


def read(template: str) -> Any:
    return read_rules("alerts/x.yaml.j2", template, render("alerts/x.yaml.j2", template, options()), options())


def test_a_rule_file_is_prometheus_own_format_with_links_added() -> None:
    file = read(RULE)
    (alert,) = file.alerts
    assert list(alert.rule) == ["alert", "expr", "for", "labels", "annotations"]
    assert alert.condition == "up == 0.5"
    assert alert.rule["expr"].startswith("(\n  up == 0.5\n)\nunless on (cluster, instance, target)\n")
    assert alert.thresholds == ("alert_score_min_ratio",)
    assert alert.rule["annotations"] == {"summary": "s", "description": "f\nRun: r", "runbook": "runbooks/A.md"}


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("limits.alert_score_min_ratio", "limits.nothing", "uses what does not exist"),
        ("limits.alert_score_min_ratio", "nothing", "uses what does not exist"),
        ("[[ limits", "[[ limits +", "is no template"),
        ("        for: 1m\n", "        for: 1m\n        for: 2m\n", "duplicate key"),
    ],
)
def test_a_bad_template_is_refused_with_its_name_and_the_reason(old: str, new: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as caught:
        read(RULE.replace(old, new, 1))
    assert str(caught.value).startswith("alerts/x.yaml.j2")


TEMPLATES = sorted(path for kind in ("alerts", "recording") for path in (ROOT / "rules").rglob(f"{kind}/*.yaml.j2"))


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_a_template_has_the_keys_of_rules_and_no_others(path: Path) -> None:
    document = yaml.safe_load(render(path.name, path.read_text(), options()))
    assert document["groups"]
    for group in document["groups"]:
        assert group["name"]
        for rule in group["rules"]:
            if "record" in rule:
                assert rule.keys() <= {"record", "expr", "labels"}
                continue
            required = {"alert", "expr", "for", "labels", "annotations", "words"}
            assert required <= rule.keys()
            assert rule.keys() <= required | {"keep_firing_for", "muted_by", "off_because", "exporter_answers"}
            assert rule["labels"]["severity"] in SEVERITIES
            assert rule["labels"]["component"] in COMPONENTS
            assert sorted(rule["annotations"]) == ["facts", "run", "summary"]


def test_numbers_are_written_as_people_do() -> None:
    assert [plain(value) for value in (0.9, 300.0, 1e-3, "x", 2)] == ["0.9", "300", "0.001", "x", 2]
    assert [percent(ratio) for ratio in (0.85, 0.005, 1.0)] == ["85 %", "0.5 %", "100 %"]


@pytest.mark.parametrize(
    "text", ["a: b", "x" * 300, "one two " * 40, "a\nb\n", " lead", "{{ $labels.x }}", "# no", "yes"]
)
def test_yaml_reads_back_as_it_was_written(text: str) -> None:
    assert yaml.safe_load(dump({"k": [text, {"n": text}]})) == {"k": [text, {"n": text}]}

"""The chart over a matrix of values: valid objects, settings the exporter takes, bad values refused with a reason."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from deploy.chart_files import CHART, build, chart_files

from kvpressure import __version__
from kvpressure.bundle import Options, load_rules, rule_objects
from kvpressure.config.settings import load_settings
from kvpressure.config.thresholds import load_thresholds
from tests.support import built
from tests.support.chart import (
    CASES,
    EVERYTHING,
    MINIMAL,
    OPERATOR,
    container_of,
    daemonset,
    each_case,
    helm,
    merged,
    of_kind,
    pod_of,
    problems,
    rendered,
    settings_of,
    template,
    try_template,
    values_of,
)


@pytest.mark.parametrize(
    "values", [{}, MINIMAL, merged(MINIMAL, EVERYTHING)], ids=["defaults", "minimal", "everything"]
)
def test_helm_lint_finds_nothing(values: dict[str, Any]) -> None:
    result = helm("lint", "--strict", str(built.chart()), values=values)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "ERROR" not in result.stdout
    assert "WARNING" not in result.stdout


@each_case
def test_every_object_is_one_that_the_api_server_takes_whole(case: str) -> None:
    objects = rendered(case)
    assert of_kind(objects, "DaemonSet")
    assert [problem for found in objects for problem in problems(found)] == []


@pytest.mark.parametrize("version", ["1.26", "1.30", "1.37"])
def test_the_objects_fit_older_and_newer_clusters(version: str) -> None:
    assert [problem for found in rendered("everything") for problem in problems(found, version)] == []


def test_an_object_with_a_wrong_field_would_be_noticed() -> None:
    broken = json.loads(json.dumps(daemonset("defaults")))
    broken["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
    assert list(problems(broken))
    (monitor,) = of_kind(rendered("operator"), "PodMonitor")
    assert list(problems(monitor)) == []
    assert list(problems({**monitor, "spec": {**monitor["spec"], "honorLabels": True}}))


@each_case
def test_the_exporter_takes_the_settings_that_are_written(case: str, tmp_path: Path) -> None:
    objects = of_kind(rendered(case), "ConfigMap")
    (data,) = (found["data"] for found in objects if "kvpressure.yaml" in found["data"])
    for name, text in data.items():
        (tmp_path / name).write_text(text.replace("/etc/kvpressure/", f"{tmp_path}/"))
    settings = yaml.safe_load((tmp_path / "kvpressure.yaml").read_text())
    settings["web"].pop("config_file", None)  # from a Secret of the user's
    (tmp_path / "kvpressure.yaml").write_text(yaml.safe_dump(settings))
    loaded = load_settings({"--config.file": str(tmp_path / "kvpressure.yaml")}, {})
    assert loaded.web.listen_address[0].port == values_of(case)["web"]["port"]
    if loaded.thresholds_file:
        assert load_thresholds(loaded.thresholds_file.read_text()).symptoms.kv_saturated_min_ratio == 0.95


def test_every_switch_reaches_the_settings() -> None:
    settings = settings_of("everything")
    assert settings["kubernetes"] == {
        "enabled": "true",
        "events": True,
        "node_conditions": True,
        "label_selector": "app=vllm",
        "port_name": "http",
        "port": 8080,
        "path": "/prometheus",
    }
    assert settings["pod_resources"] | {"resource_names": ["nvidia.com/gpu.shared"]} == settings["pod_resources"]
    assert settings["logs"]["max_bytes_per_second"] == 65536
    assert settings["host"]["cgroup_dir"] == "/host/sys/fs/cgroup"
    assert settings["log"] == {"level": "debug"}
    assert settings_of("thresholds")["thresholds_file"] == "/etc/kvpressure/thresholds.yaml"
    assert settings_of("namespaces")["kubernetes"]["namespaces"] == ["llm", "chat"]
    assert settings_of("no kubernetes")["kubernetes"] == {"enabled": "false"}
    assert settings_of("tls")["web"] == {"listen_address": ":9443", "config_file": "/etc/kvpressure-web/web.yaml"}


def test_settings_of_the_user_win_over_those_of_the_chart() -> None:
    objects = template({"config": {"kubernetes": {"events": False}, "engines": {"targets": [{"url": "http://a:1"}]}}})
    (text,) = (
        found["data"]["kvpressure.yaml"]
        for found in of_kind(objects, "ConfigMap")
        if found["metadata"]["name"] == "kvpressure"
    )
    settings = yaml.safe_load(text)
    assert settings["kubernetes"]["events"] is False
    assert settings["kubernetes"]["enabled"] == "true"
    assert settings["engines"]["targets"] == [{"url": "http://a:1"}]


@pytest.mark.parametrize("case", ["everything", "pod resources", "logs", "cgroups", "devices as mounts", "amd", "tls"])
def test_every_mount_has_its_volume_and_every_volume_its_mount(case: str) -> None:
    volumes = [volume["name"] for volume in pod_of(case)["volumes"]]
    mounts = [mount["name"] for mount in container_of(case)["volumeMounts"]]
    assert sorted(volumes) == sorted(mounts)
    assert len(set(volumes)) == len(volumes)


def test_directories_in_the_settings_are_the_ones_that_are_mounted() -> None:
    mounts = {mount["mountPath"] for mount in container_of("everything")["volumeMounts"]}
    settings = settings_of("everything")
    named = {settings["pod_resources"]["socket_dir"], settings["logs"]["directory"], settings["host"]["cgroup_dir"]}
    assert named | set(settings["logs"]["link_directories"]) <= mounts


def test_a_change_of_settings_starts_the_pods_anew() -> None:
    def checksum(values: dict[str, Any]) -> str:
        (found,) = of_kind(template(values), "DaemonSet")
        return found["spec"]["template"]["metadata"]["annotations"]["checksum/config"]

    assert checksum({}) == checksum({"resources": {}})
    assert checksum({}) != checksum({"config": {"log": {"level": "debug"}}})


@each_case
def test_pods_carry_the_label_that_the_alerts_tell_people_to_look_for(case: str) -> None:
    spec = daemonset(case)["spec"]
    labels = spec["template"]["metadata"]["labels"]
    assert labels["app.kubernetes.io/name"] == "kvpressure"
    assert spec["selector"]["matchLabels"].items() <= labels.items()
    assert "helm.sh/chart" not in labels, "a new chart that changes nothing must not restart every pod"


def test_gpu_nodes_are_found_by_any_one_of_the_labels() -> None:
    terms = pod_of("defaults")["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    found = [expression for term in terms["nodeSelectorTerms"] for expression in term["matchExpressions"]]
    assert len(terms["nodeSelectorTerms"]) == len(found) == len(values_of("defaults")["gpuNodeLabels"])
    assert {"key": "nvidia.com/gpu.present", "operator": "In", "values": ["true"]} in found
    assert {"key": "amd.com/gpu.family", "operator": "Exists"} in found
    assert pod_of("other affinity")["affinity"] == {"nodeAffinity": {}}
    assert "affinity" not in pod_of("any node")


def test_no_gpu_is_taken_from_anybody() -> None:
    for case in CASES:
        assert "gpu" not in json.dumps(container_of(case)["resources"])


@pytest.mark.parametrize(("case", "tag"), [("defaults", f":{__version__}"), ("everything", "@sha256:" + "a" * 64)])
def test_the_image_is_the_users_at_the_version_of_the_exporter(case: str, tag: str) -> None:
    assert container_of(case)["image"].startswith("registry.example.com")
    assert container_of(case)["image"].endswith(tag)


def test_without_an_image_it_says_that_none_is_published() -> None:
    result = try_template({})
    assert result.returncode != 0
    assert "no image of kvpressure is published. Build one with deploy/docker/Dockerfile" in result.stderr


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"imge": {}}, "additional properties 'imge' not allowed"),
        ({"image": {"repositry": "x"}}, "at '/image': additional properties 'repositry' not allowed"),
        ({"image": {"digest": "sha256:12"}}, "at '/image/digest'"),
        ({"image": {"pullPolicy": "Sometimes"}}, "at '/image/pullPolicy'"),
        ({"kubernetes": {"namespaces": "llm"}}, "at '/kubernetes/namespaces': got string, want array"),
        ({"kubernetes": {"port": 70000}}, "at '/kubernetes/port': maximum"),
        ({"kubernetes": {"enabled": "yes"}}, "at '/kubernetes/enabled': got string, want boolean"),
        ({"logs": {"hostPath": "var/log"}}, "at '/logs/hostPath'"),
        ({"nvidia": {"visibleDevices": "all"}}, "at '/nvidia/visibleDevices': value must be one of"),
        ({"amd": {"groups": ["video"]}}, "at '/amd/groups/0': got string, want integer"),
        ({"thresholds": {"kv_saturated_min_ratio": "high"}}, "does not match pattern"),
        ({"podSecurity": {"user": 0}}, "at '/podSecurity/user': minimum"),
        ({"podSecurity": {"privileged": True}}, "additional properties 'privileged' not allowed"),
        ({"commonLabels": {"app.kubernetes.io/name": "x"}}, "at '/commonLabels/app.kubernetes.io~1name'"),
        ({"updateStrategy": {"maxUnavailable": "few"}}, "at '/updateStrategy/maxUnavailable'"),
        ({"podMonitor": {"enabled": "perhaps"}}, "at '/podMonitor/enabled': value must be one of 'auto', true, false"),
        ({"podMonitor": {"interval": 15}}, "at '/podMonitor/interval': got number, want string"),
        ({"networkPolicy": {"enginePorts": ["http"]}}, "at '/networkPolicy/enginePorts/0'"),
        ({"gpuNodeLabels": [{"key": "a"}]}, "missing property 'values'"),
    ],
)
def test_bad_values_are_refused_with_their_place(values: dict[str, Any], reason: str) -> None:
    result = try_template(merged(MINIMAL, values))
    assert result.returncode != 0
    assert reason in result.stderr


def test_thresholds_that_the_rules_would_not_have_are_refused_in_one_line() -> None:
    own = {"thresholds": {"kv_saturated_min_ratio": 0.95}}
    result = try_template(merged(MINIMAL, {**own, "prometheusRule": {"enabled": True}}))
    assert result.returncode != 0
    assert "set prometheusRule.enabled=false and apply what `kvpressure generate --thresholds` writes" in result.stderr
    assert template(own)


def test_helm_may_hand_down_globals_when_the_chart_is_a_dependency() -> None:
    assert template({"global": {"imageRegistry": "x"}})


# --- what people are used to from other charts


def test_a_user_of_null_is_left_to_the_platform_and_not_root() -> None:
    context = pod_of("openshift")["securityContext"]
    assert context == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def test_what_is_usual_reaches_the_pod() -> None:
    pod = pod_of("everything")
    container = container_of("everything")
    assert [secret["name"] for secret in pod["imagePullSecrets"]] == ["r", "s", "t", "u"]
    assert pod["securityContext"]["fsGroup"] == 1234
    assert pod["securityContext"]["runAsUser"] == 4321
    assert pod["dnsPolicy"] == "None"
    assert pod["dnsConfig"] == {"nameservers": ["192.0.2.53"]}
    assert container["args"][-1] == "--log.level=debug"
    assert container["envFrom"] == [{"secretRef": {"name": "engine-keys"}}]
    assert container["livenessProbe"]["failureThreshold"] == 10
    assert container["livenessProbe"]["httpGet"]["path"] == "/-/healthy"
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    image = {"global": {"imageRegistry": "mirror.example.com/"}, "image": {"repository": "team/kvpressure"}}
    (pods,) = of_kind(template(image), "DaemonSet")
    (mirrored,) = pods["spec"]["template"]["spec"]["containers"]
    assert mirrored["image"].startswith("mirror.example.com/team/kvpressure:")


def test_common_annotations_are_on_every_object() -> None:
    assert [found["kind"] for found in rendered("everything") if found["metadata"]["annotations"].get("e") != "f"] == []


def test_all_objects_are_in_the_namespace_that_is_given() -> None:
    objects = rendered("another namespace")
    assert {found["metadata"]["namespace"] for found in objects if "namespace" in found["metadata"]} == {"monitoring"}
    (binding,) = of_kind(objects, "ClusterRoleBinding")
    assert binding["subjects"][0]["namespace"] == "monitoring"


def test_a_key_of_another_chart_is_refused_with_what_to_use() -> None:
    refusals = (CHART / "templates" / "_refused.tpl").read_text()
    keys = re.findall(r"^([\w.]+): ", refusals, re.MULTILINE)
    properties = json.loads((CHART / "values.schema.json").read_text())["properties"]
    assert {key.partition(".")[0] for key in keys} <= properties.keys()
    for key, instead in (
        ("containerSecurityContext", "securityContext"),
        ("env", "extraEnv"),
        ("image.sha", "image.digest"),
    ):
        outer, _, inner = key.partition(".")
        result = try_template(merged(MINIMAL, {outer: {inner: None} if inner else {}}))
        assert result.returncode != 0
        assert f"{key} is not a value of this chart: use {instead}" in result.stderr
    result = try_template(merged(MINIMAL, {"serviceMonitor": {"honorLabels": False}}))
    assert (
        "serviceMonitor.honorLabels is not a value of this chart, and nothing takes its place: it is on"
        in result.stderr
    )


def test_what_is_not_set_of_the_service_monitor_is_as_of_the_pod_monitor() -> None:
    values = {
        "podMonitor": {"labels": {"release": "p"}, "interval": "30s", "scrapeTimeout": "5s"},
        "serviceMonitor": {"enabled": True, "additionalLabels": {"release": "s"}, "interval": "60s"},
    }
    (monitor,) = of_kind(template(values), "ServiceMonitor")
    assert monitor["metadata"]["labels"]["release"] == "s"
    (endpoint,) = monitor["spec"]["endpoints"]
    assert (endpoint["interval"], endpoint["scrapeTimeout"]) == ("60s", "5s")


def test_the_chart_says_who_made_it_and_what_it_is() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart.keys() >= {"home", "sources", "maintainers", "icon", "annotations"}
    assert chart["annotations"]["artifacthub.io/license"] == "Apache-2.0"


# --- what Prometheus and Grafana get


def test_the_operators_objects_are_made_where_the_cluster_knows_them() -> None:
    assert not of_kind(template({}), "PodMonitor")
    objects = template({}, "--api-versions", "monitoring.coreos.com/v1")
    assert len(of_kind(objects, "PodMonitor")) == 1
    assert len(of_kind(objects, "PrometheusRule")) == 2
    off = {"podMonitor": {"enabled": False}, "prometheusRule": {"enabled": False}}
    objects = template(off, "--api-versions", "monitoring.coreos.com/v1")
    assert not [found for found in objects if found["apiVersion"].startswith("monitoring")]


def test_a_service_monitor_takes_the_place_of_the_pod_monitor_with_the_same_endpoint() -> None:
    values = {"podMonitor": {"labels": {"release": "p"}, "interval": "30s"}}
    operator = ("--api-versions", "monitoring.coreos.com/v1")
    (pod_monitor,) = of_kind(template(values, *operator), "PodMonitor")
    objects = template(values | {"serviceMonitor": {"enabled": True}}, *operator)
    assert not of_kind(objects, "PodMonitor")
    (service,), (monitor,) = of_kind(objects, "Service"), of_kind(objects, "ServiceMonitor")
    # The operator's fields of both endpoints have the same names; the PodMonitor's are judged by its schema.
    assert monitor["spec"]["endpoints"] == pod_monitor["spec"]["podMetricsEndpoints"]
    assert monitor["spec"].keys() == {"selector", "namespaceSelector", "sampleLimit", "endpoints"}
    assert monitor["metadata"]["labels"]["release"] == "p"
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (pods,) = of_kind(objects, "DaemonSet")
    assert service["spec"]["selector"].items() <= pods["spec"]["template"]["metadata"]["labels"].items()
    assert service["spec"]["type"] == "ClusterIP"
    assert list(problems(service)) == []


def test_both_monitors_at_once_are_refused() -> None:
    both = {"podMonitor": {"enabled": True}, "serviceMonitor": {"enabled": True}}
    result = try_template(merged(MINIMAL, both))
    assert result.returncode != 0
    assert "every series would be scraped twice" in result.stderr


@pytest.mark.parametrize("kind", ["alerts", "recording"])
def test_the_rules_are_the_generated_ones_word_for_word(kind: str) -> None:
    service = next(one["metadata"] for one in of_kind(rendered("operator"), "Service"))
    runbooks = f"http://{service['name']}.{service['namespace']}.svc:10405/runbooks"
    options = Options(load_thresholds(), runbook_url=runbooks)
    source = yaml.safe_load(rule_objects(load_rules(options), options)[kind])
    (found,) = (r for r in of_kind(rendered("operator"), "PrometheusRule") if r["metadata"]["name"].endswith(kind))
    assert found["spec"] == source["spec"]
    assert found["metadata"]["annotations"] == source["metadata"]["annotations"]


def test_rules_take_the_interval_the_links_and_all_alerts() -> None:
    links = {"runbookUrl": "https://wiki.example.com/r/", "dashboardUrl": "https://grafana.example.com"}
    values = {
        "podMonitor": {"interval": "1m"},
        "prometheusRule": {"enabled": True, "allAlerts": True, "recording": False, **links},
    }
    (found,) = of_kind(template(values), "PrometheusRule")
    options = Options(
        load_thresholds(),
        runbook_url=links["runbookUrl"],
        dashboard_url=links["dashboardUrl"],
        scrape_seconds=60,
        all_alerts=True,
    )
    assert found["spec"] == yaml.safe_load(rule_objects(load_rules(options), options)["alerts"])["spec"]


def test_an_interval_without_rules_is_refused_with_what_to_do() -> None:
    values = merged(MINIMAL, {"podMonitor": {"interval": "20s"}, "prometheusRule": {"enabled": True}})
    result = helm("template", "x", str(built.chart()), values=values)
    assert result.returncode != 0
    assert "kvpressure generate --scrape-interval 20s" in result.stderr


def test_inhibition_comes_where_the_cluster_knows_it_and_carries_no_label_twice() -> None:
    rules = {"prometheusRule": {"enabled": True}}
    assert of_kind(template(rules), "AlertmanagerConfig") == []
    (found,) = of_kind(
        template(rules, "--api-versions", "monitoring.coreos.com/v1alpha1/AlertmanagerConfig"), "AlertmanagerConfig"
    )
    assert len(found["spec"]["inhibitRules"]) > 4
    for rule in found["spec"]["inhibitRules"]:
        assert len(set(rule["equal"])) == len(rule["equal"]) > 0


def test_rules_take_the_labels_and_the_namespace_that_prometheus_selects() -> None:
    (found,) = of_kind(rendered("rules elsewhere"), "PrometheusRule")
    assert found["metadata"]["name"] == "kvpressure-alerts"
    assert found["metadata"]["namespace"] == "m"
    assert found["metadata"]["labels"]["release"] == "p"


def test_every_dashboard_becomes_a_config_map_for_the_sidecar(tmp_path: Path) -> None:
    chart = tmp_path / "kvpressure"
    shutil.copytree(built.chart(), chart)
    shutil.rmtree(chart / "files/dashboards")
    (chart / "files/dashboards").mkdir()
    board = json.dumps({"title": "Engine {{ $labels }}", "panels": [1]}, indent=2) + "\n"
    (chart / "files/dashboards/kvpressure-Engine_view.json").write_text(board)
    values = {"dashboards": {"annotations": {"grafana_folder": "LLM"}, "namespace": "grafana"}}
    (_, found) = of_kind(template(values, chart=chart), "ConfigMap")
    assert found["metadata"]["name"] == "kvpressure-engine-view"
    assert found["metadata"]["namespace"] == "grafana"
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(found["data"]["kvpressure-Engine_view.json"]) == json.loads(board)
    assert list(problems(found)) == []


def test_the_dashboards_are_the_generated_ones_word_for_word() -> None:
    boards = {
        name: text for found in of_kind(rendered("defaults"), "ConfigMap") for name, text in found["data"].items()
    }
    made = {path.name: path.read_text() for path in (built.bundle() / "grafana/dashboards").iterdir()}
    assert len(made) == 4
    assert {name: boards.get(name, "").strip() for name in made} == {name: text.strip() for name, text in made.items()}


@pytest.mark.parametrize(
    ("what", "values"), [("dashboards", {}), ("rules", OPERATOR | {"dashboards": {"enabled": False}})]
)
def test_a_chart_whose_files_were_not_built_says_what_to_type(
    tmp_path: Path, what: str, values: dict[str, Any]
) -> None:
    chart = tmp_path / "kvpressure"
    shutil.copytree(built.chart(), chart, ignore=shutil.ignore_patterns("files"))
    result = try_template(merged(MINIMAL, values), chart=chart)
    assert result.returncode != 0
    assert f"this checkout's chart has no {what} yet: run `make chart` first" in result.stderr
    assert of_kind(template({"dashboards": {"enabled": False}}, chart=chart), "DaemonSet")


def test_what_was_built_before_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "files/dashboards").mkdir(parents=True)
    (tmp_path / "files/dashboards/of-yesterday.json").write_text("{}")
    build(tmp_path)
    there = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert there == set(chart_files())
    folders = {"files", "files/dashboards", "files/rules/15s", "files/rules/30s", "files/rules/60s"}
    assert {path.rpartition("/")[0] for path in there} == folders


def test_dashboards_fit_into_a_config_map() -> None:
    for found in of_kind(rendered("defaults"), "ConfigMap"):
        assert len(json.dumps(found)) < 1_000_000


def test_a_packaged_chart_renders_the_same(tmp_path: Path) -> None:
    assert helm("package", str(built.chart()), "--destination", str(tmp_path)).returncode == 0
    (archive,) = tmp_path.glob("*.tgz")
    assert template(OPERATOR, chart=archive) == rendered("operator")


# --- the network


def test_the_network_policy_lets_prometheus_in_and_only_engines_and_the_api_server_out() -> None:
    (found,) = of_kind(rendered("network policy"), "NetworkPolicy")
    spec = found["spec"]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    assert spec["ingress"] == [
        {
            "from": values_of("network policy")["networkPolicy"]["from"],
            "ports": [{"port": "metrics", "protocol": "TCP"}],
        }
    ]
    engines, api = spec["egress"]
    assert engines["ports"] == [{"port": 1, "endPort": 65535, "protocol": "TCP"}]
    assert [port["port"] for port in api["ports"]] == [443, 6443]


def test_egress_is_only_as_wide_as_the_switches_need() -> None:
    (closed,) = of_kind(rendered("network policy without an API server"), "NetworkPolicy")
    assert len(closed["spec"]["egress"]) == 1
    (full,) = of_kind(rendered("everything"), "NetworkPolicy")
    ports = [[port["port"] for port in rule["ports"]] for rule in full["spec"]["egress"]]
    assert ports == [[8000, 8080], [443, 6443], [53, 53]]


# --- words for people


def notes(values: dict[str, Any], folder: Path) -> str:
    """NOTES.txt as people see it; helm itself shows it only when it can reach a cluster."""
    chart = folder / "kvpressure"
    if not chart.exists():
        shutil.copytree(built.chart(), chart)
        text = (chart / "templates/NOTES.txt").read_text()
        (chart / "templates/_notes.tpl").write_text('{{- define "notes" -}}\n' + text + "\n{{- end -}}")
        (chart / "templates/notes.yaml").write_text('kind: Notes\ntext: {{ include "notes" . | toJson }}\n')
    (found,) = of_kind(template(values, chart=chart), "Notes")
    return str(found["text"])


def test_the_notes_say_what_to_look_at_first(tmp_path: Path) -> None:
    text = notes({}, tmp_path)
    assert "port-forward ds/kvpressure 10405:10405" in text
    assert "podResources.enabled` is false" in text
    (upgrade,) = re.findall(r"--reuse-values --set (\S+)$", text, re.MULTILINE)
    assert upgrade == "podResources.enabled=true,podSecurity.runAsRoot=true"
    assert text.index("Type this next") < text.index("port-forward") < text.index("look at these in order")
    assert "No PodMonitor was made" in text
    assert "KVPressureThresholdsDiffer" not in text
    assert "Inhibitions reach" not in text
    assert "KVPressureThresholdsDiffer" in notes({"thresholds": {"kv_saturated_min_ratio": 0.95}}, tmp_path)
    inhibition = {"inhibition": {"enabled": True, "namespace": "llm"}}
    assert "Inhibitions reach alerts whose label `namespace` is llm" in notes(inhibition, tmp_path)
    text = notes(EVERYTHING | {"web": {"tls": True}}, tmp_path)
    assert "curl -sk https://localhost:10405/targets" in text
    assert "permission denied" in text
    assert "set `podMonitor.labels`" in text

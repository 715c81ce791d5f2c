"""The Dockerfile, the systemd unit and the autoscaling examples, as far as they can be checked without running them."""

import re
import subprocess
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml
from deploy.render import ROOT

from kvpressure import __version__
from kvpressure.exposition.families import FAMILIES
from kvpressure.web.connections import MAX_CONNECTIONS, max_connections
from tests.support.chart import problems
from tests.support.rules import recorded, selectors
from tests.support.tools import need

DOCKER = ROOT / "deploy" / "docker"
SYSTEMD = ROOT / "deploy" / "systemd"
SCALING = ROOT / "deploy" / "autoscaling"

# --- docker


def steps() -> list[tuple[str, str]]:
    """Instructions of the Dockerfile with their words, continued lines joined."""
    text = re.sub(r"^#.*\n", "", (DOCKER / "Dockerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines if line.strip()]


def final_stage() -> list[tuple[str, str]]:
    found = steps()
    last = max(index for index, (name, _) in enumerate(found) if name == "FROM")
    return found[last:]


def test_the_image_has_two_stages_on_one_base_that_is_pinned() -> None:
    found = steps()
    assert [words for name, words in found if name == "FROM"] == ["${PYTHON_IMAGE} AS build", "${PYTHON_IMAGE}"]
    assert re.fullmatch(r"PYTHON_IMAGE=python:3\.1[123][\w.-]*-slim-\w+", found[0][1])


def test_the_image_runs_as_a_number_and_needs_no_shell() -> None:
    stage = dict(final_stage())
    assert stage["USER"] == "65532:65532"
    assert "RUN" not in stage
    assert stage["ENTRYPOINT"].startswith("[")
    assert stage["CMD"] == '["run"]'
    assert "/-/healthy" in stage["HEALTHCHECK"]
    assert re.search(r'CMD \["/opt/kvpressure/bin/python", "-c"', stage["HEALTHCHECK"])
    assert "curl" not in str(stage)


def test_the_image_says_what_it_is_based_on_and_has_nothing_to_build_with() -> None:
    stage = final_stage()
    assert ("ARG", "PYTHON_IMAGE") in stage
    assert "org.opencontainers.image.base.name=${PYTHON_IMAGE}" in dict(stage)["LABEL"]
    assert [words for name, words in stage if name == "COPY"] == ["--from=build /opt/kvpressure /opt/kvpressure"]
    runs = [words for name, words in steps() if name == "RUN"]
    (venv,) = (run for run in runs if "venv --without-pip /opt/kvpressure" in run)
    assert not [run for run in runs if "/opt/kvpressure/bin/pip" in run]
    assert "/build/bin/pip --python /opt/kvpressure/bin/python install" in venv


def test_the_build_knows_neither_pythons_version_nor_where_it_lies() -> None:
    """Debian's has no `python`, and lies under /usr; the official image's lies under /usr/local."""
    text = "".join(f"{name} {words}\n" for name, words in steps() if name != "ARG")
    assert re.findall(r"python3\.\d+|site-packages|dist-packages|/usr/\S*", text) == []
    assert re.findall(r"(?<![\w/.])python -m", text) == []


def test_the_page_says_how_the_health_check_is_kept() -> None:
    assert "--format docker" in (DOCKER / "Dockerfile").read_text()
    assert "--format docker" in (ROOT / "docs" / "deploy.md").read_text()


def test_the_health_check_is_python_that_compiles() -> None:
    words = re.search(r"CMD (\[.*\])", dict(final_stage())["HEALTHCHECK"])
    assert words
    compile(yaml.safe_load(words[1])[2], "healthcheck", "exec")


def test_everything_is_installed_with_hashes_and_compiled() -> None:
    runs = [words for name, words in steps() if name == "RUN"]
    installs = [run for run in runs if " install " in run and "--no-index" not in run]
    assert len(installs) == 3
    assert all("--require-hashes" in run for run in installs)
    assert "compileall" in runs[-1]
    assert "unchecked-hash" in runs[-1]


@pytest.mark.parametrize("package", ["setuptools", "grafana-foundation-sdk", "pyyaml", "amdsmi"])
def test_the_build_takes_its_own_pins_from_dev_txt_with_their_hashes(package: str) -> None:
    scripts = [
        found for name, words in steps() if name == "RUN" for found in re.findall(r"sed (-nE?) '([^']+)'", words)
    ]
    ((option, script),) = (one for one in scripts if re.search(rf"\b{package}\b", one[1]))
    words = ["sed", option, script, str(ROOT / "requirements/dev.txt")]
    out = subprocess.run(words, capture_output=True, text=True, check=True, timeout=300).stdout
    pin = r"\S+==\S+ \\\n(?: +--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+"
    assert re.fullmatch(f"({pin})+", out)
    assert re.search(rf"^{package}==", out, re.MULTILINE)


def test_what_is_copied_is_there_and_reaches_the_build() -> None:
    copied = [
        word for name, words in steps() if name == "COPY" and "--from" not in words for word in words.split()[:-1]
    ]
    links = [path.resolve().relative_to(ROOT) for path in (ROOT / "exporter").rglob("*") if path.is_symlink()]
    assert links
    assert all(any(link.is_relative_to(name) for name in copied) for link in links)
    assert {"pyproject.toml", "README.md", "LICENSE", "exporter/", "requirements/"} <= set(copied)
    ignore = (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
    allowed = [line.removeprefix("!") for line in ignore if line.startswith("!")]
    assert "*" in ignore
    assert all((ROOT / name).exists() for name in copied)
    assert all(any(line.startswith(name.rstrip("/")) for line in allowed) for name in copied)


# --- systemd


def unit() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in (SYSTEMD / "kvpressure.service").read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def test_the_unit_is_hardened_and_keeps_the_gpus() -> None:
    found = unit()
    for key in ("NoNewPrivileges", "ProtectHome", "PrivateTmp", "ProtectKernelModules", "RestrictSUIDSGID"):
        assert found[key] == ["yes"], key
    assert found["CapabilityBoundingSet"] == [""]
    assert found["ProtectSystem"] == ["strict"]
    assert found["User"] == ["kvpressure"]
    assert "PrivateDevices" not in found
    assert found["DevicePolicy"] == ["closed"]
    assert {"char-195 rw", "char-226 rw"} <= set(found["DeviceAllow"])


def test_the_unit_has_descriptors_for_every_connection_and_as_many_for_the_rest() -> None:
    [limit] = unit()["LimitNOFILE"]
    assert int(limit) >= 2 * MAX_CONNECTIONS
    assert max_connections(int(limit)) == MAX_CONNECTIONS


def test_systemd_takes_the_unit_and_rates_its_exposure_as_low(tmp_path: Path) -> None:
    analyze = need("systemd-analyze", "systemd")
    copy = tmp_path / "kvpressure.service"
    text = (SYSTEMD / "kvpressure.service").read_text()
    copy.write_text(re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", text, flags=re.MULTILINE))
    result = subprocess.run([analyze, "verify", str(copy)], capture_output=True, text=True, check=False, timeout=300)
    assert (result.returncode, result.stderr) == (0, "")
    words = [analyze, "security", "--offline=yes", "--threshold=20", "--no-pager", str(copy)]
    result = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert result.returncode == 0, result.stdout[-300:]


def test_a_misspelt_directive_would_be_noticed(tmp_path: Path) -> None:
    (tmp_path / "kvpressure.service").write_text("[Service]\nType=exec\nExecStart=/bin/true\nNoNewPrivilege=yes\n")
    words = [need("systemd-analyze", "systemd"), "verify", str(tmp_path / "kvpressure.service")]
    result = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
    assert "NoNewPrivilege" in result.stderr


def test_the_unit_starts_the_command_with_the_options_that_it_has() -> None:
    (start,) = unit()["ExecStart"]
    assert start == "/opt/kvpressure/bin/kvpressure run --config.file=/etc/kvpressure/kvpressure.yaml"
    assert unit()["RestartPreventExitStatus"] == ["2"]
    assert re.search(r"^u +kvpressure +-", (SYSTEMD / "kvpressure.sysusers.conf").read_text(), re.MULTILINE)


# --- autoscaling


def read(name: str) -> Any:
    return yaml.safe_load((SCALING / name).read_text())


def queries() -> dict[str, tuple[str, float]]:
    """Query and target of each trigger, by file and name."""
    found = {}
    for trigger in read("keda-scaledobject.yaml")["spec"]["triggers"]:
        metadata = trigger["metadata"]
        assert trigger["metricType"] == "Value"
        assert metadata["ignoreNullValues"] == "false"
        found[f"keda {trigger['name']}"] = metadata["query"], float(metadata["threshold"])
    targets = {
        metric["external"]["metric"]["name"]: metric["external"]["target"]
        for metric in read("hpa.yaml")["spec"]["metrics"]
    }
    for rule in read("prometheus-adapter-values.yaml")["rules"]["external"]:
        target = targets.pop(rule["name"]["as"])
        assert target["type"] == "Value"
        query = rule["metricsQuery"].replace("<<.LabelMatchers>>", 'namespace="llm",model_name="my-model"')
        found[rule["name"]["as"]] = query, int(target["value"].removesuffix("m")) / 1000
    assert not targets
    return found


def test_queries_of_the_autoscalers_ask_for_series_and_labels_that_exist() -> None:
    known = {family.name: {*family.scope.labels, *family.labels} for family in FAMILIES}
    for name, (query, _) in queries().items():
        (selector,) = selectors(query)
        asked = {matcher.name for matcher in selector.matchers.matchers}
        assert asked <= known[selector.name] | {"job"}, name


def test_ratios_are_averaged_over_pods_after_the_worst_rank_of_each() -> None:
    for query, _ in queries().values():
        outer = promql.parse(query)
        assert isinstance(outer, promql.AggregateExpr)
        assert isinstance(outer.expr, promql.AggregateExpr)
        assert (str(outer.op), str(outer.expr.op)) == ("avg", "max")
        assert "pod" in outer.expr.modifier.labels


def test_both_ways_to_scale_have_the_same_targets_and_the_same_pace() -> None:
    targets = {selectors(query)[0].name: set[float]() for query, _ in queries().values()}
    for query, target in queries().values():
        targets[selectors(query)[0].name].add(target)
    assert targets == {"kvpressure_score_ratio": {0.5}, "kvpressure_kv_cache_usage_ratio": {0.6}}
    keda = read("keda-scaledobject.yaml")["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert keda == read("hpa.yaml")["spec"]["behavior"]
    assert keda["scaleDown"]["stabilizationWindowSeconds"] > keda["scaleUp"]["stabilizationWindowSeconds"]


def test_the_autoscaler_is_one_that_the_api_server_takes_whole() -> None:
    assert list(problems(read("hpa.yaml"))) == []
    assert list(problems(read("desired-replicas/hpa.yaml"))) == []


def test_both_ways_to_the_desired_replicas_ask_for_the_recorded_number_and_keep_the_same_pace() -> None:
    hpa, keda = (read(f"desired-replicas/{name}.yaml")["spec"] for name in ("hpa", "keda-scaledobject"))
    (trigger,), (metric,) = keda["triggers"], hpa["metrics"]
    (rule,) = read("desired-replicas/prometheus-adapter-values.yaml")["rules"]["external"]
    assert rule["name"]["as"] == metric["external"]["metric"]["name"] == "kvpressure_desired_replicas"
    for query in (trigger["metadata"]["query"], rule["metricsQuery"].replace("<<.LabelMatchers>>", 'namespace="llm"')):
        (selector,) = selectors(query)
        assert selector.name in recorded()
    assert metric["external"]["target"] == {"type": "AverageValue", "averageValue": trigger["metadata"]["threshold"]}
    assert (trigger["metricType"], trigger["metadata"]["ignoreNullValues"]) == ("AverageValue", "false")
    assert keda["advanced"]["horizontalPodAutoscalerConfig"]["behavior"] == hpa["behavior"]
    assert (keda["minReplicaCount"], keda["maxReplicaCount"]) == (hpa["minReplicas"], hpa["maxReplicas"])


def test_the_readme_of_the_chart_installs_this_version() -> None:
    assert f"kvpressure:{__version__}" in (ROOT / "deploy/helm/README.md.tmpl").read_text()

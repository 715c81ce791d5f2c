"""What is generated under deploy/ is what its sources say; deploy/manifests is sound also where there is no helm."""

import hashlib
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from deploy.chart_files import CHART, ROOT
from deploy.release.dist import sources
from deploy.render import MANIFESTS

from deploy import render
from kvpressure import __version__
from tests.support import built
from tests.support.chart import Object, default_values, need_helm, operator_schemas, problems

STALE = "is stale: run `make deploy` and look at the diff"
FOLDERS = (".", "prometheus-operator", "network-policy")
APPLIED_BYTES = 262144
"""What `kubectl apply` can keep in its annotation of the last applied object."""


def test_no_file_is_in_git_twice_and_none_is_filled_in_from_a_template() -> None:
    paths = {name: ROOT / name for name in sources(ROOT)}
    contents = {name: path.read_bytes() for name, path in paths.items() if path.is_file() and not path.is_symlink()}
    seen = Counter(hashlib.sha256(content).digest() for content in contents.values() if content)
    assert [name for name, content in contents.items() if seen[hashlib.sha256(content).digest()] > 1] == []
    made = {path.read_bytes() for path in built.bundle().rglob("*") if path.is_file()}
    # These have nothing to fill in: they are what is copied.
    copied = ("docs/runbooks/", "deploy/alertmanager/")
    kept = [name for name, content in contents.items() if content in made and not name.startswith(copied)]
    assert kept == []


def test_the_charts_readme_is_what_values_yaml_says() -> None:
    assert (CHART / "README.md").read_text() == render.readme(), f"README.md of the chart {STALE}"
    assert (CHART / "values.schema.json").read_text() == render.schema(), f"values.schema.json of the chart {STALE}"


def test_the_manifests_are_what_the_chart_renders() -> None:
    for path, text in render.manifests(need_helm()).items():
        assert path.read_text() == text, f"{path.relative_to(ROOT)} {STALE}"


# --- values.yaml, its schema and its comments


def test_every_value_is_described() -> None:
    documented = list(render.values_documented())
    assert len(documented) > 60
    assert [key for key, _, _, text in documented if not text.rstrip().endswith(".")] == []


def leaves(values: Object, known: set[str], prefix: str = "") -> set[str]:
    """Dotted keys, down to those that are documented."""
    found: set[str] = set()
    for key, value in values.items():
        name = f"{prefix}{key}"
        found |= {name} if name in known or not isinstance(value, dict) else leaves(value, known, f"{name}.")
    return found


def test_the_readme_lists_every_value_and_none_other() -> None:
    known = {key for key, _, _, _ in render.values_documented()}
    assert leaves(default_values(), known) == known


def schema() -> Any:
    return yaml.safe_load((CHART / "values.schema.json").read_text())


def declared(part: Any, prefix: str = "") -> set[str]:
    """Dotted keys that a schema allows, down to those whose content is free."""
    found: set[str] = set()
    for key, below in part["properties"].items():
        nested = isinstance(below, dict) and "properties" in below
        found |= declared(below, f"{prefix}{key}.") if nested else {f"{prefix}{key}"}
    return found


def refused() -> set[str]:
    """Keys of other charts, which are in the schema so that rendering can say what to use."""
    return set(re.findall(r"^([\w.]+): ", (CHART / "templates" / "_refused.tpl").read_text(), re.MULTILINE))


def test_the_schema_knows_exactly_the_values_that_there_are() -> None:
    allowed = declared(schema()) - refused()
    known = {key for key, _, _, _ in render.values_documented()}
    inner = {key.rsplit(".", 1)[0] for key in allowed - known} & known
    assert {key for key in allowed - known if key.rsplit(".", 1)[0] not in inner} == set()
    assert known - allowed == inner


def test_the_defaults_meet_the_schema_and_no_object_of_ours_is_open() -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.Draft202012Validator(schema()).validate(default_values())

    def closed(part: Any) -> bool:
        below = [one for one in part.get("properties", {}).values() if isinstance(one, dict)]
        return all(map(closed, below)) and ("properties" not in part or part["additionalProperties"] is False)

    whole = {key: part for key, part in schema().items() if key != "$defs"}
    del whole["properties"]["global"]  # a parent chart hands down whatever it has
    assert closed(whole)


def test_chart_and_exporter_have_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__
    kustomization = yaml.safe_load((MANIFESTS / "kustomization.yaml").read_text())
    assert kustomization["images"][0]["newTag"] == __version__


# --- deploy/manifests, without helm


def kustomized(folder: Path) -> list[Object]:
    """The objects that a kustomization leads to, read without kustomize."""
    content = yaml.safe_load((folder / "kustomization.yaml").read_text())
    found: list[Object] = []
    for name in content.get("resources", []):
        found += [one for one in yaml.safe_load_all((folder / name).read_text()) if one]
    return found


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_manifests_are_objects_that_the_api_server_takes_whole(folder: str) -> None:
    objects = kustomized(MANIFESTS / folder)
    assert objects
    assert [problem for found in objects for problem in problems(found)] == []
    assert max(len(json.dumps(found)) for found in objects) < APPLIED_BYTES


def test_every_manifest_is_applied_by_a_kustomization() -> None:
    named = {
        (path.parent / name).resolve()
        for path in MANIFESTS.rglob("kustomization.yaml")
        for name in yaml.safe_load(path.read_text())["resources"]
    }
    assert {path.resolve() for path in MANIFESTS.rglob("*.yaml") if path.name != "kustomization.yaml"} <= named


def test_a_kustomization_reads_files_of_its_own_folder_only() -> None:
    # kubectl refuses files above it.
    for path in MANIFESTS.rglob("kustomization.yaml"):
        assert not [name for name in yaml.safe_load(path.read_text())["resources"] if "/" in name], path


def test_what_generate_writes_for_kubernetes_are_objects_that_the_api_server_takes_whole() -> None:
    paths = sorted((built.bundle() / "kubernetes").iterdir())
    objects = [yaml.safe_load(path.read_text()) for path in paths]
    assert {found["kind"] for found in objects} == {"AlertmanagerConfig", "PrometheusRule", "ConfigMap"}
    checked = [found for found in objects if found["kind"] != "AlertmanagerConfig"]  # its definition is not at hand
    assert [problem for found in checked for problem in problems(found)] == []
    assert max(len(json.dumps(found)) for found in objects) < APPLIED_BYTES


def test_the_manifests_carry_no_trace_of_helm_and_one_namespace_that_is_made_first() -> None:
    objects = kustomized(MANIFESTS)
    assert objects[0]["kind"] == "Namespace"
    assert objects[0]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    for found in objects:
        assert found["metadata"].get("namespace", "kvpressure") == "kvpressure"
        assert not {"helm.sh/chart", "app.kubernetes.io/managed-by"} & found["metadata"].get("labels", {}).keys()


def test_the_pods_of_the_manifests_meet_the_standard_that_their_namespace_enforces() -> None:
    (workload,) = (found for found in kustomized(MANIFESTS) if found["kind"] == "DaemonSet")
    pod = workload["spec"]["template"]["spec"]
    context = pod["containers"][0]["securityContext"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert (context["allowPrivilegeEscalation"], context["privileged"]) == (False, False)
    assert not [volume for volume in pod["volumes"] if "hostPath" in volume]
    assert not pod["hostPID"]
    assert not pod["hostNetwork"]


def test_the_manifests_image_is_the_one_that_the_kustomization_replaces() -> None:
    (workload,) = (found for found in kustomized(MANIFESTS) if found["kind"] == "DaemonSet")
    image = workload["spec"]["template"]["spec"]["containers"][0]["image"]
    assert image.split(":")[0] == yaml.safe_load((MANIFESTS / "kustomization.yaml").read_text())["images"][0]["name"]


def test_the_schemas_of_the_operator_are_those_of_both_kinds() -> None:
    assert set(operator_schemas()) == {"PodMonitor", "PrometheusRule"}

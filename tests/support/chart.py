"""The chart, rendered by a real helm; what comes out, judged by Kubernetes' and the operator's schemas."""

import functools
import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from deploy.chart_files import CHART
from deploy.render import KUBERNETES, find_helm

from tests.support import built
from tests.support.tools import FIXTURES, missing

Object = dict[str, Any]

MINIMAL: Object = {"image": {"repository": "registry.example.com/kvpressure"}}
OPERATOR: Object = {"podMonitor": {"enabled": True}, "prometheusRule": {"enabled": True}}
EVERYTHING: Object = {
    **OPERATOR,
    "image": {
        "repository": "registry.example.com:5000/team/kvpressure",
        "digest": "sha256:" + "a" * 64,
        "pullSecrets": ["r"],
    },
    "kubernetes": {"labelSelector": "app=vllm", "portName": "http", "port": 8080, "path": "/prometheus"},
    "podResources": {"enabled": True, "resourceNames": ["nvidia.com/gpu.shared"]},
    "logs": {"enabled": True, "linkDirectories": ["/var/lib/docker/containers"], "maxBytesPerSecond": 65536},
    "host": {"cgroups": True},
    "nvidia": {"visibleDevices": "volume-mounts"},
    "amd": {"enabled": True, "groups": [44, 109]},
    "runtimeClassName": "nvidia",
    "config": {"log": {"level": "debug"}, "poll": {"interval_seconds": 2}},
    "podSecurity": {"supplementalGroups": [1234], "seLinuxOptions": {"type": "container_logreader_t"}},
    "serviceAccount": {"annotations": {"a": "b"}, "labels": {"g": "h"}},
    "nodeSelector": {"pool": "gpu"},
    "priorityClassName": "monitoring",
    "podLabels": {"team": "ml"},
    "podAnnotations": {"c": "d"},
    "commonLabels": {"owner": "me"},
    "commonAnnotations": {"e": "f"},
    "imagePullSecrets": [{"name": "s"}, "t"],
    "global": {"imagePullSecrets": ["r", {"name": "u"}]},
    "podSecurityContext": {"fsGroup": 1234, "runAsUser": 4321},
    "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
    "dnsPolicy": "None",
    "dnsConfig": {"nameservers": ["192.0.2.53"]},
    "livenessProbe": {"failureThreshold": 10},
    "extraArgs": ["--log.level=debug"],
    "extraEnvFrom": [{"secretRef": {"name": "engine-keys"}}],
    "extraEnv": [{"name": "KVPRESSURE_LOG__FORMAT", "value": "json"}],
    "extraVolumes": [{"name": "token", "secret": {"secretName": "engine-token"}}],
    "extraVolumeMounts": [{"name": "token", "mountPath": "/run/secrets/engine"}],
    "networkPolicy": {"enabled": True, "enginePorts": [8000, 8080], "dns": True},
}
CASES: dict[str, Object] = {
    "defaults": {},
    "operator": OPERATOR,
    "everything": EVERYTHING,
    "thresholds": {"thresholds": {"kv_saturated_min_ratio": "0.95"}},
    "another release name": {"fullnameOverride": "gpu-watch", "nameOverride": "watch"},
    "no kubernetes": {"kubernetes": {"enabled": False}},
    "namespaces": {"kubernetes": {"namespaces": ["llm", "chat"]}},
    "namespaces without nodes": {"kubernetes": {"namespaces": ["llm"], "nodeConditions": False}},
    "namespace default": {"kubernetes": {"namespaces": ["default", "llm"]}},
    "no events in namespaces": {"kubernetes": {"namespaces": ["llm"], "events": False}},
    "no events": {"kubernetes": {"events": False}},
    "no events, no nodes": {"kubernetes": {"events": False, "nodeConditions": False}},
    "config maps": {"kubernetes": {"configMaps": {"enabled": True}}},
    "config maps of namespaces": {"kubernetes": {"configMaps": {"enabled": True, "namespaces": ["llm", "chat"]}}},
    "config maps where engines are": {"kubernetes": {"namespaces": ["llm", "chat"], "configMaps": {"enabled": True}}},
    "config maps of one of them": {
        "kubernetes": {"namespaces": ["llm", "chat"], "configMaps": {"enabled": True, "namespaces": ["llm"]}}
    },
    "config maps off": {"kubernetes": {"configMaps": {"enabled": False, "namespaces": ["llm"]}}},
    "pod resources": {"podResources": {"enabled": True}},
    "pod resources as root": {"podResources": {"enabled": True}, "podSecurity": {"runAsRoot": True}},
    "logs": {"logs": {"enabled": True}},
    "cgroups": {"host": {"cgroups": True}},
    "no host": {"host": {"enabled": False, "cgroups": True}},
    "amd": {"amd": {"enabled": True}, "nvidia": {"visibleDevices": "none"}},
    "amd through its runtime": {"amd": {"enabled": True, "devices": [], "rocmPath": ""}, "runtimeClassName": "amd"},
    "devices as mounts": {"nvidia": {"visibleDevices": "volume-mounts"}},
    "own account": {"serviceAccount": {"create": False, "name": "mine"}, "rbac": {"create": False}},
    "tls": {**OPERATOR, "web": {"configSecret": "web", "tls": True, "port": 9443}},
    "other affinity": {"affinity": {"nodeAffinity": {}}, "tolerations": []},
    "any node": {"gpuNodeLabels": []},
    "on delete": {"updateStrategy": {"type": "OnDelete"}},
    "one at a time": {"updateStrategy": {"maxUnavailable": 1}},
    "as kubernetes writes it": {"updateStrategy": {"rollingUpdate": {"maxSurge": 1}}},
    "openshift": {"podSecurity": {"user": None, "group": None}},
    "another namespace": {**OPERATOR, "namespaceOverride": "monitoring"},
    "rules elsewhere": {
        "prometheusRule": {"enabled": True, "recording": False, "namespace": "m", "labels": {"release": "p"}}
    },
    "network policy": {"networkPolicy": {"enabled": True}},
    "network policy without an API server": {"networkPolicy": {"enabled": True}, "kubernetes": {"enabled": False}},
    "no dashboards": {"dashboards": {"enabled": False}},
}
each_case = pytest.mark.parametrize("case", CASES)


def need_helm() -> str:
    """Path of helm. Without it the test is skipped, or fails when CI=true."""
    helm = find_helm()
    if helm is None:
        missing("helm is not there; `make tools-helm` builds it")
    return helm


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> Object:
    """Values as helm merges them: maps key by key, all else replaced."""
    both = {
        key: merged(base[key], value)
        for key, value in over.items()
        if isinstance(value, dict) and isinstance(base.get(key), dict)
    }
    return {**base, **over, **both}


def default_values() -> Object:
    return yaml.safe_load((CHART / "values.yaml").read_text())


def values_of(case: str) -> Object:
    return merged(merged(default_values(), MINIMAL), CASES[case])


def helm(*words: str, values: Mapping[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    command = [need_helm(), *words, *(() if values is None else ("--values", "-"))]
    return subprocess.run(
        command, input=json.dumps(values or {}), capture_output=True, text=True, check=False, timeout=300
    )


def try_template(values: Mapping[str, Any], *flags: str, chart: Path | None = None) -> subprocess.CompletedProcess[str]:
    """What helm makes of the chart as `make chart` builds it, or of another one."""
    where = ("--kube-version", KUBERNETES, "--namespace", "watch")
    return helm("template", "kvpressure", str(chart or built.chart()), *where, *flags, values=values)


def template(values: Mapping[str, Any], *flags: str, chart: Path | None = None) -> list[Object]:
    result = try_template(merged(MINIMAL, values), *flags, chart=chart)
    assert (result.returncode, result.stderr) == (0, "")
    return [found for found in yaml.safe_load_all(result.stdout) if found]


@functools.cache
def rendered(case: str) -> list[Object]:
    return template(CASES[case])


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [found for found in objects if found["kind"] == kind]


def daemonset(case: str) -> Object:
    (found,) = of_kind(rendered(case), "DaemonSet")
    return found


def pod_of(case: str) -> Object:
    return daemonset(case)["spec"]["template"]["spec"]


def container_of(case: str) -> Object:
    (found,) = pod_of(case)["containers"]
    return found


def settings_of(case: str) -> Object:
    (found,) = (one for one in of_kind(rendered(case), "ConfigMap") if "kvpressure.yaml" in one["data"])
    return yaml.safe_load(found["data"]["kvpressure.yaml"])


def strict(schema: Any) -> Any:
    """An OpenAPI schema of a CRD, so that fields it does not know are errors, as the API server prunes them."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: strict(part) for key, part in schema.items() if key != "description"}
    is_open = "additionalProperties" in schema or schema.get("x-kubernetes-preserve-unknown-fields")
    if "properties" in schema and schema.get("type") == "object" and not is_open:
        closed["additionalProperties"] = False
    return closed


@functools.cache
def operator_schemas() -> dict[str, jsonschema.Draft202012Validator]:
    """Validators of the Prometheus operator's kinds."""
    found = {}
    for path in (FIXTURES / "schemas").glob("monitoring.coreos.com_*.yaml"):
        spec = yaml.safe_load(path.read_text())["spec"]
        (version,) = (one for one in spec["versions"] if one["name"] == "v1")
        schema = strict(version["schema"]["openAPIV3Schema"])
        schema["properties"]["metadata"] = {"type": "object"}
        found[spec["names"]["kind"]] = jsonschema.Draft202012Validator(schema)
    return found


def problems(found: Object, version: str = "1.34") -> Iterator[str]:
    """What of an object the API server would refuse or drop."""
    if found["apiVersion"].startswith("monitoring.coreos.com/"):
        yield from (error.message for error in operator_schemas()[found["kind"]].iter_errors(found))
        return
    try:
        kubernetes_validate.validate(found, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        yield f"{found['kind']} {found['metadata']['name']}: {error.message}"

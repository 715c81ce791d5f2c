"""An engine whose configuration file comes from a ConfigMap, and that ConfigMap."""

from tests.stubs.kube_api import Object


def mounts_config(pod: Object, config_map: str = "vllm-config", path: str = "/etc/vllm/config.yaml") -> Object:
    """The pod with its engine started with `--config`, the file of which comes from a ConfigMap."""
    container = pod["spec"]["containers"][0]
    container["args"] = [*container["args"], "--config", path]
    container["volumeMounts"] = [{"name": "config", "mountPath": path.rpartition("/")[0]}]
    pod["spec"]["volumes"] = [{"name": "config", "configMap": {"name": config_map}}]
    return pod


def config_map(
    text: str, changed: str = "2025-11-03T07:00:00Z", name: str = "vllm-config", namespace: str = "llm"
) -> Object:
    """A ConfigMap whose data changed last at that time, with the fields that an API server adds."""
    written = {"manager": "helm", "operation": "Update", "time": changed, "fieldsV1": {"f:data": {"f:config.yaml": {}}}}
    labelled = {"manager": "kubectl", "time": "2026-01-01T00:00:00Z", "fieldsV1": {"f:metadata": {"f:labels": {}}}}
    meta = {"name": name, "namespace": namespace, "creationTimestamp": "2025-11-03T06:00:00Z"}
    return {"metadata": {**meta, "managedFields": [written, labelled]}, "data": {"config.yaml": text}}

"""What the pods may do, for every combination of switches: as little as each switch needs."""

from typing import Any

import pytest

from kvpressure.kubernetes.watch import NODE_EVENTS_NAMESPACE
from tests.support.chart import CASES, container_of, daemonset, each_case, of_kind, pod_of, rendered, values_of

PLAIN_VOLUMES = {"configMap", "secret", "emptyDir", "projected", "downwardAPI"}
RESTRICTED = [
    case
    for case in CASES
    if case
    not in (
        "everything",
        "pod resources",
        "pod resources as root",
        "logs",
        "cgroups",
        "amd",
        "devices as mounts",
    )
]


@each_case
def test_no_pod_is_privileged_or_sees_the_hosts_namespaces(case: str) -> None:
    pod, container = pod_of(case), container_of(case)
    assert (pod["hostPID"], pod["hostNetwork"], pod["hostIPC"]) == (False, False, False)
    assert "hostPort" not in str(container["ports"])
    assert container["securityContext"]["privileged"] is False
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert "initContainers" not in pod


@each_case
def test_only_the_switch_for_it_makes_the_pod_root(case: str) -> None:
    context = pod_of(case)["securityContext"]
    values = values_of(case)
    root, user = values["podSecurity"]["runAsRoot"], values["podSecurity"]["user"]
    assert context["runAsNonRoot"] is not root
    # null: the platform chooses one, and runAsNonRoot holds it to that.
    assert context.get("runAsUser") == (0 if root else values["podSecurityContext"].get("runAsUser", user))
    assert "runAsUser" not in container_of(case)["securityContext"]


def host_paths(case: str) -> dict[str, str]:
    return {v["hostPath"]["path"]: v["name"] for v in pod_of(case)["volumes"] if "hostPath" in v}


def expected_host_paths(values: dict[str, Any]) -> set[str]:
    found: set[str] = set()
    if values["podResources"]["enabled"]:
        found.add("/var/lib/kubelet/pod-resources")
    if values["logs"]["enabled"]:
        found |= {"/var/log/pods", *values["logs"]["linkDirectories"]}
    if values["host"]["enabled"] and values["host"]["cgroups"]:
        found.add("/sys/fs/cgroup")
    if values["nvidia"]["visibleDevices"] == "volume-mounts":
        found.add("/dev/null")
    if values["amd"]["enabled"]:
        found |= {*values["amd"]["devices"], *filter(None, [values["amd"]["rocmPath"]])}
    return found


@each_case
def test_paths_of_the_node_are_mounted_only_where_a_switch_asks_and_read_only(case: str) -> None:
    paths = host_paths(case)
    assert paths.keys() == expected_host_paths(values_of(case))
    writable = {mount["name"] for mount in container_of(case)["volumeMounts"] if not mount.get("readOnly")}
    assert {path for path, name in paths.items() if name in writable} <= {"/dev/kfd", "/dev/dri"}
    kinds = {key for volume in pod_of(case)["volumes"] for key in volume if key != "name"}
    assert kinds <= PLAIN_VOLUMES | {"hostPath"}


@pytest.mark.parametrize("case", RESTRICTED)
def test_without_host_paths_the_pods_meet_the_standard_restricted(case: str) -> None:
    assert host_paths(case) == {}
    assert pod_of(case)["securityContext"]["runAsNonRoot"] is True


@each_case
def test_further_groups_are_those_of_the_switches(case: str) -> None:
    values = values_of(case)
    wanted = [*values["podSecurity"]["supplementalGroups"]]
    wanted += [values["logs"]["group"]] if values["logs"]["enabled"] else []
    wanted += values["amd"]["groups"] if values["amd"]["enabled"] else []
    assert pod_of(case)["securityContext"].get("supplementalGroups", []) == wanted


def rules(case: str, kind: str) -> set[tuple[str, str, str, str]]:
    """Every right: namespace ("" for all), group, resource, verb."""
    return {
        (found["metadata"].get("namespace", ""), group, resource, verb)
        for found in of_kind(rendered(case), kind)
        for rule in found["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@each_case
def test_rights_are_exactly_those_of_the_switches(case: str) -> None:
    values = values_of(case)
    kubernetes = values["kubernetes"]
    on = kubernetes["enabled"] and values["rbac"]["create"]
    resources = ["pods", *(["events"] if kubernetes["events"] else [])]
    places = kubernetes["namespaces"] or [""]
    wanted = {(place, "", what, verb) for place in places for what in resources for verb in ("list", "watch") if on}
    if on and kubernetes["namespaces"] and kubernetes["events"]:
        wanted |= {(NODE_EVENTS_NAMESPACE, "", "events", "list"), (NODE_EVENTS_NAMESPACE, "", "events", "watch")}
    if on and kubernetes["nodeConditions"]:
        wanted |= {("", "", "nodes", "list"), ("", "", "nodes", "watch")}
    maps = kubernetes["configMaps"]
    if on and maps["enabled"]:
        wanted |= {(place, "", "configmaps", "get") for place in maps["namespaces"] or places}
    assert rules(case, "ClusterRole") | rules(case, "Role") == wanted


@each_case
def test_every_role_is_bound_to_the_account_of_the_pods_alone(case: str) -> None:
    objects = rendered(case)
    namespace = values_of(case)["namespaceOverride"] or "watch"
    account = {"kind": "ServiceAccount", "name": pod_of(case)["serviceAccountName"], "namespace": namespace}
    for kind in ("Role", "ClusterRole"):
        roles = {(r["metadata"].get("namespace"), r["metadata"]["name"]) for r in of_kind(objects, kind)}
        bindings = of_kind(objects, f"{kind}Binding")
        assert {(b["metadata"].get("namespace"), b["roleRef"]["name"]) for b in bindings} == roles
        assert all(b["subjects"] == [account] and b["roleRef"]["kind"] == kind for b in bindings)


@each_case
def test_a_token_is_mounted_only_where_the_api_server_is_asked(case: str) -> None:
    assert pod_of(case)["automountServiceAccountToken"] is values_of(case)["kubernetes"]["enabled"]
    for account in of_kind(rendered(case), "ServiceAccount"):
        assert account["automountServiceAccountToken"] is False


def test_an_account_of_the_users_is_taken_as_it_is() -> None:
    assert pod_of("own account")["serviceAccountName"] == "mine"
    kinds = {found["kind"] for found in rendered("own account")}
    assert not kinds & {"ServiceAccount", "ClusterRole", "Role"}


def test_drivers_are_asked_for_without_more_than_the_library_for_reading() -> None:
    env = {one["name"]: one.get("value") for one in container_of("defaults")["env"]}
    assert env["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert env["NVIDIA_DRIVER_CAPABILITIES"] == "utility"
    env = {one["name"]: one.get("value") for one in container_of("devices as mounts")["env"]}
    assert env["NVIDIA_VISIBLE_DEVICES"] == "/var/run/nvidia-container-devices"
    env = {one["name"]: one.get("value") for one in container_of("amd")["env"]}
    assert "NVIDIA_VISIBLE_DEVICES" not in env
    assert env["AMD_VISIBLE_DEVICES"] == "all"


def test_the_node_tells_its_name_and_probes_follow_tls() -> None:
    (name,) = (one for one in container_of("defaults")["env"] if one["name"] == "KVPRESSURE_KUBERNETES__NODE_NAME")
    assert name["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}
    for case, scheme in (("defaults", "HTTP"), ("tls", "HTTPS")):
        assert container_of(case)["livenessProbe"]["httpGet"]["scheme"] == scheme
        assert container_of(case)["readinessProbe"]["httpGet"]["scheme"] == scheme


def test_a_rollout_leaves_most_nodes_watched_and_cannot_be_blocked_by_a_budget() -> None:
    strategy = daemonset("defaults")["spec"]["updateStrategy"]
    assert strategy == {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}}
    assert daemonset("on delete")["spec"]["updateStrategy"] == {"type": "OnDelete"}
    assert not of_kind(rendered("everything"), "PodDisruptionBudget")


def test_memory_is_bounded_and_the_processor_is_not() -> None:
    resources = container_of("defaults")["resources"]
    assert resources["limits"] == {"memory": "640Mi"}
    assert resources["requests"] == {"cpu": "50m", "memory": "128Mi"}

"""Limits in a configuration file that a pod mounts from a ConfigMap, as `triage pod/NAME` reads them."""

from typing import Any, cast

import pytest

from kvpressure.cli.triage.pod import pod_json
from kvpressure.kubernetes import KubeError
from kvpressure.kubernetes.kubectl.named_pod import NamedPod
from kvpressure.kubernetes.kubectl.program import Kubectl
from kvpressure.kubernetes.objects.engine_pod import engine_pod
from kvpressure.kubernetes.objects.references import ReferencedPod

FILE = "max-num-seqs: 12\nmax-num-batched-tokens: 8k\n"


def pod(*args: str, mount: dict[str, str], volume: dict[str, Any]) -> dict[str, Any]:
    container = {
        "name": "vllm",
        "image": "vllm/vllm-openai:v0.11.0",
        "args": ["--model", "m", *args],
        "volumeMounts": [{"name": "tokens", "mountPath": "/token"}, {"name": "conf", **mount}],
    }
    volumes = [{"name": "tokens", "secret": {"secretName": "t"}}, {"name": "conf", **volume}]
    return {
        "metadata": {"namespace": "chat", "name": "llama-0"},
        "spec": {"containers": [container], "volumes": volumes},
        "status": {"phase": "Running"},
    }


MAP = {"configMap": {"name": "engine"}}
PODS = {
    "a folder": ({"mountPath": "/etc/vllm"}, MAP),
    "a file": ({"mountPath": "/etc/vllm/config.yaml", "subPath": "config.yaml"}, MAP),
    "named anew": (
        {"mountPath": "/etc/vllm"},
        {"configMap": {"name": "engine", "items": [{"key": "config.yaml", "path": "config.yaml"}]}},
    ),
    "projected": ({"mountPath": "/etc/vllm/"}, {"projected": {"sources": [MAP]}}),
}


class Api:
    """In place of kubectl, for one pod, and for its ConfigMap (that `changed` last then) unless that is forbidden."""

    def __init__(self, pod: dict[str, Any], *, forbidden: bool = False, changed: str = "1970-01-01T00:00:00Z") -> None:
        self.pod, self.forbidden, self.changed, self.asked = pod, forbidden, changed, list[str]()

    async def raw(self, path: str) -> dict[str, Any]:
        self.asked.append(path)
        if self.forbidden:
            raise KubeError(f"you may not get --raw={path}: no; ask the cluster's administrator for a Role")
        written = [{"time": self.changed, "fieldsV1": {"f:data": {}}}]
        meta = {"creationTimestamp": "1970-01-01T00:00:00Z", "managedFields": written}
        return {"metadata": meta, "data": {"config.yaml": FILE, "other": "x"}}

    async def logs(self, *_: object, **__: object) -> bytes:
        return b""


async def looked(api: Api) -> NamedPod:
    found = NamedPod(ReferencedPod(api.pod), engine_pod(ReferencedPod(api.pod), 1.0))
    for now in (2.0, 3.0):
        await found.refresh(cast("Kubectl", api), api.pod, now)
    return found


@pytest.mark.parametrize("how", PODS)
async def test_limits_in_a_mounted_file_are_read_once_and_lose_to_the_command_line(how: str) -> None:
    mount, volume = PODS[how]
    api = Api(pod("--config", "/etc/vllm/config.yaml", "--max-num-batched-tokens", "4096", mount=mount, volume=volume))
    found = await looked(api)
    limits = {one.name: (one.value, one.where) for one in found.engine.limits or ()}
    assert limits["max_num_seqs"] == (12.0, "max-num-seqs: 12 in /etc/vllm/config.yaml")
    assert limits["max_num_batched_tokens"][0] == 4096.0
    assert sum("configmaps/engine" in path for path in api.asked) == 1


@pytest.mark.parametrize(
    ("changed", "restarts", "why"),
    [
        ("2026-01-01T09:00:00Z", 0, ""),
        ("2026-01-01T09:59:00Z", 0, ""),
        ("2026-01-01T09:59:00Z", 1, "so shortly before the restart that the former text may have been mounted"),
        ("2026-01-01T10:01:00Z", 0, "after the container started; the server read the former text"),
    ],
)
async def test_a_file_that_changed_since_the_start_is_not_what_the_server_read(
    changed: str, restarts: int, why: str
) -> None:
    started = pod("--config", "/etc/vllm/config.yaml", mount={"mountPath": "/etc/vllm"}, volume=MAP)
    running = {"running": {"startedAt": "2026-01-01T10:00:00Z"}}
    started["status"]["containerStatuses"] = [{"name": "vllm", "restartCount": restarts, "state": running}]
    api = Api(started, changed=changed)
    found = await looked(api)
    assert (found.engine.limits is None) is bool(why)
    assert found.unread.endswith(why)
    assert sum("configmaps/engine" in path for path in api.asked) == 1


async def test_without_permission_the_limit_is_not_known_and_a_sentence_says_why() -> None:
    api = Api(pod("--config", "/etc/vllm/config.yaml", mount={"mountPath": "/etc/vllm"}, volume=MAP), forbidden=True)
    found = await looked(api)
    assert found.engine.limits is None
    said = pod_json(found)["limits_problem"]
    assert str(said).startswith(
        "ConfigMap engine, which the server's --config is mounted from, cannot be read: you may"
    )


@pytest.mark.parametrize("args", [(), ("--config", "/elsewhere/config.yaml"), ("--config", "/etc/vllmish/c.yaml")])
async def test_no_configmap_is_asked_for_that_the_server_does_not_read(args: tuple[str, ...]) -> None:
    api = Api(pod(*args, mount={"mountPath": "/etc/vllm"}, volume=MAP))
    await looked(api)
    assert not any("configmaps" in path for path in api.asked)

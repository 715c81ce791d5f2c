from __future__ import annotations

from typing import Any

import pytest

from kvpressure.tools.audit.pods import gpu_text, requested_gpus, shared_memory


def affinity(*values: str, operator: str = "In") -> dict[str, Any]:
    terms = [{"matchExpressions": [{"key": "nvidia.com/gpu.product", "operator": operator, "values": list(values)}]}]
    required = {"nodeSelectorTerms": terms}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


@pytest.mark.parametrize(
    ("pod", "text"),
    [
        ({"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-L40S"}}, "NVIDIA-L40S"),
        ({"nodeSelector": {"disk": "ssd", "cloud.google.com/gke-accelerator": "nvidia-l4"}}, "nvidia-l4"),
        ({"nodeSelector": {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}}, "AMD_Instinct_MI300X_OAM"),
        (affinity("NVIDIA-H200"), "NVIDIA-H200"),
        (affinity("NVIDIA-H200", "NVIDIA-H100-80GB-HBM3"), ""),
        (affinity("NVIDIA-T4", operator="NotIn"), ""),
        ({"nodeSelector": {"disk": "ssd"}}, ""),
        ({}, ""),
    ],
)
def test_a_gpu_is_named_by_the_nodes_that_a_pod_selects(pod: dict[str, Any], text: str) -> None:
    assert gpu_text(pod, {}) == text
    assert gpu_text(pod, {"kvpressure.io/gpu": "L4"}) == "L4"


def test_gpus_are_counted_whoever_makes_them() -> None:
    assert requested_gpus({"limits": {"amd.com/gpu": "8", "memory": "1Gi"}}) == (8, "amd.com/gpu")
    assert requested_gpus({"limits": {"nvidia.com/gpu": "{{ n }}"}}) == ("{{ n }}", "nvidia.com/gpu")
    assert requested_gpus({}) == (None, "nvidia.com/gpu")


def test_shared_memory_is_a_volume_or_the_hosts() -> None:
    mounted = {"volumeMounts": [{"name": "shm", "mountPath": "/dev/shm/"}]}
    assert shared_memory(mounted, {"volumes": [{"name": "shm", "emptyDir": {}}]}) == "volume shm at /dev/shm"
    assert shared_memory(mounted, {}) == ""
    assert shared_memory({}, {"hostIPC": True}) == "hostIPC: true"

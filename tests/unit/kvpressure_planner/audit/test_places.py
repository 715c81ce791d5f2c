from __future__ import annotations

from typing import Any

import pytest

from kvpressure_planner.audit.engine import Resources
from kvpressure_planner.audit.manifests import Item, Source
from kvpressure_planner.audit.places import resources


def affinity(*values: str, operator: str = "In") -> dict[str, Any]:
    terms = [{"matchExpressions": [{"key": "nvidia.com/gpu.product", "operator": operator, "values": list(values)}]}]
    required = {"nodeSelectorTerms": terms}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


def of(container: dict[str, Any], annotations: dict[str, str] | None = None, **pod: Any) -> Resources:
    item = Item("Pod", "", "p", {"spec": {**pod, "containers": [container]}}, Source("f"))
    return resources(item, ("spec", "containers", 0), annotations or {})


@pytest.mark.parametrize(
    ("pod", "text"),
    [
        ({"nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-L40S"}}, "NVIDIA-L40S"),
        ({"nodeSelector": {"disk": "ssd", "cloud.google.com/gke-accelerator": "nvidia-l4"}}, "nvidia-l4"),
        ({"nodeSelector": {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"}}, "AMD_Instinct_MI300X_OAM"),
        (affinity("NVIDIA-H200"), "NVIDIA-H200"),
        (affinity("NVIDIA-H200", "NVIDIA-H100-80GB-HBM3"), ""),
        (affinity("NVIDIA-T4", operator="NotIn"), ""),
        ({"nodeSelector": {"node.kubernetes.io/instance-type": "p5.48xlarge"}}, "p5.48xlarge"),
        ({"nodeSelector": {"node.kubernetes.io/instance-type": "m5.large"}}, ""),
        ({"instance_type": "g6e.xlarge"}, "g6e.xlarge"),
        ({"nodeSelector": {"disk": "ssd"}}, ""),
        ({}, ""),
    ],
)
def test_a_gpu_is_named_by_the_nodes_that_a_pod_selects(pod: dict[str, Any], text: str) -> None:
    assert of({}, **pod).gpu == text
    assert of({}, {"kvpressure.io/gpu": "L4"}, **pod).gpu == "L4"


@pytest.mark.parametrize(
    ("limits", "number", "key"),
    [
        ({"amd.com/gpu": "8", "memory": "1Gi"}, 8, "amd.com/gpu"),
        ({"nvidia.com/gpu": "{{ n }}"}, "{{ n }}", "nvidia.com/gpu"),
        ({}, 0, "nvidia.com/gpu"),
        ({"nvidia.com/gpumem": 3000}, 0, "nvidia.com/gpu"),
        ({"nvidia.com/A100": 2}, 2, "nvidia.com/A100"),
    ],
)
def test_gpus_are_counted_whoever_makes_them(limits: dict[str, str], number: object, key: str) -> None:
    found = of({"resources": {"limits": limits}})
    assert (found.gpus, found.gpu_key) == (number, key)


def test_shared_memory_is_a_volume_or_the_hosts() -> None:
    mounted = {"volumeMounts": [{"name": "shm", "mountPath": "/dev/shm/"}]}
    assert of(mounted).shared_memory == "volume shm at /dev/shm"
    assert of({}).shared_memory == ""
    assert of({}, hostIPC=True).shared_memory == "hostIPC: true"

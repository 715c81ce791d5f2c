"""The node's GPUs, and who holds them."""

from __future__ import annotations

import json
from pathlib import Path

from tests.e2e_kubernetes.cluster import NAMESPACE

GPUS = {"llama-0": "GPU-aaaaaaaa-0000-0000-0000-000000000000", "llama-1": "GPU-bbbbbbbb-0000-0000-0000-000000000000"}
GIB = 2**30
GPU_FILE = Path("/run/gpus.json")


def write_gpus() -> None:
    """Two GPUs, whose memory is nearly full as vLLM's always is."""
    gpus = [
        {"uuid": uuid, "index": str(at), "memory_used_bytes": 74 * GIB, "memory_total_bytes": 80 * GIB}
        for at, uuid in enumerate(GPUS.values())
    ]
    GPU_FILE.write_text(json.dumps({"gpus": gpus}))


def write_answers(file: Path, *pods: str) -> None:
    """The answers of the kubelet's pod-resources, when these pods hold their GPUs."""
    devices = {pod: [{"resource_name": "nvidia.com/gpu", "device_ids": [GPUS[pod]]}] for pod in pods}
    held = [
        {"name": pod, "namespace": NAMESPACE, "containers": [{"name": "vllm", "devices": devices[pod]}]} for pod in pods
    ]
    answers = {"pod_resources": held, "devices": []}
    file.with_suffix(".new").write_text(json.dumps(answers))
    file.with_suffix(".new").rename(file)

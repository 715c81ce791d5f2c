"""The node's GPUs, and who holds them."""

import json
import shutil
from pathlib import Path

from tests.e2e_kubernetes.cluster import NAMESPACE
from tests.stubs.build import libraries
from tests.stubs.world import GIB, nvidia

GPUS = {"llama-0": "GPU-aaaaaaaa-0000-0000-0000-000000000000", "llama-1": "GPU-bbbbbbbb-0000-0000-0000-000000000000"}
DRIVER = Path("/run/driver")
"""What NVIDIA's runtime would mount: its library, here the stub of the tests, and what that shows."""


def install_driver() -> None:
    """Two GPUs, whose memory is nearly full as vLLM's always is."""
    shown = nvidia(len(GPUS))
    for at, uuid in enumerate(GPUS.values()):
        shown |= {f"gpu.{at}.uuid": uuid, f"gpu.{at}.memory": f"{80 * GIB} 0 {74 * GIB}"}
    DRIVER.mkdir()
    shutil.copy(libraries() / "libnvidia-ml.so.1", DRIVER)
    (DRIVER / "gpus.txt").write_text("".join(f"{key} {value}\n" for key, value in shown.items()))


def driver_environment() -> dict[str, str]:
    """Leads the exporter's NVML binding there."""
    return {"LD_LIBRARY_PATH": str(DRIVER), "STUB_SCENARIO": str(DRIVER / "gpus.txt")}


def write_answers(file: Path, *pods: str) -> None:
    """The answers of the kubelet's pod-resources, when these pods hold their GPUs."""
    devices = {pod: [{"resource_name": "nvidia.com/gpu", "device_ids": [GPUS[pod]]}] for pod in pods}
    held = [
        {"name": pod, "namespace": NAMESPACE, "containers": [{"name": "vllm", "devices": devices[pod]}]} for pod in pods
    ]
    answers = {"pod_resources": held, "devices": []}
    file.with_suffix(".new").write_text(json.dumps(answers))
    file.with_suffix(".new").rename(file)

"""PURE: what people call the sources; series and JSON keep the short names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

NAMES: Final[Mapping[str, str]] = {
    "engine": "Engine metrics page",
    "file_sd": "Target files (file_sd)",
    "nvml": "NVIDIA GPUs (NVML)",
    "amdsmi": "AMD GPUs (amdsmi)",
    "simulated": "Simulated GPUs",
    "kubernetes_pods": "Kubernetes: pods of this node",
    "kubernetes_events": "Kubernetes: events of these pods",
    "kubernetes_config_maps": "Kubernetes: --config files of these pods",
    "kubernetes_node": "Kubernetes: this node",
    "pod_resources": "GPUs of pods (kubelet)",
    "port_owner": "Engine processes of this machine",
    "logs": "Engine logs",
    "otlp": "Push of metrics (OTLP)",
    "host": "CPU and memory of this machine",
}


def source_name(source: str) -> str:
    """The name of a source, itself where it has none."""
    return NAMES.get(source, source)

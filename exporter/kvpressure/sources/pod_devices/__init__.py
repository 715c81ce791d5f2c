"""Which container holds which GPU, asked of the kubelet over its pod-resources API.

Importing this package imports neither gRPC nor protobuf: that happens at the first question.
"""

from __future__ import annotations

from kvpressure.sources.pod_devices.assign import resolve
from kvpressure.sources.pod_devices.source import PodDevicesSource

__all__ = ["PodDevicesSource", "resolve"]

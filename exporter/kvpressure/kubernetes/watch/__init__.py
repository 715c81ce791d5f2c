"""Engines of this node as the API server tells them: targets, container states, events, memory pressure.

Nothing here loads the Kubernetes client before `KubernetesSource.run` needs it.
"""

from __future__ import annotations

from kvpressure.kubernetes.watch.source import KubernetesSource
from kvpressure.kubernetes.watch.view import ClusterView

__all__ = ["ClusterView", "KubernetesSource"]

"""Who a target is, as the pipeline sees it: its names, the container it runs in, the GPUs it holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kvpressure.model.environment import ContainerId, DeclaredLimit

ALL_GPUS = "all"


class TargetIdentity(Protocol):
    """What the pipeline needs to know of a target."""

    @property
    def name(self) -> str:
        """Configured name, or `namespace/pod:port`."""

    @property
    def namespace(self) -> str:
        """Kubernetes namespace, "" without one."""

    @property
    def pod(self) -> str:
        """Pod name, "" without one."""

    @property
    def gpus(self) -> Sequence[str] | None:
        """GPUs of the container, by uuid or index, or `all`; None when not known."""

    @property
    def kv_bytes_per_token(self) -> float | None:
        """KV cache bytes per token where an operator sets them."""

    @property
    def container(self) -> str:
        """Name of the container in the pod, "" without one."""

    @property
    def limits(self) -> Sequence[DeclaredLimit] | None:
        """Limits that the engine was started with; None where its command line could not be read."""


def container_of(target: TargetIdentity) -> ContainerId:
    """Return the id of a target's container in Kubernetes; an id of its name where discovery did not find it."""
    if target.pod and target.container:
        return ContainerId(target.namespace, target.pod, target.container)
    return ContainerId("", "", target.name)

"""What the API server has told of this node's engines, at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kvpressure.config.target import Target
from kvpressure.model.workload import ContainerId, ContainerState, EventReport


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Engines as of `t` (unix seconds).

    `targets` stay when the API server does not answer; each container's `t` then says how old its state is. `events`
    holds the containers of engines, for ten minutes also those of pods that were deleted, and under
    `ContainerId("", "", "")` the node; a missing key means that events could not be watched. `problems` are
    sentences about pods whose annotations or addresses cannot be used, `hints` about what is not read, and what brings
    it.
    """

    t: float
    targets: tuple[Target, ...] = ()
    containers: Mapping[ContainerId, ContainerState] = field(default_factory=dict)
    events: Mapping[ContainerId, EventReport] = field(default_factory=dict)
    memory_pressure: bool | None = None
    problems: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()

"""The families of containers: restarts, last end, log lines, Kubernetes events and CPU throttling."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvpressure.model.environment import ContainerId, Environment
from kvpressure.model.family import container_family

Values = Mapping[str, object]


FAMILIES: Final = (
    container_family("container_restarts_total", "counter", "Restarts of an engine's container."),
    container_family(
        "container_last_termination_info",
        "gauge",
        "1; how the container last terminated: OOMKilled (137) is host memory, Error is the engine exiting by itself.",
        "reason",
        "exit_code",
    ),
    container_family("log_events_total", "counter", "Failure-related engine log incidents, by kind.", "kind"),
    container_family("cpu_throttled_ratio", "gauge", "Share of CPU periods throttled by the CPU limit."),
    container_family("kubernetes_events_total", "counter", "Events on engines' pods and on their node.", "reason"),
)


def container_values(around: Environment) -> Mapping[ContainerId, Values]:
    """Return values of the container families by container; what is not known has no key.

    Counters are the API server's own (restarts) or begin at 0 when the exporter first sees their container.
    """
    throttled = around.host.throttled_ratio if around.host is not None else {}
    found: dict[ContainerId, Values] = {}
    for key in sorted({*around.containers, *around.logs, *around.events, *throttled}):
        values: dict[str, object] = {}
        found[key] = values
        if (state := around.containers.get(key)) is not None:
            values["container_restarts_total"] = float(state.restarts)
            if (ended := state.termination) is not None:
                values["container_last_termination_info"] = {ended.reason: {str(ended.exit_code): 1.0}}
        if (log := around.logs.get(key)) is not None:
            values["log_events_total"] = {kind: float(count) for kind, count in log.counts.items()}
        if (events := around.events.get(key)) is not None:
            values["kubernetes_events_total"] = {reason: float(count) for reason, count in events.counts.items()}
        if key in throttled:
            values["cpu_throttled_ratio"] = throttled[key]
    return found

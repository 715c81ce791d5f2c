"""Every metric family, collected from where it is declared; those that are not signals of engines are declared here.

`text` exports the table in its order. The standard families of the process are prometheus_client's (`text.OwnProcess`).
`docs/metrics.md` is generated from the table, and rules and dashboards are tested against it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Final

from kvpressure.advice import limits
from kvpressure.config.target import Target
from kvpressure.model.action import FIRST_STEPS
from kvpressure.model.catalogue import CATALOGUE
from kvpressure.model.environment import ContainerId, Environment
from kvpressure.model.family import (
    JSON_ONLY,
    Family,
    container_family,
    engine_family,
    exporter_family,
    source_family,
    target_family,
)
from kvpressure.model.plugins import exported
from kvpressure.model.samples import SourceHealth
from kvpressure.model.target_status import ReplicaState, replica_state, status_of, status_of_silent
from kvpressure.model.values import Derived, Value, known
from kvpressure.model.verdict import Cause, Diagnosis
from kvpressure.model.view import EngineView
from kvpressure.net.urls import typed_address
from kvpressure.runtimes.registry import RUNTIMES
from kvpressure.simulation import unconstrained

MAX_STEP_TEXT: Final = 45

VERDICTS: Final = (
    engine_family("symptom", "1 if the symptom is present, 0 if not; absent if it cannot be judged.", "symptom"),
    engine_family("score_ratio", "KV cache pressure, 0 to 1."),
    engine_family("bottleneck", "State set: exactly one cause is 1.", "cause"),
    engine_family(
        "bottleneck_info",
        "1 for the present cause and its detail, empty if it is unknown, and both in words.",
        "cause",
        "detail",
        "text",
    ),
    engine_family("bottleneck_confidence_ratio", "Share of the evidence that supports the cause."),
    engine_family(
        "recommended_action",
        "1 for the recommended step of the engine's incident that stands first, as on its page, and for the best one "
        "without_gpu if the first requires a GPU; absent if there is none.",
        "rank",
        "action",
        "text",
    ),
    engine_family("engine_up", "1 if the engine's metrics page is read; 0 if it no longer is and is still a target."),
)

TARGETS: Final = (
    target_family("target_listed", "1; every target of the exporter, whether it answers or not."),
    target_family(
        "target_answering",
        "1 if the last poll got any answer, also one that cannot be read; 0 if it was refused, timed out or had no "
        "route; absent before the first poll.",
    ),
    target_family("target_status", "1 for how the last poll ended, and that in words.", "status", "text"),
    target_family(
        "replica_state",
        "1 for what the replica does: serves, waits (some of its requests do), stuck, unreadable or gone; of several "
        "engines the worst; absent where not known.",
        "state",
    ),
    target_family("target_info", "1; what to type after kvpressure triage to reach the target.", "address"),
    target_family("target_created_timestamp_seconds", "Unix time at which the target's pod was made."),
)

SOURCES: Final = (
    source_family(
        "source_up", "1 when the source's last read succeeded; absent of a server that is recognised and not read."
    ),
    source_family("source_duration_seconds", "Duration of the source's last read."),
    source_family("source_last_success_timestamp_seconds", "Unix time of the source's last successful read."),
    source_family("source_errors_total", "Failed reads of the source.", "reason"),
)

CONTAINERS: Final = (
    container_family("container_restarts_total", "Restarts of an engine's container."),
    container_family(
        "container_info",
        "1; image of an engine's container; its tag is mostly the version.",
        "image",
    ),
    container_family(
        "container_last_termination_info",
        "1; last termination of the container: OOMKilled (137) is host memory, Error is an exit of the engine itself.",
        "reason",
        "exit_code",
    ),
    container_family("log_events_total", "Failure-related engine log incidents, by kind.", "kind"),
    container_family("cpu_throttled_ratio", "Share of CPU periods throttled by the CPU limit."),
    container_family("kubernetes_events_total", "Events on engines' pods and on their node.", "reason"),
)

EXPORTER: Final = (
    exporter_family("cpu_pressure_ratio", "Share of time in which some task on the host waited for CPU (PSI)."),
    exporter_family("node_memory_pressure", "1 while the node reports MemoryPressure, else 0."),
    exporter_family("samples_rejected_total", "Readings dropped as impossible.", "source", "reason"),
    exporter_family("caps_reached_total", "Items left out because a configured cap was reached.", "cap"),
    exporter_family("polls_skipped_total", "Engine polls skipped because the previous one was still running."),
    exporter_family(
        "log_lines_dropped_total",
        "Lines of the exporter's own log that could not be written because standard error is full, closed or not read.",
    ),
    exporter_family("engine_page_bytes_total", "Bytes of engine pages received."),
    exporter_family("web_connections", "Connections open to the exporter's own server."),
    exporter_family(
        "web_refused_total", "Connections closed and requests refused to protect the exporter's own server.", "reason"
    ),
    exporter_family(
        "config_last_reload_successful", "1 if the last configuration reload succeeded, 0 if it was rejected."
    ),
    exporter_family(
        "config_last_reload_success_timestamp_seconds", "Unix time of the last successful configuration reload."
    ),
    exporter_family(
        "targets", "Number of targets; absent until those of discovery and of every target file have been listed once."
    ),
    exporter_family("thresholds_info", "1; hash of the thresholds in use.", "hash"),
    exporter_family("build_info", "1; version of kvpressure and Python.", "version", "python_version"),
)

_DECLARED: Final[tuple[Family, ...]] = (
    *itertools.chain(*exported("kvpressure.signals", "FAMILIES")),
    *unconstrained.FAMILIES,
    *VERDICTS,
    *limits.FAMILIES,
    *TARGETS,
    *SOURCES,
    *CONTAINERS,
    *EXPORTER,
)
FAMILIES: Final = tuple(family for family in _DECLARED if family.type != JSON_ONLY)
"""In the order in which they are exported."""

JSON_VALUES: Final = tuple(family for family in _DECLARED if family.type == JSON_ONLY)
"""Values of engines that are in the JSON and not on the page."""


def engine_values(view: EngineView) -> Derived:
    """Return an engine's values as they are exported; of a silent engine only that it is: rules remember the rest."""
    diagnosis = view.diagnosis
    if view.silence is not None:
        return {"engine_up": 0.0}
    return {
        "engine_up": 1.0,
        **view.derived,
        **({} if diagnosis is None else diagnosis_families(diagnosis)),
        **_recommended(view),
    }


def _recommended(view: EngineView) -> Derived:
    keys = {"first": view.step, "without_gpu": view.step_without_gpu}
    steps = {rank: {key: {STEP_TEXTS.get(key, "run triage"): 1.0}} for rank, key in keys.items() if key}
    return {"recommended_action": steps} if steps else {}


STEP_TEXTS: Final = {
    **FIRST_STEPS,
    **{
        key: remedy.title
        for runtime in RUNTIMES
        for key, remedy in runtime.advice.remedies.details.items()
        if len(remedy.title) <= MAX_STEP_TEXT
    },
}
"""What alerts say of a step, by its word: a closed table."""


def cause_text(diagnosis: Diagnosis) -> str:
    """Return the cause with its detail in words, of a closed table."""
    row = CATALOGUE[diagnosis.cause]
    return row.details.get(diagnosis.detail, row.label)


def target_values(target: Target, health: SourceHealth, views: Sequence[EngineView] = ()) -> Mapping[str, object]:
    """Return the values of the families of targets; `views` are those of its engines, silent ones among them."""
    status = status_of(health)
    states = [replica_state(view, status_of_silent(health)) for view in views] or [replica_state(None, status)]
    worst = max(filter(None, states), key=[*ReplicaState].index, default=None)
    return {
        "target_listed": 1.0,
        "target_answering": status.answering.value,
        "target_status": {status.word: {status.text: 1.0}},
        "replica_state": None if worst is None else {worst.value: 1.0},
        "target_info": {address_of(target): 1.0},
        "target_created_timestamp_seconds": target.created,
    }


def address_of(target: Target) -> str:
    """Return what to type after `kvpressure triage` to reach a target: its pod, or its address."""
    if target.pod:
        return f"-n {target.namespace} pod/{target.pod}" if target.namespace else f"pod/{target.pod}"
    return typed_address(target.url, target.path)


def diagnosis_families(diagnosis: Diagnosis) -> Derived:
    """Return the verdict as derived values, by the keys of `VERDICTS`."""
    symptoms: dict[str, Value] = {
        name: float(evidence.state) for name, evidence in diagnosis.symptoms.items() if evidence.state is not None
    }
    return known(
        {
            "symptom": symptoms or None,
            "score_ratio": diagnosis.score,
            "bottleneck": {cause.value: float(cause is diagnosis.cause) for cause in Cause},
            "bottleneck_info": {diagnosis.cause.value: {diagnosis.detail: {cause_text(diagnosis): 1.0}}},
            "bottleneck_confidence_ratio": diagnosis.confidence,
        }
    )


def source_values(health: SourceHealth) -> Mapping[str, object]:
    """Return the values of the source families, None where they are not known."""
    return {
        "source_up": None if health.not_read else float(health.up),
        "source_duration_seconds": None if math.isnan(health.duration_seconds) else health.duration_seconds,
        "source_last_success_timestamp_seconds": health.last_success,
        "source_errors_total": health.errors,
    }


def container_values(environment: Environment) -> Mapping[ContainerId, Mapping[str, object]]:
    """Return the values of the container families by container; what is not known has no key.

    Counters are the API server's own (restarts) or begin at 0 when the exporter finds their container.
    """
    throttled = environment.host.throttled_ratio if environment.host is not None else {}
    by_container: dict[ContainerId, Mapping[str, object]] = {}
    for key in sorted({*environment.containers, *environment.logs, *environment.events, *throttled}):
        values: dict[str, object] = {}
        by_container[key] = values
        if (state := environment.containers.get(key)) is not None:
            values["container_restarts_total"] = float(state.restarts)
            if state.image:
                values["container_info"] = {state.image: 1.0}
            if (ended := state.termination) is not None:
                values["container_last_termination_info"] = {ended.reason: {str(ended.exit_code): 1.0}}
        if (log := environment.logs.get(key)) is not None:
            values["log_events_total"] = {kind: float(count) for kind, count in log.counts.items()}
        if (events := environment.events.get(key)) is not None:
            values["kubernetes_events_total"] = {reason: float(count) for reason, count in events.counts.items()}
        if key in throttled:
            values["cpu_throttled_ratio"] = throttled[key]
    return by_container

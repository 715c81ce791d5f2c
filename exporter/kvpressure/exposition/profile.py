"""Which series are exported: all of them, or of a fleet of thousands of engines the few that are kept for months.

Rules and boards of the bundle that read others stay empty beside a fleet's exporters; docs/scaling.md says which.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from kvpressure.exposition.families import FAMILIES
from kvpressure.model.family import Family, Scope


class Profile(Enum):
    """As `exposition.profile` names it."""

    FULL = "full"
    FLEET = "fleet"


ALERTED_SYMPTOMS: Final = ("admission_blocked", "restarting")
"""Those that alerts of the default bundle ask for."""

GENERATED: Final = "generation"
"""The kind of tokens that users wait for."""

NEGLIGIBLE_RATIO: Final = 0.1
"""Constraints asked for less than this, of the one that binds, are left out of an engine's demand. A deployment whose
engines are bound by different ones adds each up: it then asks for at most a tenth too few with two such constraints, a
fifth with three, which is within the reserve that `scaling_target_ratio` keeps."""

_FLEET: Final = frozenset(
    {
        # What is the matter, and how sure that is.
        "engine_up",
        "bottleneck",
        "bottleneck_info",
        "bottleneck_confidence",
        "score",
        "symptom",
        "recommended_action",
        # How much room is left, and for how long.
        "saturation_ratio",
        "demand_replicas",
        "kv_cache_usage_ratio",
        "kv_free_tokens",
        "kv_exhaustion_seconds",
        "queue_unserved_seconds",
        # What is asked for, what comes out, and what trouble took.
        "requests_waiting",
        "tokens_per_second",
        "lost_tokens_total",
        # Of an engine that does not answer, instead of all the above but the first.
        "engine_silent_seconds",
        "engine_last_bottleneck",
        "engine_last_demand_requests",
        # Of targets, containers and the exporter itself: what alerts need.
        "source_up",
        "source_errors_total",
        "container_restarts_total",
        "container_last_termination_info",
        "log_events_total",
    }
)

_WANTED: Final[Mapping[Profile, tuple[Family, ...]]] = {
    Profile.FULL: FAMILIES,
    Profile.FLEET: tuple(one for one in FAMILIES if one.key in _FLEET or one.scope is Scope.EXPORTER),
}


def families(profile: Profile) -> tuple[Family, ...]:
    """Return the families that the profile exports, in the order of the table."""
    return _WANTED[profile]


def shown(profile: Profile, values: Mapping[str, object]) -> Mapping[str, object]:
    """Return an engine's values as they are exported; `values` themselves where all are.

    Of a fleet, a series that would be 0 because its cause or symptom is not there, or because everyone is served, is
    left out: most would be. Of tokens only those generated are exported, of demand the constraint that binds and those
    that are not negligible beside it.
    """
    if profile is Profile.FULL:
        return values
    less: dict[str, object] = {} if values.get("queue_unserved_seconds") else {"queue_unserved_seconds": None}
    if isinstance(causes := values.get("bottleneck"), Mapping):
        less["bottleneck"] = {cause: state for cause, state in causes.items() if state}
    if isinstance(symptoms := values.get("symptom"), Mapping):
        less["symptom"] = {name: 1.0 for name in ALERTED_SYMPTOMS if symptoms.get(name)}
    if isinstance(tokens := values.get("tokens_per_second"), Mapping):
        less["tokens_per_second"] = {kind: rate for kind, rate in tokens.items() if kind == GENERATED}
    if isinstance(demand := values.get("demand_replicas"), Mapping) and demand:
        least = NEGLIGIBLE_RATIO * max(demand.values())
        less["demand_replicas"] = {constraint: asked for constraint, asked in demand.items() if asked >= least}
    return {**values, **less}

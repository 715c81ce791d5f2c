"""Which series are exported: all, or, for a fleet of thousands of engines, the few that are stored for months.

Rules and dashboards of the bundle that query other series have no data with the fleet profile; see docs/scaling.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from kvpressure.exposition.families import FAMILIES
from kvpressure.model.family import Family, Scope


class Profile(Enum):
    """The values of the setting `exposition.profile`."""

    FULL = "full"
    FLEET = "fleet"


ALERTED_SYMPTOMS: Final = ("admission_blocked", "restarting")
"""The symptoms that alerts of the default bundle query."""

GENERATED: Final = "generation"
"""The kind of tokens that users wait for."""

NEGLIGIBLE_RATIO: Final = 0.1
"""Constraints with less than this share of the binding one's demand are left out. For a deployment whose engines have
different binding constraints, the sum of each is at most a tenth too low with two of them, within the reserve of
`scaling_target_ratio`, and a fifth with three."""

_FLEET: Final = frozenset(
    {
        # The verdict, and its confidence.
        "engine_up",
        "role",
        "bottleneck",
        "bottleneck_info",
        "bottleneck_confidence_ratio",
        "score_ratio",
        "symptom",
        "recommended_action",
        # What capacity is left, and for how long.
        "saturation_ratio",
        "demand_replicas",
        "kv_cache_usage_ratio",
        "kv_capacity_tokens",
        "kv_free_tokens",
        "kv_exhaustion_seconds",
        "queue_unserved_seconds",
        # What tells uneven replicas, and why they are.
        "queue_drain_seconds",
        "prefix_cache_hit_ratio",
        # Load, output, and the loss of trouble.
        "requests_running",
        "requests_waiting",
        "tokens_total",
        "lost_tokens_total",
        # Of targets, containers and the exporter itself: what alerts need.
        "source_up",
        "source_errors_total",
        "container_restarts_total",
        "container_info",
        "container_last_termination_info",
        "log_events_total",
    }
)

_EXPORTED: Final[Mapping[Profile, tuple[Family, ...]]] = {
    Profile.FULL: FAMILIES,
    Profile.FLEET: tuple(
        family for family in FAMILIES if family.key in _FLEET or family.scope in (Scope.TARGET, Scope.EXPORTER)
    ),
}


def families(profile: Profile) -> tuple[Family, ...]:
    """Return the families that the profile exports, in the order of the table."""
    return _EXPORTED[profile]


def shown(profile: Profile, values: Mapping[str, object]) -> Mapping[str, object]:
    """Return the values of an engine that the profile exports.

    The fleet profile leaves out series that are 0 because their cause or symptom does not hold or nothing is unserved,
    as most are. Of tokens it exports those generated, of demand the binding constraint and those not negligible to it.
    """
    if profile is Profile.FULL:
        return values
    less: dict[str, object] = {} if values.get("queue_unserved_seconds") else {"queue_unserved_seconds": None}
    if isinstance(causes := values.get("bottleneck"), Mapping):
        less["bottleneck"] = {cause: state for cause, state in causes.items() if state}
    if isinstance(symptoms := values.get("symptom"), Mapping):
        less["symptom"] = {name: 1.0 for name in ALERTED_SYMPTOMS if symptoms.get(name)}
    if isinstance(tokens := values.get("tokens_total"), Mapping):
        less["tokens_total"] = {kind: count for kind, count in tokens.items() if kind == GENERATED}
    if isinstance(demand := values.get("demand_replicas"), Mapping) and demand:
        least = NEGLIGIBLE_RATIO * max(demand.values())
        less["demand_replicas"] = {constraint: needed for constraint, needed in demand.items() if needed >= least}
    return {**values, **less}

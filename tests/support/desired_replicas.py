"""How many replicas the recording rules request (rules/recording/replicas.yaml.j2), by what was before."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvpressure.advice.workload import demand_replicas, most_replicas
from kvpressure.config.thresholds import Thresholds


@dataclass(frozen=True)
class ReplicaReading:
    """One engine (a data-parallel rank) at one moment, by the name of its replica; `lost` ones serve nobody."""

    replica: str
    demand: Mapping[str, float]
    lost: bool = False


def required_replicas(readings: Iterable[ReplicaReading], thresholds: Thresholds) -> float | None:
    """Return the fractional replicas at which the binding constraint is at its target share; None if not known."""
    readings = list(readings)
    lost = {reading.replica for reading in readings if reading.lost}
    serving = ((reading.replica, reading.demand) for reading in readings if reading.replica not in lost)
    return max(demand.values()) / thresholds.scaling.target_ratio if (demand := demand_replicas(serving)) else None


def desired_replicas(
    readings: Sequence[ReplicaReading],
    thresholds: Thresholds,
    recent: Iterable[float] = (),
    *,
    whole: bool = True,
    before: int | None = None,
    highest_recent: int = 0,
) -> int | None:
    """Return the replicas to run now; None where nothing is known, never less than 1.

    `recent` is what `required_replicas` was in the last `scaling_down_hold_seconds`: fewer are requested once fewer
    would have been enough for `scaling_down_held_ratio` of that time. Where that time was not observed `whole`, no
    fewer than serve. More are at most `most_replicas` of those that were requested or served `before`, so long ago; of
    those that serve now, where that is not known. Of the most that were requested in twice that time,
    `highest_recent`, as many stay as `scaling_up_max_factor` brings back at once. Replicas that are lost hold nothing,
    and count beside those that are required.
    """
    required = required_replicas(readings, thresholds)
    known = [*recent, *([] if required is None else [required])]
    if not known:
        return None
    lost = {reading.replica for reading in readings if reading.lost}
    serving = {reading.replica for reading in readings} - lost
    desired = max(1, math.ceil(max(required or 0.0, _quantile(thresholds.scaling.down_held_ratio, known))))
    desired = desired if whole else max(desired, len(serving))
    if most := before or len(serving):
        desired = min(desired, most_replicas(most, thresholds))
    return max(desired, math.ceil(highest_recent / thresholds.scaling.up_max_factor)) + len(lost)


def _quantile(ratio: float, values: Sequence[float]) -> float:
    """Return the quantile as Prometheus' `quantile_over_time`: interpolated between two values."""
    ordered, rank = sorted(values), ratio * (len(values) - 1)
    below = math.floor(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)

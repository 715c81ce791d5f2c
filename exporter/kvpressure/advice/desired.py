"""How many replicas would serve all demand: from what each engine reports, as the recording rules count them.

Pure: readings of one moment in, one number out; what was required in the moments before comes from the caller.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from kvpressure.config.thresholds import Thresholds
from kvpressure.model.record import record
from kvpressure.model.values import Derived, at


@record
class ReplicaReading:
    """One engine (a data-parallel rank) of a model in a namespace, at one moment.

    `replica` names its target or pod, the same for all ranks behind one address. `demand` is `demand_replicas` by
    constraint, without those that are not known. `lost` says that it is stuck, or does not answer while requests are
    on it: then it serves nobody.
    """

    replica: str
    demand: Mapping[str, float]
    lost: bool = False

    @classmethod
    def of(cls, replica: str, derived: Derived) -> Self:
        """Return the reading of an engine that is not lost."""
        values = derived.get("demand_replicas")
        names = values if isinstance(values, Mapping) else ()
        return cls(
            replica, {name: value for name in names if (value := at(derived, "demand_replicas", name)) is not None}
        )


def demand_replicas(readings: Iterable[ReplicaReading]) -> dict[str, float]:
    """Return demand in replicas by constraint, each used fully; {} where no serving replica reports any.

    Of several ranks the one with the highest demand counts. A replica that reports nothing counts as the average of the
    others; one that reports other constraints only has little demand on this one so far.
    """
    replicas: defaultdict[str, list[ReplicaReading]] = defaultdict(list)
    for reading in readings:
        replicas[reading.replica].append(reading)
    serving = [ranks for ranks in replicas.values() if not any(rank.lost for rank in ranks)]
    reporting = [ranks for ranks in serving if any(rank.demand for rank in ranks)]
    found: defaultdict[str, float] = defaultdict(float)
    for ranks in reporting:
        for constraint in {name for rank in ranks for name in rank.demand}:
            found[constraint] += max(rank.demand.get(constraint, 0.0) for rank in ranks)
    return {constraint: demand * len(serving) / len(reporting) for constraint, demand in found.items()}


def required_replicas(readings: Iterable[ReplicaReading], thresholds: Thresholds) -> float | None:
    """Return the fractional replicas at which the binding constraint is at its target share; None if not known."""
    demand = demand_replicas(readings)
    return max(demand.values()) / thresholds.scaling.target_ratio if demand else None


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


def most_replicas(before: int, thresholds: Thresholds) -> int:
    """Return the most that may be requested `scaling_down_hold_seconds` after `before` were."""
    return max(math.floor(thresholds.scaling.up_max_factor * before), before + int(thresholds.scaling.up_step_count))


def _quantile(ratio: float, values: Sequence[float]) -> float:
    """Return the quantile as Prometheus' `quantile_over_time`: interpolated between two values."""
    ordered, rank = sorted(values), ratio * (len(values) - 1)
    below = math.floor(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)

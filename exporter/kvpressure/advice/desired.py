"""How many replicas would serve everyone who asks: from what each engine tells, as the recording rules count them.

Pure: readings of one moment in, one number out; what was required in the moments before comes from the caller.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from kvpressure.config.thresholds import Thresholds
from kvpressure.model.record import record


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


def demand_replicas(readings: Iterable[ReplicaReading]) -> dict[str, float]:
    """Replicas' worth of demand by constraint, all of it in use; {} where no replica that serves tells any.

    Of several ranks the one that is asked for most counts. A replica that tells nothing at all counts as the others do
    on average; one that tells of other constraints only has little to do with this one so far.
    """
    replicas: defaultdict[str, list[ReplicaReading]] = defaultdict(list)
    for reading in readings:
        replicas[reading.replica].append(reading)
    serving = [ranks for ranks in replicas.values() if not any(rank.lost for rank in ranks)]
    telling = [ranks for ranks in serving if any(rank.demand for rank in ranks)]
    found: defaultdict[str, float] = defaultdict(float)
    for ranks in telling:
        for constraint in {name for rank in ranks for name in rank.demand}:
            found[constraint] += max(rank.demand.get(constraint, 0.0) for rank in ranks)
    return {constraint: asked * len(serving) / len(telling) for constraint, asked in found.items()}


def required_replicas(readings: Iterable[ReplicaReading], limits: Thresholds) -> float | None:
    """Replicas, as a fraction, at which the binding constraint is at its target share; None where nothing is known."""
    demand = demand_replicas(readings)
    return max(demand.values()) / limits.scaling_target_ratio if demand else None


def desired_replicas(
    readings: Sequence[ReplicaReading], limits: Thresholds, lately: Iterable[float] = (), *, whole: bool = True
) -> int | None:
    """Replicas to run now; None where nothing is known, never less than 1.

    `lately` is what `required_replicas` was in the last `scaling_down_hold_seconds`: fewer are asked for once fewer
    would have held it for `scaling_down_held_ratio` of that time. Where that is not `whole`, because nobody was there
    to look, no fewer than serve. Replicas that are lost hold nothing, and count beside those that are required.
    """
    required = required_replicas(readings, limits)
    known = [*lately, *([] if required is None else [required])]
    if not known:
        return None
    lost = {reading.replica for reading in readings if reading.lost}
    serving = {reading.replica for reading in readings} - lost
    held = max(1, math.ceil(max(required or 0.0, _quantile(limits.scaling_down_held_ratio, known))))
    return (held if whole else max(held, len(serving))) + len(lost)


def _quantile(ratio: float, values: Sequence[float]) -> float:
    """As Prometheus' `quantile_over_time` does it: between two values in proportion."""
    ordered, rank = sorted(values), ratio * (len(values) - 1)
    below = math.floor(rank)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (rank - below)

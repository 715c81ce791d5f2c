"""Desired replicas as Prometheus counts them from the rules, and as Python does from the same readings."""

import random
from pathlib import Path
from typing import Any

from kvpressure.config.thresholds import Thresholds, load_thresholds
from tests.support import built
from tests.support.desired_replicas import ReplicaReading, desired_replicas, required_replicas
from tests.support.rules import evaluate, promtool_each

FLEETS = 40
CHANGE = 40
"""Samples of 15 s before everything changes; the rules look back on HOLD of them, and on twice as many."""
HOLD = 20
CONSTRAINTS = ("kv_tokens", "sequences", "prefill")


def fleet(rng: random.Random) -> list[list[ReplicaReading]]:
    """Readings before the change and after it: of a few replicas, some with two ranks, lost or telling nothing."""
    engines = [(f"r{number}", rng.random() < 0.15) for number in range(rng.randint(1, 6))]
    ranks = [engine for engine in engines for _ in range(rng.choice((1, 1, 2)))]
    found = []
    for _ in range(2):
        told = [
            {name: round(rng.random() * 4, 3) for name in CONSTRAINTS if rng.random() < 0.8} for _ in range(len(ranks))
        ]
        pairs = zip(ranks, told, strict=True)
        found.append([ReplicaReading(replica, demand, lost) for (replica, lost), demand in pairs])
    return found


def series(namespace: str, moments: list[list[ReplicaReading]]) -> list[dict[str, Any]]:
    """The same as series of engines: a lost one is stuck."""
    found = []
    for rank, (before, after) in enumerate(zip(*moments, strict=True)):
        labels = (
            f'job="kvpressure", instance="i", target="{before.replica}", namespace="{namespace}", '
            f'model_name="m", engine="{rank}"'
        )
        cause = "stuck" if before.lost else "healthy"
        found.append({"series": f'kvpressure_bottleneck{{{labels}, cause="{cause}"}}', "values": f"1x{2 * CHANGE}"})
        found.append({"series": f"kvpressure_engine_up{{{labels}}}", "values": f"1x{2 * CHANGE}"})
        for name in CONSTRAINTS:
            values = f"{before.demand[name]}x{CHANGE - 1}" if name in before.demand else f"_x{CHANGE}"
            gone = "stale" if name in before.demand else "_"
            values += f" {after.demand[name]}x{CHANGE - 1}" if name in after.demand else f" {gone} _x{CHANGE - 1}"
            found.append({"series": f'kvpressure_demand_replicas{{{labels}, constraint="{name}"}}', "values": values})
    return found


def expected(namespace: str, value: float | None) -> list[dict[str, Any]]:
    labels = f'kvpressure_desired_replicas{{namespace="{namespace}", model_name="m"}}'
    return [] if value is None else [{"labels": labels, "value": value}]


def played(moments: list[list[ReplicaReading]], limits: Thresholds) -> list[int | None]:
    """What the function says at each sample, given what it said at those before."""
    required, held, most = list[float | None](), list[int | None](), list[int | None]()
    for at in range(2 * CHANGE):
        readings = moments[at >= CHANGE]
        lost = lost_at(readings)
        serving = len({one.replica for one in readings} - lost)
        found = desired_replicas(
            readings,
            limits,
            [value for value in required[-HOLD:] if value is not None],
            whole=at >= HOLD and required[-HOLD] is not None,
            before=most[-HOLD] if at >= HOLD else None,
            highest_recent=max((value for value in held[-2 * HOLD :] if value is not None), default=0),
        )
        required.append(required_replicas(readings, limits))
        held.append(None if found is None else found - len(lost))
        most.append(max(serving, held[-1] or 0))
    return [None if value is None else value + len(lost_at(moments[at >= CHANGE])) for at, value in enumerate(held)]


def lost_at(readings: list[ReplicaReading]) -> set[str]:
    return {one.replica for one in readings if one.lost}


@promtool_each
def test_the_rules_and_the_function_agree_on_fleets_of_all_kinds(promtool: str, tmp_path: Path) -> None:
    rng, limits = random.Random(15), load_thresholds()
    fleets = {f"n{number}": fleet(rng) for number in range(FLEETS)}
    asked, inputs = [], []
    for name, (before, after) in fleets.items():
        inputs += series(name, [before, after])
        desired = played([before, after], limits)
        for minute in (2, 8, 11, 19):
            at, value = f"{minute}m", desired[4 * minute]
            asked.append(
                {
                    "expr": f'kvpressure_desired_replicas{{namespace="{name}"}}',
                    "eval_time": at,
                    "exp_samples": expected(name, value),
                }
            )
    rules = built.bundle() / "prometheus" / "recording" / "replicas.yaml"
    evaluate(promtool, tmp_path, [rules], {"interval": "15s", "input_series": inputs, "promql_expr_test": asked})

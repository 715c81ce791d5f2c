"""Routing by prompt length: the servers for short and for long prompts are simulated apart and averaged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from kvpressure.simulation.outcome import Outcome
from kvpressure.simulation.scheduler import simulate
from kvpressure.simulation.server import Demand, LengthRouting, Server


def simulated(
    server: Server, demand: Demand, limit_seconds: float = math.inf, answers: int | None = None
) -> Outcome | None:
    """Return the outcome, the mean over all servers with length routing; None where some clients are never answered.

    `answers` is as for `simulate`.
    """
    if demand.length_routing is None:
        return _of_mean_server(server, demand, limit_seconds, answers)
    found = []
    for part, servers in parts(demand, demand.length_routing):
        outcome = _of_mean_server(server, part, limit_seconds, answers)
        if outcome is None:
            return None
        found.append((servers, outcome))
    return _together(found) if found else None


def _of_mean_server(server: Server, demand: Demand, limit_seconds: float, answers: int | None) -> Outcome | None:
    outcome = simulate(server, demand, limit_seconds, answers=answers)
    return outcome if outcome is None or demand.busy_ratio == 1 else outcome.of_mean_server(demand.busy_ratio)


def parts(demand: Demand, length_routing: LengthRouting) -> Iterator[tuple[Demand, int]]:
    """Yield the demand of one server of each kind, and the number of such servers."""
    for are_long, servers in ((False, length_routing.short), (True, length_routing.long)):
        requests = tuple(shape for shape in demand.requests if (shape.prompt > length_routing.tokens) is are_long)
        if not requests:
            continue
        share = len(requests) / len(demand.requests)
        part = replace(
            demand,
            requests=requests,
            clients=max(1, round(share * demand.clients)) if demand.clients else 0,
            rate=share * demand.rate,
            queue=round(share * demand.queue),
            length_routing=None,
        )
        yield part.divided(servers), servers


def _together(found: Sequence[tuple[int, Outcome]]) -> Outcome:
    """Return the mean over servers; latencies and ratios are weighted by answers."""
    total = sum(servers for servers, _ in found)
    answers = sum(servers * outcome.answers_per_second for servers, outcome in found)

    def mean(name: str) -> float:
        return float(sum(servers * getattr(outcome, name) for servers, outcome in found) / total)

    def by_answers(name: str) -> float:
        return float(
            sum(servers * outcome.answers_per_second * getattr(outcome, name) for servers, outcome in found) / answers
        )

    weighted = sorted(
        (seconds, servers * outcome.answers_per_second / len(outcome.latencies))
        for servers, outcome in found
        for seconds in outcome.latencies
    )
    of_servers = ("tokens_per_second", "goodput", "weighted_goodput", "running", "waiting", "preempted_per_second")
    of_answers = ("preempted_ratio", "refused_ratio", "shortened_ratio")
    return Outcome(
        **{name: mean(name) for name in of_servers},
        **{name: by_answers(name) for name in of_answers},
        latency_p95=_quantile(weighted, 0.95 * answers),
        answers_per_second=answers / total,
        latencies=tuple(seconds for seconds, _ in weighted),
        hits_by_pool=(),
    )


def _quantile(weighted: Sequence[tuple[float, float]], least: float) -> float:
    below = 0.0
    for seconds, weight in weighted:
        below += weight
        if below >= least:
            return seconds
    return weighted[-1][0]

"""Short and long requests on servers of their own: simulated as two kinds of servers, told as one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from kvpressure.whatif.run import Outcome, simulate
from kvpressure.whatif.server import Apart, Asked, Demand, Server


def simulated(server: Server, demand: Demand, limit_seconds: float = math.inf) -> Outcome | None:
    """What clients get, a mean of all servers where requests are kept apart; None where some are never answered."""
    if demand.apart is None:
        return simulate(server, demand, limit_seconds)
    found = []
    for part, servers in parts(demand, demand.apart):
        outcome = simulate(server, part, limit_seconds)
        if outcome is None:
            return None
        found.append((servers, outcome))
    return _together(found) if found else None


def parts(demand: Demand, apart: Apart) -> Iterator[tuple[Demand, int]]:
    """What one server of each kind is asked, and how many there are of it."""
    short = tuple(one for one in demand.asked if one.prompt <= apart.tokens)
    long = tuple(one for one in demand.asked if one.prompt > apart.tokens)
    for asked, servers in ((short, apart.short), (long, apart.long)):
        if asked:
            yield _part(demand, asked).divided(servers), servers


def _part(demand: Demand, asked: tuple[Asked, ...]) -> Demand:
    share = len(asked) / len(demand.asked)
    clients = max(1, round(share * demand.clients)) if demand.clients else 0
    return replace(
        demand, asked=asked, clients=clients, rate=share * demand.rate, queue=round(share * demand.queue), apart=None
    )


def _together(found: Sequence[tuple[int, Outcome]]) -> Outcome:
    """The mean of one server; latencies and shares by how many are answered."""
    total = sum(servers for servers, _ in found)
    answers = sum(servers * one.answers_per_second for servers, one in found)

    def mean(name: str) -> float:
        return float(sum(servers * getattr(one, name) for servers, one in found) / total)

    def by_answers(name: str) -> float:
        return float(sum(servers * one.answers_per_second * getattr(one, name) for servers, one in found) / answers)

    weighed = sorted(
        (seconds, servers * one.answers_per_second / len(one.latencies))
        for servers, one in found
        for seconds in one.latencies
    )
    return Outcome(
        tokens_per_second=mean("tokens_per_second"),
        goodput=mean("goodput"),
        worth=mean("worth"),
        latency_p50=_quantile(weighed, 0.5 * answers),
        latency_p95=_quantile(weighed, 0.95 * answers),
        running=mean("running"),
        waiting=mean("waiting"),
        preempted_per_second=mean("preempted_per_second"),
        preempted_ratio=by_answers("preempted_ratio"),
        refused_ratio=by_answers("refused_ratio"),
        shortened_ratio=by_answers("shortened_ratio"),
        answers=sum(one.answers for _, one in found),
        answers_per_second=answers / total,
        latencies=tuple(seconds for seconds, _ in weighed),
    )


def _quantile(weighed: Sequence[tuple[float, float]], wanted: float) -> float:
    below = 0.0
    for seconds, weight in weighed:
        below += weight
        if below >= wanted:
            return seconds
    return weighed[-1][0]

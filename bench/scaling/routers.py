"""Who sends which request where: four routers as people have them, and one that knows what fits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from bench.scaling.shapes import Request

if TYPE_CHECKING:
    from bench.scaling.replica import Replica

Router = Callable[[Request, Sequence["Replica"]], "Replica"]
WORTH_MIN_RATIO: Final = 0.5
"""A prefix-affine router follows a prefix that is this share of the prompt or more."""
BEST: Final = "where it fits"


def round_robin() -> Router:
    """In turn."""
    turns = itertools.count()
    return lambda _, replicas: replicas[next(turns) % len(replicas)]


def least_requests() -> Router:
    """To the one with the fewest requests, which run or wait."""
    return lambda _, replicas: min(replicas, key=lambda one: len(one.requests))


def session_sticky() -> Router:
    """By the session alone."""
    return lambda request, replicas: replicas[request.session % len(replicas)]


def prefix_affine() -> Router:
    """To the one that had the prefix last, if that is much of the prompt; else to the one with the fewest requests."""
    had: dict[int, Replica] = {}
    fewest = least_requests()

    def send(request: Request, replicas: Sequence[Replica]) -> Replica:
        worth = request.shared >= WORTH_MIN_RATIO * request.prompt
        chosen = had[request.session] if worth and request.session in had else fewest(request, replicas)
        had[request.session] = chosen
        return chosen

    return send


def where_it_fits() -> Router:
    """To the one with the fewest tokens, times how slow it is; a prefix that it has counts for it."""
    had: dict[int, set[int]] = {}

    def cost(request: Request, one: Replica) -> float:
        found = request.shared if one.number in had.get(request.session, ()) else 0
        tokens = sum(other.prompt + other.output for other in one.requests.values())
        return one.slower * (tokens + request.prompt + request.output - found)

    def send(request: Request, replicas: Sequence[Replica]) -> Replica:
        chosen = min(replicas, key=lambda one: cost(request, one))
        had.setdefault(request.session, set()).add(chosen.number)
        return chosen

    return send


ROUTERS: Final[Mapping[str, Callable[[], Router]]] = {
    "round robin": round_robin,
    "least requests": least_requests,
    "session-sticky": session_sticky,
    "prefix-affine": prefix_affine,
}

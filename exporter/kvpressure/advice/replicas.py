"""More servers, or the other ones that there are."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kvpressure.advice.case import Case
from kvpressure.advice.shell import add_replica
from kvpressure.advice.verify import expected as check
from kvpressure.advice.verify import series
from kvpressure.model.action import Action, Expected
from kvpressure.simulation.config_changes import MAX_REPLICAS
from kvpressure.simulation.config_changes import replicas as servers
from kvpressure.simulation.consequences import Model
from kvpressure.simulation.greedy_search import Choice

NAMED_PEERS: Final = 3


def replica(case: Case, why: str, total: int | None = None, expected: Expected | None = None) -> Action:
    """Return the action that adds a replica, or as many that there are `total` for each one now."""
    more = total is not None and total > 2
    return Action(
        key="add_replica",
        title="Add replicas" if more else "Add a replica",
        new="" if total is None else f"{total} for each one that serves this traffic now",
        why=why,
        cost="Another GPU (or set of GPUs) for as long as it runs." if not more else "As many GPUs (or sets of them).",
        checks=(
            "Within 15 minutes it is ready, and traffic is shared:",
            f"{series('requests_waiting', case.place)} < 1",
        ),
        commands=add_replica(case.place, total),
        expected=expected,
    )


def replicas(case: Case, choice: Choice, why: str) -> Action | None:
    """Return the action that adds the chosen number of replicas; None where none is chosen."""
    step = choice.step("add_replica")
    return None if step is None else replica(case, why, int(step.change.value), step.expected)


def route(case: Case, model: Model | None = None) -> Action | None:
    """Send requests to the other replicas; None where none is known to have room.

    Expected is, at best, what as many servers do that share these clients: the others have clients of their own.
    """
    most = case.thresholds.routing_room_max_ratio
    free = [peer for peer in case.peers if peer.usage_ratio <= most and peer.waiting < 1]
    free.sort(key=lambda peer: peer.usage_ratio)
    if not free:
        return None
    named = ", ".join(f"{peer.target} ({peer.usage_ratio:.0%} of its KV cache)" for peer in free[:NAMED_PEERS])
    more = f" and {len(free) - NAMED_PEERS} more" if len(free) > NAMED_PEERS else ""
    shares = None if model is None else model.expected([], [servers(min(1 + len(free), MAX_REPLICAS))])
    return Action(
        key="route",
        title="Send requests to the replicas that have room",
        why=f"While requests wait here, {named}{more} could take them: the router does not look at what fits.",
        cost="None, where the router can: by free KV cache or by requests waiting; those with the same long prefix "
        "together. Sessions that have to stay with their replica stay.",
        checks=(
            "Within 2 minutes, without a restart:",
            f"{series('requests_waiting', case.place)} < 1",
            check(case, "admission_blocked_ratio", "<", case.thresholds.admission_blocked_min_ratio),
        ),
        expected=None if shares is None else replace(shares, at_best=True),
        unpredicted="" if shares else "what the other replicas would do with these requests is not known",
    )

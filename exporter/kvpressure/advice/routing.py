"""Requests to replicas that have room, before anything is changed or added."""

from __future__ import annotations

from dataclasses import replace

from kvpressure.advice.case import Case
from kvpressure.advice.verify import expected as check
from kvpressure.advice.verify import series
from kvpressure.model.action import Action
from kvpressure.whatif.config_changes import MAX_REPLICAS, replicas
from kvpressure.whatif.consequences import Model

NAMED = 3


def route(case: Case, model: Model | None = None) -> Action | None:
    """Send requests to the other replicas; None where none is known to have room.

    Expected is, at best, what as many servers do that share these clients: the others have clients of their own.
    """
    most = case.thresholds.routing_room_max_ratio
    free = [peer for peer in case.peers if peer.usage_ratio <= most and peer.waiting < 1]
    free.sort(key=lambda peer: peer.usage_ratio)
    if not free:
        return None
    named = ", ".join(f"{peer.target} ({peer.usage_ratio:.0%} of its KV cache)" for peer in free[:NAMED])
    more = f" and {len(free) - NAMED} more" if len(free) > NAMED else ""
    shares = None if model is None else model.expected([], [replicas(min(1 + len(free), MAX_REPLICAS))])
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

"""More servers, the other ones that there are, or some for long prompts only."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from kvpressure.advice.batch import beyond_knee, demand
from kvpressure.advice.case import Case
from kvpressure.advice.edge import share_text
from kvpressure.advice.forecast import as_shown
from kvpressure.advice.rollout import no_longer, unblocked, unpreempted, unqueued
from kvpressure.advice.shell import add_replica, look_again, times_as_many
from kvpressure.model.action import Action, Expected
from kvpressure.model.values import at, number
from kvpressure.simulation.config_changes import MAX_REPLICAS, ROUTE_BY_LENGTH
from kvpressure.simulation.config_changes import replicas as servers
from kvpressure.simulation.consequences import Model
from kvpressure.simulation.greedy_search import Choice, Step

NAMED_PEERS: Final = 3
NO_POOL: Final = "The requests need a larger KV pool than this engine has; a new replica adds its own."


def replica(case: Case, why: str, total: int | None, expected: Expected | None = None) -> Action:
    """Return the action that adds replicas, so that there are `total` for each one now; one where that is not known."""
    more, role = total is not None and total > 2, f"{case.role} " if case.role else ""
    left = 0.0 if expected is None else expected.waiting.after / expected.servers
    # What holds a batch today holds it there too.
    running = min(demand(case) / (total or 2), at(case.derived, "requests_running") or 0.0)
    return Action(
        key="add_replica",
        title=f"Add {role}replicas" if more else f"Add a {role}replica",
        new="" if total is None else times_as_many(total),
        why=f"{why}{beyond_knee(case, running)}",
        cost="Another GPU (or set of GPUs) for as long as it runs." if not more else "As many GPUs (or sets of them).",
        checks=(
            "Within 15 minutes it is ready, and traffic is shared. Of each replica:",
            unqueued(case, max(1, math.ceil(left + 0.5))),
        ),
        commands=add_replica(case.place, total),
        expected=expected,
        value=2.0 if total is None else total,
    )


def replicas(case: Case, choice: Choice | None, why: str) -> Action | None:
    """Return the action that adds the chosen replicas; those that demand takes where nothing is predicted."""
    if choice is None:
        return None if case.replicas == 1 else replica(case, why, case.replicas)
    step = choice.step("add_replica")
    return None if step is None else replica(case, why, int(step.change.value), step.expected)


def replicas_as_predicted(case: Case, model: Model, step: Step) -> Action:
    """Return the action that adds replicas for the requests that wait whatever else is changed."""
    return replica(case, f"{_overload(model, step)}{NO_POOL}", int(step.change.value), step.expected)


def enough(case: Case, model: Model) -> Action:
    """Return the action to change nothing yet: what arrives is served, and nothing has it answered sooner."""
    return Action(
        key="look_longer",
        title="Change nothing yet: one replica serves what arrives",
        why=f"{model.arriving_per_second():.2g} requests arrive per second and one replica serves "
        f"{model.served_per_second():.2g}: kvpressure_desired_replicas counts 1. Bursts fill the KV cache, and nothing "
        "that was tried has more of them answered in time.",
        cost="A minute.",
        checks=no_longer(case, "kv_cache_pressure", "10 minutes"),
        commands=look_again(case.place),
    )


def _overload(model: Model, step: Step) -> str:
    """Return in words what arrives beside what is served; "" where no queue grows."""
    if not model.queue_grows:
        return ""
    return (
        f"{model.arriving_per_second():.2g} requests arrive per second and one replica serves "
        f"{model.served_per_second():.2g}: {step.change.by} serve {model.served_per_second([step.change]):.2g}, and "
        "kvpressure_desired_replicas counts as many for each one now. "
    )


def route(case: Case, model: Model | None = None) -> Action | None:
    """Send requests to the other replicas; None where none is known to have room.

    Expected is, at best, what as many servers do that share these clients: the others have clients of their own.
    """
    most = case.thresholds.room.routing_room_max_ratio
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
            unqueued(case),
            unblocked(case),
        ),
        expected=None if shares is None else as_shown(case.derived, case.thresholds, replace(shares, at_best=True)),
        unpredicted="" if shares else "what the other replicas would do with these requests is not known",
    )


def keep_apart(case: Case, model: Model, step: Step) -> Action:
    """Return the action that routes short and long prompts to deployments of their own."""
    tokens, change = int(step.change.value), step.change
    return Action(
        key=ROUTE_BY_LENGTH,
        title="Serve short and long prompts on deployments of their own",
        new=f"prompts up to {number(tokens)} on {change.by - change.long}, longer ones on {change.long}, "
        "for each server now",
        why=f"Long prompts ({share_text(*model.known.prompts.above(tokens))}) hold the pool while short ones wait. The "
        "same number of servers for all of them does less, as simulated.",
        cost="As many GPUs (or sets of them), and a gateway that sends requests by the length of their prompts.",
        checks=("Within 15 minutes both are ready. Of each replica:", unblocked(case), unpreempted(case)),
        commands=(
            f"# at the gateway: prompts longer than {tokens} tokens to the deployment for long ones",
            *add_replica(case.place),
        ),
        expected=step.expected,
    )

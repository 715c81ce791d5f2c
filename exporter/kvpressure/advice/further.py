"""Cures that change what is done with requests that do not fit: their order, and what is kept of them."""

from __future__ import annotations

from kvpressure.advice.case import Case
from kvpressure.advice.shell import add_replica
from kvpressure.advice.verify import expected
from kvpressure.model.action import Action
from kvpressure.model.values import number
from kvpressure.simulation.config_changes import APART, OFFLOAD, PREFIX_CACHING, SHORT_FIRST
from kvpressure.simulation.consequences import Model
from kvpressure.simulation.greedy_search import Step


def by_priority(case: Case, model: Model, step: Step) -> Action:
    """Return the action that schedules short prompts before long ones."""
    tokens = int(step.change.value)
    least, most = model.known.prompts.above(tokens)
    return Action(
        key=SHORT_FIRST,
        title=f"Let prompts up to {number(tokens)} tokens go first",
        current="first come, first served unless set",
        new=f"{case.own.by_priority}; priority 0 up to {number(tokens)} tokens, 1 beyond",
        why=f"{_share(least, most)} of the prompts are longer: one at the head of the queue that does not fit keeps "
        "all behind it waiting, also those that would fit.",
        cost="Long prompts wait as long as any short one does, and are preempted first: under lasting load they may "
        "not be answered at all. Clients, or the gateway, have to send priority with each request.",
        checks=_calm(case),
        commands=(f'# clients or the gateway: "priority": 1 in requests whose prompt is longer than {tokens} tokens',),
        flags=case.own.change(SHORT_FIRST, case.own.by_priority),
        expected=step.expected,
    )


def caching(case: Case, _: Model, step: Step) -> Action:
    """Return the action that switches prefix caching on."""
    return Action(
        key=PREFIX_CACHING,
        title="Switch prefix caching on",
        current="off (page)",
        new="on",
        why="A preempted request finds what is left of its KV, and need not recompute it. What "
        "prompts share comes on top: with caching off the page does not tell how much that is.",
        cost="Hardly any: hashing of prompts. Answers' first tokens may show who asked the same before.",
        checks=_calm(case),
        flags=case.own.change(PREFIX_CACHING, ""),
        expected=step.expected,
    )


def tier(case: Case, _: Model, step: Step) -> Action:
    """Return the action that keeps the KV of preempted requests in host memory."""
    size = number(step.change.value)
    return Action(
        key=OFFLOAD,
        title="Keep preempted KV in host memory",
        current="not visible (none unless set)",
        new=f"{size} GiB for each GPU of a replica",
        why="Preempted requests are loaded again instead of recomputed. How long that takes depends on the "
        "way between host and GPU, which the page does not tell.",
        cost=f"{size} GiB of host memory for each GPU, beside what the server has. With several GPUs the flag takes "
        "their sum. Leave it out where another connector is configured.",
        checks=_calm(case),
        flags=case.own.change(OFFLOAD, size),
        expected=step.expected,
    )


def keep_apart(case: Case, model: Model, step: Step) -> Action:
    """Return the action that routes short and long prompts to deployments of their own."""
    tokens, change = int(step.change.value), step.change
    least, most = model.known.prompts.above(tokens)
    return Action(
        key=APART,
        title="Serve short and long prompts on deployments of their own",
        new=f"prompts up to {number(tokens)} on {change.by - change.long}, longer ones on {change.long}, "
        "for each server now",
        why=f"Long prompts ({_share(least, most)}) hold the pool while short ones wait. The same number of servers for "
        "all of them does less, as simulated.",
        cost="As many GPUs (or sets of them), and a gateway that sends requests by the length of their prompts.",
        checks=_calm(case),
        commands=(
            f"# at the gateway: prompts longer than {tokens} tokens to the deployment for long ones",
            *add_replica(case.place),
        ),
        expected=step.expected,
    )


def _share(least: float, most: float) -> str:
    return f"{most:.0%}" if round(100 * least) == round(100 * most) else f"{least:.0%} to {most:.0%}"


def _calm(case: Case) -> tuple[str, ...]:
    return (
        "Within 2 minutes of the restart:",
        expected(case, "admission_blocked_ratio", "<", case.thresholds.admission_blocked_min_ratio),
        expected(case, "preempted_request_ratio", "<", case.thresholds.preempting_min_ratio),
    )

"""More servers."""

from __future__ import annotations

from kvpressure.advice.case import Case
from kvpressure.advice.shell import add_replica
from kvpressure.advice.verify import series
from kvpressure.model.action import Action
from kvpressure.model.expected import Expected
from kvpressure.whatif.greedy_search import Choice


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

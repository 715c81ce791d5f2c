"""More servers."""

from __future__ import annotations

from kvpressure.advice.case import Case
from kvpressure.advice.shell import add_replica
from kvpressure.advice.verify import series
from kvpressure.model.action import Action
from kvpressure.model.expected import Expected
from kvpressure.whatif.greedy_search import Choice


def replica(case: Case, why: str, total: int | None = None, expected: Expected | None = None) -> Action:
    """One more server, or as many that there are `total` for each one now."""
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
    """As many servers as were chosen; None where none was."""
    step = choice.step("add_replica")
    return None if step is None else replica(case, why, int(step.change.value), step.expected)

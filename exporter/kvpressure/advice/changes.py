"""Changes that a runtime knows of, as actions."""

from __future__ import annotations

from kvpressure.model.action import Action
from kvpressure.runtimes.advising import Change


def changed(change: Change, checks: tuple[str, ...]) -> Action:
    """Return the action that makes the change."""
    return Action(
        key=change.key,
        title=change.title,
        current=change.current,
        new=change.value,
        why=change.why,
        cost=change.cost,
        checks=checks,
        flags={change.flag: change.value},
    )

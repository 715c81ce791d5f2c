"""Why nothing is predicted of an action, where nothing is: it says so, in a phrase."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from kvpressure.model.action import Action
from kvpressure.model.verdict import Cause

_CHANGE_NOTHING: Final = frozenset(
    {
        "apply",
        "another_limit",
        "look_longer",
        "measure",
        "save_evidence",
        "see_what_is_waited_for",
        "see_whether_it_runs",
        "verify",
        "would_not_help",
    }
)
"""What only looks, or puts in force what other actions have told."""
_BY_ACTION: Final = {
    "restart": "a restart changes no limit",
    "host_memory": "it keeps the server alive, and changes nothing that it does",
    "less_work": "the page does not tell how long the steps of another model would take",
    "queue_limit": "the page does not tell how long the requests were that were refused",
}
_BY_CAUSE: Final = {
    Cause.HOST_BOUND: "the time passes outside the engine's steps, and only these are simulated",
    Cause.STUCK: "the engine does nothing, so there is nothing to start from",
    Cause.HEALTHY: "nothing is lost yet that could be won back",
}
_ELSE: Final = "too little is known of the traffic"


def explained(actions: Sequence[Action | None], cause: Cause, reason: str = "") -> list[Action]:
    """Return the actions that exist; those without a predicted effect say why, with `reason` as the fallback."""
    return [_explained(action, cause, reason) for action in actions if action is not None]


def _explained(action: Action, cause: Cause, reason: str) -> Action:
    stays = action.key == "memory_headroom" and not action.flags
    if action.expected is not None or action.unpredicted or action.key in _CHANGE_NOTHING or stays:
        return action
    why = _BY_CAUSE.get(cause) or _BY_ACTION.get(action.key) or reason or _ELSE
    return replace(action, unpredicted=why)

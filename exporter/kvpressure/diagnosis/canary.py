"""What the answer to a request of one token changes about whether an engine is stuck."""

from __future__ import annotations

from collections.abc import Mapping

from kvpressure.diagnosis.inputs import Inputs
from kvpressure.features.canary import CANARY_UNANSWERED
from kvpressure.model.verdict import Cause, Evidence

Symptoms = Mapping[str, Evidence]


def unanswered(symptoms: Symptoms) -> bool | None:
    """Whether a request of one token got no answer; None where none was sent or it tells nothing."""
    told = symptoms.get(CANARY_UNANSWERED)
    return None if told is None else told.state


def answered_while_still(inputs: Inputs, symptoms: Symptoms) -> bool:
    """Whether the page stands still as that of a stuck engine does, and the engine answers."""
    still = inputs.recent.progress.standing_seconds
    return unanswered(symptoms) is False and still >= inputs.thresholds.stuck_min_seconds


def weighed(found: Cause | None, symptoms: Symptoms) -> Cause | None:
    """What is left of `found`, the cause of no progress that the page speaks for (None for none), after the answer.

    Whoever gives no token is stuck, with an idle page too. Whoever gives one is not: then the page's numbers are late,
    which nothing can be judged from but whether the host is to blame.
    """
    silent = unanswered(symptoms)
    if found is None:
        return Cause.STUCK if silent else None
    if found is not Cause.STUCK or silent is not False:
        return found
    pressed = symptoms["frontend_slow"].state or symptoms["cpu_pressed"].state
    return Cause.HOST_BOUND if pressed else Cause.UNKNOWN

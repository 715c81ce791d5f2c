"""What to do about an engine that serves nobody: save the evidence, free what it stands on, replace it.

Nothing here buys capacity: a server more does not wake this one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from kvpressure.advice.case import Case
from kvpressure.advice.rollout import generates, no_longer
from kvpressure.advice.shell import look_again, replace_stuck, save_evidence
from kvpressure.model.action import Action
from kvpressure.model.values import number

_WITHIN: Final = "2 minutes after it"


def stuck(case: Case) -> tuple[list[Action | None], str]:
    """Return the actions for a stuck server: save the evidence, end what blocks it where that is known, replace it."""
    cure = _CURES.get(case.diagnosis.detail)
    return [_evidence(case), None if cure is None else cure(case), _restart(case)], ""


def _evidence(case: Case) -> Action:
    symptom = _SYMPTOMS.get(case.diagnosis.detail, "It has requests, and nothing moves")
    return Action(
        key="save_evidence",
        title="First save the evidence: it is gone after the restart",
        why=f"{symptom}: the engine hangs. Its stacks say where.",
        cost="A minute. Reading the stacks does not change the process. py-spy comes from PyPI: where that cannot "
        "be reached, use an image that has it.",
        checks=("stacks.txt, engine.log and page.prom are not empty.",),
        commands=save_evidence(case.place),
    )


def _restart(case: Case) -> Action:
    why = "A hung engine does not come back by itself; the other replicas go on serving."
    if case.diagnosis.detail in _COMES_BACK:
        why = "Where the request is not known, this ends it; but it comes back with its client's next try."
    return Action(
        key="restart",
        title="Replace this server only",
        why=why,
        cost="The requests that wait on it are lost: clients have to send them again.",
        checks=no_longer(
            case,
            case.diagnosis.cause.value,
            "2 minutes after the new server is ready",
            generates(case),
        ),
        commands=replace_stuck(case.place),
    )


def _abort(case: Case) -> Action:
    """Return the action that ends the one request that cannot be served, and refuses the next like it."""
    capacity, words = case.capacity, case.own.words.limits
    least = "the tokens of the KV cache" if capacity is None else f"{number(capacity)} tokens"
    return Action(
        key="abort_request",
        title="End the request that cannot be served, and refuse others like it",
        new=f"prompt and answer below {least}, at the gateway or by {words['max_model_len']}",
        why="A prompt that does not fit the whole cache, or fits it without its answer, is tried for ever, and all "
        "others wait behind it. It ends when its client closes the connection; a restart alone brings it back with "
        "the client's next try.",
        cost="That request is refused: it needs a server with a larger cache.",
        checks=no_longer(case, case.diagnosis.cause.value, _WITHIN),
        commands=look_again(case.place),
    )


def _release(case: Case) -> Action:
    """Return the action that frees blocks which a connector holds."""
    return Action(
        key="release_blocks",
        title="End the requests that hold the cache, then stop or cap the connector",
        new=case.own.words.connector,
        why="Requests that are not in the batch hold blocks that those in the queue need, and neither goes on: KV that "
        "is being loaded or sent is kept until the connector is done with it. Caps on tokens or another server do not "
        "free them.",
        cost="The requests that hold blocks are lost: clients have to send them again.",
        checks=no_longer(case, case.diagnosis.cause.value, _WITHIN),
        commands=look_again(case.place),
    )


def _what_for(case: Case) -> Action:
    return Action(
        key="see_what_is_waited_for",
        title="See what the deferred requests wait for",
        why="All that wait are put off for something outside the batch: KV from another pod or an offload tier, a "
        "grammar, a slot for an adapter. It has not come for minutes. The engine's log names it; where it is another "
        "pod, look at that one first.",
        cost="A minute.",
        checks=no_longer(case, case.diagnosis.cause.value, _WITHIN),
        commands=look_again(case.place),
    )


_CURES: Final[Mapping[str, Callable[[Case], Action]]] = {
    "looping": _abort,
    "too_large": _abort,
    "held_blocks": _release,
    "stranded": _release,
    "deferred": _what_for,
}
"""What ends the stretch without a restart, by detail."""

_SYMPTOMS: Final[Mapping[str, str]] = {
    "held_blocks": "Nothing runs, and requests that do not run hold the cache",
    "stranded": "Nothing runs, and requests that do not run hold the cache",
    "looping": "It computes, and nothing comes of it",
    "trickle": "It has requests, and hardly a token comes",
    "crawling": "Its steps take many times as long as before",
}

_COMES_BACK: Final = frozenset({"looping", "too_large"})

"""PURE: the one recommendation of an incident: when its first step is settled, and when another one takes its place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kvpressure.config.thresholds import Thresholds
from kvpressure.model.action import NOW, Action
from kvpressure.model.catalogue import CATALOGUE
from kvpressure.model.limits import LEARNED, Limits
from kvpressure.model.verdict import Cause, Diagnosis

Change = tuple[str, float | None]
"""Key and value of the change that stands; ("", None) where none does."""
Actions = tuple[Action, ...]

NOTHING: Final[Change] = ("", None)
REFUTED: Final = "the step before is not predicted to help any more"
COUNTED: Final = "add_replica"
LOOK: Final = "look_longer"
"""Key of what comes before any change while nothing is known well enough: it does not stand."""
UNPREDICTED: Final = "the traffic known now allows no prediction"
_LIMITS: Final = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_input_tokens",
    "max_output_tokens",
    "max_model_len",
    "gpu_memory_utilization",
    "kv_capacity_tokens",
)


@dataclass(frozen=True, slots=True)
class Setup:
    """What shows that a step was taken: limits in force, replicas of the model, and restarts in the incident."""

    limits: tuple[float | None, ...]
    replicas: int
    restarts: int

    @classmethod
    def of(cls, limits: Limits, replicas: int, *, restarts: int) -> Setup:
        """Return the setup, without limits that were only learned from the batch."""
        in_force = [getattr(limits, name) for name in _LIMITS]
        return cls(
            tuple(None if limit is None or limit.source == LEARNED else limit.value for limit in in_force),
            replicas,
            restarts,
        )

    def done_since(self, before: Setup) -> str:
        """Return what was done since `before`, as a sentence; "" where nothing was."""
        # A limit that becomes known was not changed.
        changed = [a for a, b in zip(before.limits, self.limits, strict=True) if None not in (a, b) and a != b]
        if changed:
            return "the limits were changed, and the cause persists"
        if self.replicas > before.replicas:
            return f"there are {self.replicas} replicas instead of {before.replicas}, and the cause persists"
        return "the server was restarted, and the cause persists" if self.restarts > before.restarts else ""


@dataclass(frozen=True, slots=True)
class _Standing:
    step: Action
    since: float
    revised: str
    cause: Cause
    detail: str
    setup: Setup


class Recommendation:
    """The first step for one engine, from ask to ask.

    It is settled once the verdict is `advice_settle_seconds` old, and stays. Another one takes its place when, for as
    long, the verdict is another, it was done and the cause persists, or it is no longer predicted to help; a step that
    was refuted does not come back. What it does is predicted anew each time, for the value that it was settled with.
    While the newest polls do not support the verdict, a step that needs a restart makes way for another look.
    """

    def __init__(self) -> None:
        self._standing: _Standing | None = None
        self._refuted: set[str] = set()
        self._against = ""
        self._against_since = 0.0

    def follow(
        self,
        diagnosis: Diagnosis,
        setup: Setup,
        thresholds: Thresholds,
        advise: Callable[[Change], Sequence[Action]],
    ) -> Actions:
        """Return the actions at the time of `diagnosis`, the step that stands first.

        `advise` gives the actions with the change that stands at its value.
        """
        t, settle = diagnosis.t, thresholds.advice.settle_seconds
        stands, calm = self._standing, CATALOGUE[diagnosis.cause].calm
        actions = tuple(advise(NOTHING if stands is None else (stands.step.key, stands.step.value)))
        unsure = bool(actions) and actions[0].key == LOOK
        if unsure or (stands is None and t - diagnosis.since < settle):
            # Between two bursts what needs no restart stays, and the look comes after it.
            stays = stands is not None and stands.cause is diagnosis.cause and stands.step.when == NOW
            return _first(stands, actions) if stands is not None and stays else actions
        if stands is None:
            if calm:
                self._refuted.clear()
                return actions
            return self._settle(diagnosis, setup, actions, "")
        against = _against(stands, diagnosis, setup, actions)
        if against != self._against:
            self._against, self._against_since = against, t
        lasts = bool(against) and t - self._against_since >= settle
        if calm:
            if lasts:  # the incident is over, and the next one begins anew
                self._standing, self._against = None, ""
                self._refuted.clear()
            return actions
        if not lasts or not actions:
            return _first(stands, actions)
        return self._settle(diagnosis, setup, tuple(advise(NOTHING)), against)

    def _settle(self, diagnosis: Diagnosis, setup: Setup, actions: Actions, why: str) -> Actions:
        """Choose the first step of those that were not refuted; one that is chosen again has stood all the time.

        Where no action is a step ("do not change these"), none stands, and the next one is settled at once.
        """
        before, self._against = self._standing, ""
        if why == REFUTED and before is not None:
            self._refuted.add(before.step.key)
        changes = [action for action in actions if action.when]
        if not changes:
            self._standing = None
            return actions
        step = next((change for change in changes if change.key not in self._refuted), changes[0])
        since, revised = diagnosis.t, "" if before is None else why
        if before is not None and before.step.key == step.key:
            since, revised = before.since, before.revised
        verdict = diagnosis.cause, diagnosis.detail
        self._standing = _Standing(step, since, revised, *verdict, setup)
        return _first(self._standing, actions)


def _against(stands: _Standing, diagnosis: Diagnosis, setup: Setup, actions: Actions) -> str:
    """Return what speaks against the step that stands, as a sentence; "" where nothing does."""
    if diagnosis.cause is not stands.cause:
        return f"the cause is another than {CATALOGUE[stands.cause].label}"
    if done := setup.done_since(stands.setup):
        return done
    if diagnosis.detail != stands.detail:
        return f"it is {diagnosis.detail.replace('_', ' ')} now, and was {stands.detail.replace('_', ' ')}"
    if any(action.key == stands.step.key for action in actions):
        return ""
    predicted = any(action.expected is not None or action.key == "would_not_help" for action in actions)
    return REFUTED if predicted or stands.step.key == "route" else ""


def _first(stands: _Standing, actions: Actions) -> Actions:
    """Return the actions with the step that stands as the first; as it was settled where nothing is predicted of it.

    Replicas are always as many as demand takes now.
    """
    fresh = next((action for action in actions if action.key == stands.step.key), None)
    if fresh is None or (fresh.expected is None and fresh.new != stands.step.new and fresh.key != COUNTED):
        unpredicted = stands.step.unpredicted or UNPREDICTED if fresh is None else fresh.unpredicted
        fresh = replace(stands.step, expected=None, unpredicted=unpredicted)
    elif fresh.value == stands.step.value:
        fresh = replace(fresh, title=stands.step.title, new=stands.step.new, commands=stands.step.commands)
    first = replace(fresh, since=stands.since, revised=stands.revised)
    rest = (action for action in actions if action.key != fresh.key)
    return tuple(replace(action, order=order) for order, action in enumerate((first, *rest), 1))

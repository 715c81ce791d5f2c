"""What is recommended for each engine: one first step an incident, predicted no more often than is worth the CPU."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from kvpressure.advice.recommendation import LOOK, NOTHING, Change, Recommendation, Setup
from kvpressure.config.thresholds import Thresholds
from kvpressure.model.action import Action
from kvpressure.model.view import CALM, EngineKey, EngineView

KEPT_SECONDS: Final = 15.0
MAX_KEPT: Final = 8
"""Engines predicted in so many seconds: a second or two of CPU, in the thread that draws. Others get the playbook."""
FORGOTTEN_SECONDS: Final = 600.0
"""After so long in which nobody asked, what was recommended is another incident's."""

Actions = tuple[Action, ...]
Make = Callable[[EngineView, Change], Actions]


class Advised:
    """What was advised on each engine, as of the time of its view. For any thread, one at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps: dict[EngineKey, tuple[float, str]] = {}
        self._kept: dict[EngineKey, tuple[EngineView, Actions]] = {}
        self._recommended: dict[EngineKey, tuple[float, Recommendation]] = {}

    def advice(self, view: EngineView, thresholds: Thresholds, replicas: int, make: Make) -> Actions:
        """Return what `make` gives for the view, the recommended step first; what it gave lately, where that holds.

        `replicas` is how many there are of the engine's model.
        """
        if view.diagnosis is None or view.silence is not None:
            return make(view, NOTHING)
        with self._lock:
            actions = self._advice(view, thresholds, replicas, make)
            steps = {key: one for key, one in self._steps.items() if abs(view.t - one[0]) < FORGOTTEN_SECONDS}
            steps.pop(view.key, None)
            if actions and _is_first_step(actions[0], calm=view.diagnosis.cause in CALM):
                steps[view.key] = view.t, actions[0].key
            self._steps = steps
        return actions

    def steps(self) -> dict[EngineKey, str]:
        """Return the key of the first step for each engine, where there is one, as of its newest advice."""
        return {key: step for key, (_, step) in self._steps.items()}

    def _advice(self, view: EngineView, thresholds: Thresholds, replicas: int, make: Make) -> Actions:
        self._kept = {key: kept for key, kept in self._kept.items() if abs(view.t - kept[0].t) < KEPT_SECONDS}
        kept = self._kept.get(view.key)
        if kept is not None and _state(kept[0]) == _state(view):
            return tuple(_beside(view, thresholds, action) for action in kept[1])
        if kept is None and len(self._kept) >= MAX_KEPT:
            view = replace(view, observed=None)
        actions = self._follow(view, thresholds, replicas, make)
        if view.observed is not None:
            self._kept[view.key] = view, actions
        return actions

    def _follow(self, view: EngineView, thresholds: Thresholds, replicas: int, make: Make) -> Actions:
        lately = {key: one for key, one in self._recommended.items() if abs(view.t - one[0]) < FORGOTTEN_SECONDS}
        _, recommendation = lately.get(view.key) or (view.t, Recommendation())
        self._recommended = {**lately, view.key: (view.t, recommendation)}
        setup = Setup.of(view.limits, replicas, restarts=0 if view.incident is None else view.incident.restarts)
        if view.diagnosis is None:
            return ()
        return recommendation.follow(view.diagnosis, setup, thresholds, lambda change: make(view, change))


def _is_first_step(action: Action, *, calm: bool) -> bool:
    """Return whether this is worth saying in an alert: it stands, or it is what would be done about trouble now."""
    return action.since is not None or (not calm and bool(action.when) and action.key != LOOK)


def _beside(view: EngineView, thresholds: Thresholds, action: Action) -> Action:
    """Return an action that was predicted lately, beside what is shown now."""
    if action.expected is None:
        return action
    from kvpressure.advice.forecast import as_shown  # noqa: PLC0415 - it was predicted, so this is loaded already

    return replace(action, expected=as_shown(view.derived, thresholds, action.expected))


def _state(view: EngineView) -> tuple[object, ...]:
    """Return what other advice would be given for."""
    diagnosis = view.diagnosis
    symptoms = () if diagnosis is None else tuple(one.state for one in diagnosis.symptoms.values())
    verdict = None if diagnosis is None else (diagnosis.cause, diagnosis.detail, diagnosis.stage)
    return verdict, symptoms, view.limits, view.silence is None

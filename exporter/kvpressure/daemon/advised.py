"""Advice that was predicted lately, so that whoever reloads a page does not have engines simulated again and again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from kvpressure.model.action import Action
from kvpressure.model.view import EngineKey, EngineView

KEPT_SECONDS: Final = 15.0
MAX_KEPT: Final = 8
"""Engines predicted in so many seconds: a second or two of CPU, in the thread that draws. Others get the playbook."""

Actions = tuple[Action, ...]


class Advised:
    """What was advised on each engine, as of the time of its view. For one thread."""

    def __init__(self) -> None:
        self._kept: dict[EngineKey, tuple[EngineView, Actions]] = {}

    def advice(self, view: EngineView, make: Callable[[EngineView], Actions]) -> Actions:
        """Return what `make` gives for the view, or gave lately while the same was wrong with the engine."""
        if view.observed is None:
            return make(view)
        self._kept = {key: kept for key, kept in self._kept.items() if abs(view.t - kept[0].t) < KEPT_SECONDS}
        kept = self._kept.get(view.key)
        if kept is not None and _state(kept[0]) == _state(view):
            return kept[1]
        if kept is None and len(self._kept) >= MAX_KEPT:
            return make(replace(view, observed=None))
        actions = make(view)
        self._kept[view.key] = view, actions
        return actions


def _state(view: EngineView) -> tuple[object, ...]:
    """Return what other advice would be given for."""
    diagnosis = view.diagnosis
    symptoms = () if diagnosis is None else tuple(one.state for one in diagnosis.symptoms.values())
    verdict = None if diagnosis is None else (diagnosis.cause, diagnosis.detail, diagnosis.stage)
    return verdict, symptoms, view.limits, view.silence is None

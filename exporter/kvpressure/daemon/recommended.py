"""What is recommended for each engine: one first step an incident, predicted no more often than is worth the CPU.

It is followed for engines in trouble while nobody looks, so that it is a series which alerts read.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

import structlog

from kvpressure.advice.recommendation import LOOK, NOTHING, Change, Recommendation, Setup
from kvpressure.config.thresholds import Thresholds
from kvpressure.model.action import Action
from kvpressure.model.view import CALM, EngineKey, EngineView
from kvpressure.net.threads import in_own_thread

KEPT_SECONDS: Final = 15.0
MAX_KEPT: Final = 8
"""Engines predicted in so many seconds: a second or two of CPU, in the thread that draws. Others get the playbook."""
FORGOTTEN_SECONDS: Final = 600.0
"""After so long without a look, what was recommended is another incident's."""
RESTS_FACTOR: Final = 50.0
"""Rest after each look, in seconds a second of CPU that it took: all of them take a fiftieth of a core."""
FIRST_SECONDS: Final = 10.0
"""Of a verdict, before its first look: an alert fires once, often before the verdict has settled."""
AGAIN_SECONDS: Final = 60.0
"""An engine whose verdict stays is looked at again after so long: whether its step still holds."""

Actions = tuple[Action, ...]
Make = Callable[[EngineView, Change], Actions]

log = structlog.get_logger("kvpressure.daemon.recommended")


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


class Recommender:
    """Looks at one engine at a time, in a thread: first at those without a look, then at the one looked at longest ago.

    `follow` advises on a view, as the page does; `steps` gives the first step, by engine.
    """

    def __init__(self, follow: Callable[[EngineView], object], steps: Callable[[], Mapping[EngineKey, str]]) -> None:
        self._follow, self._steps = follow, steps
        self._looked: dict[EngineKey, tuple[float, tuple[object, ...]]] = {}
        self._since: dict[EngineKey, tuple[float, object]] = {}
        self._pending: asyncio.Future[float] | None = None
        self._rests_until = 0.0

    def look(self, now: float, engines: Iterable[EngineView], thresholds: Thresholds) -> None:
        """Start a look at the engine that is due, where one is and none is under way.

        `now` is a monotonic time of this machine, as CPU is, also where the daemon's clock goes faster.
        """
        views, steps = {view.key: view for view in engines}, self._steps()
        self._since = {key: self._seen(now, view) for key, view in views.items()}
        if self._pending is not None or now < self._rests_until:
            return
        self._looked = {key: one for key, one in self._looked.items() if key in views}
        due = [view for view in views.values() if self._is_due(now, view, thresholds, stands=view.key in steps)]
        if not due:
            return
        view = min(due, key=lambda one: self._looked.get(one.key, (0.0,))[0])
        self._looked[view.key] = now, _verdict(view)

        def timed() -> float:
            self._follow(view)
            return time.thread_time()  # of a thread that does nothing else

        self._pending = in_own_thread(timed, "recommended")
        self._pending.add_done_callback(lambda done: self._done(now, done))

    def marked(self, engines: Iterable[EngineView]) -> tuple[EngineView, ...]:
        """Return the views, each with the first step for its engine; none where nothing is wrong any more."""
        steps = self._steps()
        return tuple(
            replace(view, step=steps[view.key])
            if view.key in steps and view.diagnosis is not None and view.diagnosis.cause not in CALM
            else view
            for view in engines
        )

    def _is_due(self, now: float, view: EngineView, thresholds: Thresholds, *, stands: bool) -> bool:
        diagnosis = view.diagnosis
        if diagnosis is None:
            return False
        since, settle = self._since[view.key][0], thresholds.advice_settle_seconds
        if diagnosis.cause in CALM:
            if not stands or now - since < settle:
                return False
        elif now - since < min(FIRST_SECONDS, settle):
            return False
        last = self._looked.get(view.key)
        if last is None or last[1] != _verdict(view) or now - last[0] >= AGAIN_SECONDS:
            return True
        return last[0] < since + settle <= now  # what was said before it settled is looked at again

    def _seen(self, now: float, view: EngineView) -> tuple[float, object]:
        """Return since when an engine has had its cause, and the cause."""
        cause = None if view.diagnosis is None else view.diagnosis.cause
        before = self._since.get(view.key)
        return before if before is not None and before[1] == cause else (now, cause)

    def _done(self, began: float, done: asyncio.Future[float]) -> None:
        self._pending = None
        if done.cancelled():
            return
        if (error := done.exception()) is not None:
            log.error("nothing is recommended", error=f"{type(error).__name__}: {error}; please report this")
            self._rests_until = began + AGAIN_SECONDS
        else:
            self._rests_until = began + RESTS_FACTOR * done.result()


def _verdict(view: EngineView) -> tuple[object, ...]:
    return () if view.diagnosis is None else (view.diagnosis.cause, view.diagnosis.detail)

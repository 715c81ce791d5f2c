"""What is recommended for each engine: one first step per incident, predicted within a bound of CPU.

Engines in trouble are advised on also while nobody requests a page, so that the first step is a series for alerts.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

import structlog

from kvpressure.advice.case import Case, Place
from kvpressure.advice.recommendation import LOOK, NOTHING, Change, Recommendation, Setup
from kvpressure.config.target import Target
from kvpressure.config.thresholds import Thresholds
from kvpressure.model.action import Action, step_without_gpu
from kvpressure.model.view import CALM, EngineKey, EngineView, decode_side_of, peers_of
from kvpressure.net.credentials import in_cluster
from kvpressure.net.threads import in_own_thread

KEPT_SECONDS: Final = 15.0
MAX_KEPT: Final = 8
"""Engines predicted within `KEPT_SECONDS`, one or two seconds of CPU in the thread that draws pages. Others get the
playbook."""
FORGOTTEN_SECONDS: Final = 600.0
"""A recommendation that was not followed for so long belongs to another incident."""
RESTS_FACTOR: Final = 50.0
"""Pause after each engine, per CPU second that it took: all of them take a fiftieth of a core."""
FIRST_SECONDS: Final = 10.0
"""Age of a verdict before its engine is first advised on: an alert fires once, often before the verdict is settled."""
AGAIN_SECONDS: Final = 60.0
"""Time after which an engine with the same verdict is advised on again."""

Actions = tuple[Action, ...]
Make = Callable[[EngineView, Change], Actions]

log = structlog.get_logger("kvpressure.daemon.recommended")


def make_actions(
    view: EngineView, standing: Change, *, target: Target | None, engines: Iterable[EngineView], thresholds: Thresholds
) -> Actions:
    """Return the advice on one of `engines`; `standing` is the change that was recommended before."""
    if view.diagnosis is None:
        return ()
    from kvpressure.advice.advise import advise_on  # noqa: PLC0415 - 1.5 MiB that a node without trouble never needs
    from kvpressure.advice.shell import is_loopback  # noqa: PLC0415

    on_a_host = target is not None and not view.pod and is_loopback(target.url) and not in_cluster()
    place = Place(
        namespace=view.namespace,
        pod=view.pod,
        container="" if target is None else target.container,
        url="" if target is None else target.url,
        target=view.shown.target,
        model_name=view.shown.model_name,
        runtime=view.runtime,
        kubernetes=False if on_a_host else None,
    )
    peers, decode_side = peers_of(view, engines), decode_side_of(view, engines)
    case = Case(
        view.diagnosis, view.derived, view.limits, thresholds, place, view.observed, peers, standing, decode_side
    )
    return advise_on(case, silent=view.silence is not None)


class Steps(NamedTuple):
    """Words of an engine's first step, and of the best one that needs no GPU; the second may be ""."""

    first: str
    without_gpu: str


class Advised:
    """The newest advice on each engine. For any thread, one at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps: dict[EngineKey, tuple[float, Steps]] = {}
        self._kept: dict[EngineKey, tuple[EngineView, Actions]] = {}
        self._recommended: dict[EngineKey, tuple[float, Recommendation]] = {}

    def advice(self, view: EngineView, thresholds: Thresholds, replicas: int, make: Make) -> Actions:
        """Return the actions of `make`, the recommended step first; those made lately, while the verdict is the same.

        `replicas` is the number of replicas of the engine's model.
        """
        if view.diagnosis is None or view.silence is not None:
            return make(view, NOTHING)
        with self._lock:
            actions = self._advice(view, thresholds, replicas, make)
            steps = {key: step for key, step in self._steps.items() if abs(view.t - step[0]) < FORGOTTEN_SECONDS}
            steps.pop(view.key, None)
            if actions and _is_first_step(actions[0], calm=view.diagnosis.cause in CALM):
                other = step_without_gpu(actions)
                steps[view.key] = view.t, Steps(actions[0].word, "" if other is None else other.word)
            self._steps = steps
        return actions

    def steps(self) -> dict[EngineKey, Steps]:
        """Return the steps of each engine that has a first one, by its newest advice."""
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
        lately = {key: made for key, made in self._recommended.items() if abs(view.t - made[0]) < FORGOTTEN_SECONDS}
        _, recommendation = lately.get(view.key) or (view.t, Recommendation())
        self._recommended = {**lately, view.key: (view.t, recommendation)}
        setup = Setup.of(view.limits, replicas, restarts=0 if view.incident is None else view.incident.restarts)
        if view.diagnosis is None:
            return ()
        return recommendation.follow(view.diagnosis, setup, thresholds, lambda change: make(view, change))


def _is_first_step(action: Action, *, calm: bool) -> bool:
    """Return whether an alert should name this action: it stands, or it is a remedy for the present trouble."""
    return action.since is not None or (not calm and bool(action.when) and action.key != LOOK)


def _beside(view: EngineView, thresholds: Thresholds, action: Action) -> Action:
    """Return an action of an earlier prediction, compared with the present values."""
    if action.expected is None:
        return action
    from kvpressure.advice.forecast import as_shown  # noqa: PLC0415 - it was predicted, so this is loaded already

    return replace(action, expected=as_shown(view.derived, thresholds, action.expected))


def _state(view: EngineView) -> tuple[object, ...]:
    """Return the state of an engine that its advice depends on."""
    diagnosis = view.diagnosis
    symptoms = () if diagnosis is None else tuple(evidence.state for evidence in diagnosis.symptoms.values())
    verdict = None if diagnosis is None else (diagnosis.cause, diagnosis.detail, diagnosis.stage)
    return verdict, symptoms, view.limits, view.silence is None


class Recommender:
    """Advises on one engine at a time, in a thread: first on new ones, then on the one that has waited longest.

    `follow` advises on a view, as the page does; `steps` returns the steps by engine.
    """

    def __init__(self, follow: Callable[[EngineView], object], steps: Callable[[], Mapping[EngineKey, Steps]]) -> None:
        self._follow, self._steps = follow, steps
        self._followed: dict[EngineKey, tuple[float, tuple[object, ...]]] = {}
        self._since: dict[EngineKey, tuple[float, object]] = {}
        self._pending: asyncio.Future[float] | None = None
        self._rests_until = 0.0

    def start_next(self, now: float, engines: Iterable[EngineView], thresholds: Thresholds) -> None:
        """Start advising on the engine that is due, where one is and none is under way.

        `now` is this machine's monotonic time, as CPU time is, also where the daemon has a virtual clock.
        """
        views, steps = {view.key: view for view in engines}, self._steps()
        self._since = {key: self._cause_since(now, view) for key, view in views.items()}
        if self._pending is not None or now < self._rests_until:
            return
        self._followed = {key: last for key, last in self._followed.items() if key in views}
        due = [view for view in views.values() if self._is_due(now, view, thresholds, stands=view.key in steps)]
        if not due:
            return
        view = min(due, key=lambda view: self._followed.get(view.key, (0.0,))[0])
        self._followed[view.key] = now, _verdict(view)

        def timed() -> float:
            self._follow(view)
            return time.thread_time()  # of a thread that does nothing else

        self._pending = in_own_thread(timed, "recommended")
        self._pending.add_done_callback(lambda done: self._done(now, done))

    def marked(self, engines: Iterable[EngineView]) -> tuple[EngineView, ...]:
        """Return the views, each with its engine's steps unless nothing is wrong with it any more."""
        steps = self._steps()
        return tuple(
            replace(view, step=steps[view.key].first, step_without_gpu=steps[view.key].without_gpu)
            if view.key in steps and view.diagnosis is not None and view.diagnosis.cause not in CALM
            else view
            for view in engines
        )

    def _is_due(self, now: float, view: EngineView, thresholds: Thresholds, *, stands: bool) -> bool:
        diagnosis = view.diagnosis
        if diagnosis is None:
            return False
        since, settle = self._since[view.key][0], thresholds.advice.settle_seconds
        if diagnosis.cause in CALM:
            if not stands or now - since < settle:
                return False
        elif now - since < min(FIRST_SECONDS, settle):
            return False
        last = self._followed.get(view.key)
        if last is None or last[1] != _verdict(view) or now - last[0] >= AGAIN_SECONDS:
            return True
        return last[0] < since + settle <= now  # advice from before the verdict settled is made again

    def _cause_since(self, now: float, view: EngineView) -> tuple[float, object]:
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

"""recommended: engines in trouble are followed while nobody looks, one at a time, and at little cost."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from structlog.testing import capture_logs

from kvpressure.advice.advise import _NOW
from kvpressure.advice.recommendation import LOOK
from kvpressure.daemon.recommended import AGAIN_SECONDS, FIRST_SECONDS, Advised, Recommender, Steps
from kvpressure.exposition.families import engine_values
from kvpressure.model.action import FIRST_STEPS, NOW, Action
from kvpressure.model.verdict import Cause, Diagnosis
from kvpressure.model.view import EngineKey, EngineView
from tests.support.advice_cases import NOW as VERDICT_AT
from tests.support.advice_cases import THRESHOLDS, diagnosis

SETTLES = THRESHOLDS.advice.settle_seconds


def seen(name: str, cause: Cause = Cause.KV_CACHE_PRESSURE, old: float = 2 * SETTLES) -> EngineView:
    """An engine whose verdict is so old."""
    key, told = EngineKey(name, "m", "0"), diagnosis(cause)
    return EngineView(key, key, VERDICT_AT, {"score": 0.8}, replace(told, since=told.t - old))


class Follows:
    """Counts the looks, and takes as long as it is let."""

    def __init__(self) -> None:
        self.looks: list[str] = []
        self.steps: dict[EngineKey, Steps] = {}
        self.raises: Exception | None = None

    def __call__(self, view: EngineView) -> None:
        self.looks.append(view.key.target)
        if self.raises is not None:
            raise self.raises
        self.steps = {**self.steps, view.key: Steps("add_replica", "")}


async def looks(recommender: Recommender, now: float, *views: EngineView) -> None:
    recommender.start_next(now, views, THRESHOLDS)
    if (pending := recommender._pending) is not None:
        await asyncio.wait({pending})
        await asyncio.sleep(0)  # what it calls when it is done


async def settled(recommender: Recommender, *views: EngineView) -> None:
    """Show the engines at 10 s, and at 40 s again."""
    for now in (10.0, 10.0 + SETTLES):
        await looks(recommender, now, *views)


@pytest.fixture
def follows() -> Follows:
    return Follows()


@pytest.fixture
def recommender(follows: Follows, monkeypatch: pytest.MonkeyPatch) -> Recommender:
    monkeypatch.setattr("kvpressure.daemon.recommended.RESTS_FACTOR", 0.0)
    return Recommender(follows, lambda: follows.steps)


async def test_an_engine_is_looked_at_early_when_its_cause_has_settled_and_after_a_minute_or_another_verdict(
    recommender: Recommender, follows: Follows
) -> None:
    for now in (10.0, 10.0 + FIRST_SECONDS - 1):
        await looks(recommender, now, seen("a"), seen("calm", Cause.HEALTHY))
    assert follows.looks == []
    for now in (10.0 + FIRST_SECONDS, 11.0 + FIRST_SECONDS, 10.0 + SETTLES - 1):
        await looks(recommender, now, seen("a"), seen("calm", Cause.HEALTHY))
    assert follows.looks == ["a"]
    for now in (40.0, 41.0, 40.0 + AGAIN_SECONDS):
        await looks(recommender, now, seen("a"))
    assert follows.looks == ["a"] * 3
    for now in (150.0, 151.0, 150.0 + SETTLES, 151.0 + SETTLES):
        await looks(recommender, now, seen("a", Cause.STUCK))
    assert follows.looks == ["a"] * 4


async def test_the_end_of_an_incident_is_looked_at_once_it_lasts(recommender: Recommender, follows: Follows) -> None:
    await settled(recommender, seen("a"))
    await looks(recommender, 41.0, seen("a"))
    for now in (42.0, 42.0 + SETTLES - 1):
        await looks(recommender, now, seen("a", Cause.HEALTHY, old=0.0))
    assert follows.looks == ["a"]
    await looks(recommender, 42.0 + SETTLES, seen("a", Cause.HEALTHY))
    assert follows.looks == ["a", "a"]


async def test_those_without_a_look_come_first_one_at_a_time(recommender: Recommender, follows: Follows) -> None:
    await settled(recommender, seen("a"), seen("b"), seen("c"))
    for now in (41.0, 42.0, 43.0 + AGAIN_SECONDS):
        await looks(recommender, now, seen("a"), seen("b"), seen("c"))
    assert follows.looks == ["a", "b", "c", "a"]


async def test_it_rests_after_each_look_for_what_it_took(monkeypatch: pytest.MonkeyPatch, follows: Follows) -> None:
    monkeypatch.setattr("time.thread_time", lambda: 0.5)
    recommender = Recommender(follows, lambda: follows.steps)
    await settled(recommender, seen("a"), seen("b"), seen("c"))
    for now in (64.0, 66.0):
        await looks(recommender, now, seen("a"), seen("b"), seen("c"))
    assert follows.looks == ["a", "b"]


async def test_a_defect_of_advice_is_logged_and_nothing_else(recommender: Recommender, follows: Follows) -> None:
    follows.raises = ZeroDivisionError("division by zero")
    with capture_logs() as logs:
        await settled(recommender, seen("a"), seen("b"))
        await looks(recommender, 41.0, seen("a"), seen("b"))
    assert [(one["event"], one["log_level"]) for one in logs] == [("nothing is recommended", "error")]
    assert follows.looks == ["a"]


def advise_of(step: str) -> Callable[..., tuple[Action, ...]]:
    return lambda *_: (Action(step, "First", "", when=NOW),)


def test_the_step_that_stands_is_a_series_until_the_incident_is_over() -> None:
    advised, view = Advised(), seen("a")
    recommender = Recommender(lambda _: None, advised.steps)

    def series(view: EngineView) -> object:
        (marked,) = recommender.marked([view])
        return engine_values(marked).get("recommended_action")

    assert series(view) is None
    advised.advice(view, THRESHOLDS, 1, advise_of("add_replica"))
    assert series(view) == {"first": {"add_replica": {"add replicas": 1.0}}}
    assert series(later(view, 10.0, Cause.HEALTHY)) is None  # before anybody looked
    advised.advice(later(view, 20.0, Cause.HEALTHY), THRESHOLDS, 1, advise_of("add_replica"))
    assert series(view) is None


def test_a_first_step_is_a_series_before_it_has_settled_and_none_where_the_advice_is_to_look_longer() -> None:
    advised, view = Advised(), seen("a", old=SETTLES - 1)
    advised.advice(view, THRESHOLDS, 1, advise_of("add_replica"))
    assert advised.steps() == {view.key: Steps("add_replica", "")}
    advised.advice(seen("b"), THRESHOLDS, 1, advise_of(LOOK))
    assert advised.steps() == {view.key: Steps("add_replica", "")}


def test_beside_replicas_the_best_step_without_a_gpu_is_kept() -> None:
    advised, view = Advised(), seen("a")
    steps = tuple(Action(key, "", "", when=NOW) for key in ("add_replica", "cap_output", "kv_cache_dtype"))
    marked = Recommender(lambda _: None, advised.steps).marked
    advised.advice(view, THRESHOLDS, 1, lambda *_: steps)
    assert [(one.step, one.step_without_gpu) for one in marked([view])] == [("add_replica", "cap_output")]
    advised.advice(seen("b"), THRESHOLDS, 1, lambda *_: steps[1:])
    assert [(one.step, one.step_without_gpu) for one in marked([seen("b")])] == [("cap_output", "")]


def later(view: EngineView, seconds: float, cause: Cause) -> EngineView:
    t = view.t + seconds
    told: Diagnosis = replace(diagnosis(cause), t=t, since=t - 1.0)
    return replace(view, t=t, diagnosis=told)


def test_alerts_have_words_of_forty_characters_for_every_step_that_needs_no_restart() -> None:
    assert _NOW - {LOOK} <= FIRST_STEPS.keys()
    assert {key: words for key, words in FIRST_STEPS.items() if len(words) > 40 or words[-1] == "."} == {}

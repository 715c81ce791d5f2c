"""Numbers on one card, and in one output of triage, do not contradict each other."""

import functools
import re
from pathlib import Path

import pytest

from kvpressure.advice.advise import Place, advise
from kvpressure.model.action import Action
from kvpressure.model.values import at
from kvpressure.model.view import EngineView
from tests.support.tools import FIXTURES
from tests.support.verdicts import LAB, THRESHOLDS, views

EVERY = [*sorted((FIXTURES / "traces").glob("*.xz")), *sorted(LAB.glob("*.xz"))]
LEAST_SECONDS = 20.0
APART = {"would_not_help", "verify", "route", "kept_apart"}
"""Not one of the steps that follow each other."""


@functools.cache
def cards(path: Path) -> tuple[tuple[EngineView, tuple[Action, ...]], ...]:
    """A few of a recording's cards with advice: each verdict's first after a while, and the last."""
    shown: dict[str, tuple[EngineView, float]] = {}
    found = views(path)
    for view in found:
        cause = view.diagnosis.cause.value
        first = shown.setdefault(cause, (view, view.t))[1]
        if view.t - first >= LEAST_SECONDS:
            shown[cause] = view, first
    made = []
    for view, _ in shown.values():
        about = view.diagnosis, view.derived, view.limits, Place(), THRESHOLDS
        if actions := advise(*about, observed=view.observed):
            made.append((view, actions))
    return tuple(made)


each_recording = pytest.mark.parametrize("path", EVERY, ids=lambda path: path.name.partition(".jsonl")[0])


def steps(actions: tuple[Action, ...]) -> list[Action]:
    return [action for action in actions if action.expected is not None and action.key not in APART]


def test_there_are_cards_to_look_at():
    made = [actions for path in EVERY for _, actions in cards(path)]
    assert len(made) >= 15
    assert sum(bool(steps(actions)) for actions in made) >= 8


@each_recording
def test_each_step_starts_from_what_the_card_says_is_now(path: Path):
    for view, actions in cards(path):
        now = at(view.derived, "tokens_per_second", "generation")
        for action in steps(actions):
            if action.expected is not None and action.expected.tokens_per_second.before is not None:
                assert action.expected.tokens_per_second.before == pytest.approx(now, rel=0.02), action.key


@each_recording
def test_the_pool_has_one_size(path: Path):
    for view, actions in cards(path):
        capacity = at(view.derived, "kv_capacity_tokens")
        for action in actions:
            for text in re.findall(r"(?:instead of|pool's|the pool holds) ([\d,]{4,}) ?(?:tokens|\.|$)?", action.why):
                assert float(text.replace(",", "")) == pytest.approx(capacity, rel=0.01), action.why


@each_recording
def test_sequences_are_not_cut_below_what_the_same_card_says_fits(path: Path):
    for action in (action for _, actions in cards(path) for action in actions):
        if action.key != "max_num_seqs" or not action.new or not action.title.startswith("Cut"):
            continue
        for text in re.findall(r"(?:holds only|=) (\d+)(?: of them| that fit)", action.why):
            assert int(action.new.replace(",", "")) >= int(text), action.why


@each_recording
def test_a_limit_is_not_raised_and_cut_on_one_card(path: Path):
    for _, actions in cards(path):
        changed = [flag for action in actions if action.key != "apply" for flag in action.flags]
        assert len(changed) == len(set(changed))

from __future__ import annotations

from kvpressure.model.limits import DECLARED, LEARNED, Limit
from kvpressure.signals.learned_cap import LearnedCap


def learned() -> LearnedCap:
    cap = LearnedCap()
    cap.learn(Limit(32.0, LEARNED))
    return cap


def test_a_learned_cap_holds_when_the_batch_is_no_longer_full():
    cap = learned()
    cap.learn(None)
    assert cap.at(10.0) == 32
    assert cap.at(None) == 32


def test_a_larger_batch_shows_that_it_was_no_cap():
    cap = learned()
    assert cap.at(33.0) is None
    assert cap.at(10.0) is None


def test_a_declared_cap_is_not_learned_and_a_restart_forgets_a_learned_one():
    cap = LearnedCap()
    cap.learn(Limit(64.0, DECLARED))
    assert cap.at(10.0) is None
    cap = learned()
    cap.forget()
    assert cap.at(10.0) is None

"""Three-valued logic: what is not known decides nothing, and names what is missing only where it would."""

from __future__ import annotations

import itertools

import pytest

from kvpressure.diagnosis.facts import Facts
from kvpressure.diagnosis.predicates import Predicate, Shared, fact
from tests.support.verdicts import facts, inputs

STATES = (True, False, None)


def saying(answer: bool | None, *evidence: str) -> Predicate:
    return fact(*evidence)(lambda _: answer)


@pytest.fixture
def any_facts() -> Facts:
    return facts(inputs())


@pytest.mark.parametrize(("one", "other"), [*itertools.product(STATES, STATES)])
def test_and_or_and_not_are_those_of_kleene(any_facts, one, other):
    both, either = saying(one) & saying(other), saying(one) | saying(other)
    assert both.state(any_facts) is (False if False in (one, other) else None if None in (one, other) else True)
    assert either.state(any_facts) is (True if True in (one, other) else None if None in (one, other) else False)
    assert (~saying(one)).state(any_facts) is (None if one is None else not one)
    assert (~both).state(any_facts) is (~saying(one) | ~saying(other)).state(any_facts)


def test_what_is_missing_is_that_of_the_first_unknown_part(any_facts):
    unknown, later = saying(None, "first"), saying(None, "second")
    assert (saying(True) & unknown & later).lacks(any_facts) == {"first"}
    assert (saying(False) & unknown).lacks(any_facts) == frozenset()
    assert (saying(True) | unknown).lacks(any_facts) == frozenset()
    assert (saying(False) | ~unknown).lacks(any_facts) == {"first"}
    assert (unknown & later).evidence == {"first", "second"}


def test_what_is_not_known_may_be_taken_as_something_and_lacks_nothing_then(any_facts):
    taken = saying(None, "gpu").known_true()
    assert taken.state(any_facts) is False
    assert taken.lacks(any_facts) == frozenset()
    assert saying(True).known_true().state(any_facts) is True


def test_a_predicate_is_computed_once_and_not_at_all_after_what_decides(any_facts):
    evaluated: list[str] = []

    def recorded(name: str, answer: bool) -> Predicate:
        return fact()(lambda _: evaluated.append(name) or answer)

    one, other = recorded("one", True), recorded("other", False)
    whole = Shared(one & other & recorded("never", True))
    assert whole.state(any_facts) is whole.state(any_facts) is False
    assert one.state(any_facts) is True
    assert evaluated == ["one", "other"]

"""Three-valued logic: what is not known decides nothing, and names what is missing only where it would."""

import itertools

import pytest

from kvpressure.diagnosis.facts import Facts, Inputs
from kvpressure.diagnosis.predicates import Predicate, Shared, batch, fact, queue, room
from kvpressure.model.samples import EngineSample
from kvpressure.signals import Context, compute
from kvpressure.signals.windows import EngineWindow
from tests.support.verdicts import THRESHOLDS, facts, inputs

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
    assert (saying(None) & later).lacks(any_facts) == frozenset(), "the second alone would not do"
    assert (saying(None) | later).lacks(any_facts) == {"second"}, "of the first, nothing can be had"
    assert (saying(False) & unknown).lacks(any_facts) == frozenset()
    assert (saying(True) | unknown).lacks(any_facts) == frozenset()
    assert (saying(False) | ~unknown).lacks(any_facts) == {"first"}
    assert (unknown & later).evidence == {"first", "second"}


def test_what_the_page_has_is_not_missing_where_something_else_is_not_known(any_facts):
    assert "steps" in any_facts.inputs.signals
    assert saying(None, "steps", "gpu").lacks(any_facts) == {"gpu"}


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


@pytest.mark.parametrize(
    "predicate",
    [
        queue.queued,
        queue.queued_always,
        queue.waited_in_window,
        queue.shrinks,
        queue.longest_fits,
        queue.behind_nobody,
        room.longest_blocked,
        room.long_still_blocked,
        room.long_fits,
        room.room_is_ample,
        room.cache_lacks_room,
        batch.steady,
        batch.at_declared_cap,
        batch.step_at_budget,
        batch.steps_full,
        batch.mostly_prefill,
        batch.mostly_decode,
        batch.prefills_overlap,
        batch.prompts_hold_up,
        batch.slower,
        batch.fuller,
        batch.reads_more,
        batch.gpu_idle,
        batch.gpu_busy,
        batch.slowed_by_cpu,
        batch.small_prompt_steps,
        batch.prompts_take_turns,
        batch.compute_limits,
        batch.bandwidth_limits,
    ],
)
def test_a_predicate_of_a_number_that_is_not_known_is_unknown_and_not_false(predicate):
    window = EngineWindow(60, 600)
    for t in range(30):
        window.add(1000.0 + t, EngineSample("m", "0", {}, {}, {}))
    reading = compute(window, Context(THRESHOLDS))
    assert predicate.state(facts(Inputs(reading.derived, THRESHOLDS, reading.newest))) is None


def test_a_busy_gpu_explains_a_queue_where_no_cap_or_cache_is_known_to():
    found = facts(inputs(demand=12.0, waiting=12.0, gpu_utilization_ratio=0.97))
    assert batch.steady.state(found) is room.cache_may_hold_queue.state(found) is None
    assert batch.compute_limits.state(found) is True

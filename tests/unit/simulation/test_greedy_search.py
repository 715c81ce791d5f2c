import math
from dataclasses import replace

import pytest

from kvpressure.config.thresholds import load_thresholds
from kvpressure.model.limits import Limit
from kvpressure.simulation.calibrate import Known, Measured, growing_share, held_at
from kvpressure.simulation.config_changes import kv_in_8_bits, sequences
from kvpressure.simulation.consequences import Model
from kvpressure.simulation.greedy_search import choose, larger_steps, more_sequences, more_servers, without_hold
from kvpressure.simulation.lengths import Bucket, LengthDistribution
from kvpressure.simulation.models import model_of
from kvpressure.simulation.scheduler import simulate
from kvpressure.simulation.server import Demand, RequestShape, Server, StepSeconds
from tests.support.observed import given, pressed_view

pytestmark = pytest.mark.recorded

THRESHOLDS = load_thresholds()
CAPPED = "lab/cap-prefix-0.33.0.jsonl.xz"
DEFERRED = "lab/deferred-lora-0.33.0.jsonl.xz"


def capped(pool_factor: float = 1.0) -> Model:
    limits = pressed_view(CAPPED).limits
    less = replace(limits, kv_capacity_tokens=Limit(pool_factor * limits.kv_capacity_tokens.value))
    return model_of(given(CAPPED, limits=less, most_running=limits.max_num_seqs.value))


def test_a_cap_is_raised_as_far_as_the_pool_holds_and_servers_serve_the_rest():
    choice = more_sequences(capped(), 16, 4.0, 2)
    raised, more = choice.step("max_num_seqs"), choice.step("add_replica")
    assert more is not None
    # Of 16,000 tokens some 3,000 are the shared prefix: 490 each for 26 at most.
    assert 20 <= raised.change.value <= 26
    assert raised.expected.tokens_per_second.after > 1.2 * raised.expected.tokens_per_second.before


def test_with_room_for_all_the_cap_goes_to_what_is_asked_and_no_server_is_added():
    choice = more_sequences(capped(4.0), 16, 4.0, 2)
    raised = choice.step("max_num_seqs")
    assert raised.change.value == 40
    assert choice.step("add_replica") is None


def test_a_cap_goes_no_further_than_the_factor_at_once():
    raised = more_sequences(capped(4.0), 16, 2.0, 2).step("max_num_seqs")
    assert raised.change.value == 32


def test_where_the_pool_holds_no_more_raising_the_cap_is_declined_with_the_reason():
    choice = more_sequences(capped(0.55), 16, 4.0, 2)
    assert choice.step("max_num_seqs") is None
    (declined,) = (step for step in choice.declined if step.change.key == "max_num_seqs")
    assert "preempt each other" in declined.against


def test_steps_of_few_tokens_are_made_larger_where_prompts_wait_for_them():
    known = capped(4.0).known
    few = replace(known.server, step_tokens=64.0, max_num_seqs=math.inf)
    model = Model(replace(known, server=few), 60.0, THRESHOLDS)
    step = larger_steps(model, 64, 2).step("max_num_batched_tokens")
    assert step.change.value in (128, 256)
    assert step.expected.tokens_per_second.after > step.expected.tokens_per_second.before


def test_what_would_come_without_a_hold_is_an_upper_bound_and_says_so():
    held = held_at(pressed_view(DEFERRED).observed)
    choice = without_hold(model_of(given(DEFERRED, most_running=held)), math.inf)
    (step,) = choice.steps
    assert step.expected.at_best
    assert "up to" in step.expected.text
    assert "at best" in step.expected.text
    # All 20 clients at once instead of ten.
    assert step.expected.tokens_per_second.after == pytest.approx(2 * step.expected.tokens_per_second.before, rel=0.2)


def test_a_hold_that_keeps_nobody_waiting_is_not_worth_letting_go():
    choice = without_hold(model_of(given(DEFERRED, most_running=1000.0)), math.inf)
    assert choice.steps == ()
    assert len(choice.declined) == 1


def test_more_servers_are_as_many_as_are_given_and_sequences_are_told_about_only():
    model = capped(4.0)
    late = Model(model.known, 8.0, THRESHOLDS)
    choice = more_servers(late, 3, [sequences(80)])
    more = choice.step("add_replica")
    assert more.expected.servers == 3
    assert choice.step("max_num_seqs") is None


def test_what_healthy_steps_took_tells_what_a_sequence_adds_to_one():
    observed = pressed_view(CAPPED).observed
    seconds = sum(one.seconds for one in observed.intervals) / sum(one.steps or 0.0 for one in observed.intervals)
    healthy = replace(observed, healthy_step_seconds=seconds / 2, healthy_batch=4.0)
    # From 4 to 16 half of the step was added: two thirds of it grow with the batch.
    assert growing_share(healthy) == pytest.approx(2 / 3, rel=0.05)
    assert growing_share(replace(healthy, healthy_batch=15.0)) == growing_share(None) == 0.8


def test_a_cut_of_sequences_is_taken_back_where_a_larger_pool_does_more_without_it():
    slow = StepSeconds(0.02, 0.0, 0.00135)
    server = Server(7138.0, slow, reuses=False)
    demand = Demand((RequestShape(460, 460, 830),), clients=32)
    outcome = simulate(server, demand)
    measured = Measured(outcome.tokens_per_second, outcome.running, outcome.waiting, outcome.preempted_per_second)
    prompts = LengthDistribution((Bucket(1.0, 200, 500, 460, 460),))
    answers = LengthDistribution((Bucket(1.0, 500, 1000, 830, 830),))
    model = Model(Known(server, demand, prompts, answers, measured), 60.0, THRESHOLDS)
    alone, larger = choose(model, (), (), 2), choose(model, (), (kv_in_8_bits(),), 2)
    cut = alone.step("max_num_seqs")
    assert larger.step("kv_cache_dtype") is not None
    kept = larger.step("max_num_seqs")
    assert kept is None or kept.change.value > cut.change.value

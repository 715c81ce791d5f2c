import json
import math
import re
import time
from dataclasses import replace

import pytest

from kvpressure.advice.advise import advise_on
from kvpressure.advice.cache import caching, tier
from kvpressure.advice.case import Case
from kvpressure.advice.edge import by_priority
from kvpressure.advice.forecast import Forecast, as_shown, forecast_of, without_gpu, without_restart
from kvpressure.advice.pressure import declined
from kvpressure.advice.recommendation import Change
from kvpressure.advice.replicas import keep_apart
from kvpressure.advice.shell import flag_words
from kvpressure.config.thresholds import load_thresholds
from kvpressure.daemon.recommended import KEPT_SECONDS, MAX_KEPT
from kvpressure.daemon.recommended import Advised as Kept
from kvpressure.model.action import AFTER, NOW, Action, Expected, Shift
from kvpressure.model.codec import action_json
from kvpressure.model.limits import Limit
from kvpressure.model.values import Derived, at
from kvpressure.model.view import EngineKey, EngineView, PoolHits, Unfinished
from kvpressure.simulation.calibrate import Given
from kvpressure.simulation.config_changes import (
    ConfigChange,
    caps,
    kv_in_8_bits,
    offload,
    prefix_caching,
    replicas,
    route_by_length,
    sequences,
    short_first,
)
from kvpressure.simulation.consequences import Model
from kvpressure.simulation.greedy_search import Choice, Step
from kvpressure.simulation.models import model_of
from tests.support.advice_cases import THRESHOLDS, advised, case_of
from tests.support.observed import given, pressed_view

pytestmark = pytest.mark.recorded

COLLAPSE = "lab/kv-collapse-0.33.0.jsonl.xz"
THRASH = "traces/preemption-thrash.jsonl.xz"
RECORDINGS = (COLLAPSE, THRASH, "traces/long-context-collapse.jsonl.xz", "lab/kv-watermark-long-0.33.0.jsonl.xz")


@pytest.mark.parametrize("recording", RECORDINGS)
def test_every_change_that_is_advised_says_what_it_is_expected_to_do_and_gains(recording):
    found = advised(pressed_view(recording))
    changes = [action for action in found.values() if action.new and action.key != "apply"]
    assert changes
    for action in changes:
        assert action.expected is not None, action.key
        assert action.expected.tokens_per_second.after > 0
        better = action.expected.latency_p95.after < action.expected.latency_p95.before
        assert better or action.expected.gain_ratio > 0, action.key
        tokens = action.expected.tokens_per_second
        assert tokens.low <= tokens.after <= tokens.high


@pytest.mark.parametrize("recording", RECORDINGS)
def test_what_was_measured_to_harm_is_not_advised(recording):
    """Cutting max_num_seqs lost 17 to 20 % on the real scheduler under thrash, and all but nothing else did."""
    found = advised(pressed_view(recording))
    assert "max_num_seqs" not in found
    assert not any("max-num-seqs" in flag for action in found.values() for flag in action.flags)
    assert "max_num_batched_tokens" not in found


def test_under_thrash_the_cut_is_named_among_what_would_not_help_with_its_price():
    view = pressed_view(THRASH)
    why = advised(view)["would_not_help"].why
    assert "max_num_seqs" in why
    assert "fewer tokens" in why
    declared = replace(view, limits=replace(view.limits, max_num_batched_tokens=Limit(2048)))
    assert "max-num-batched-tokens 1,024" in advised(declared)["would_not_help"].why


def test_what_the_page_does_not_tell_is_not_said_to_be_no_help():
    case = case_of(pressed_view(THRASH))
    choice = forecast_of(case).choice
    sure = choice.declined[0]
    open_ = Step(kv_in_8_bits(), replace(sure.expected, doubt="whether prompts come back"))
    both, alone = (declined(case, replace(choice, declined=some)) for some in ((sure, open_), (open_,)))
    why = "Whether an fp8 KV cache would help cannot be predicted from this page: whether prompts come back."
    assert (both.title, alone.title) == (
        "Do not change these: they would not help",
        "It is not known whether these would help",
    )
    assert both.why.endswith(why)
    assert "fp8" not in both.why.removesuffix(why)
    assert alone.why == why


def test_what_is_before_each_step_is_what_is_shown_now():
    view = pressed_view(COLLAPSE)
    found = advised(view)
    memory, more, whole = (found[key].expected for key in ("kv_cache_dtype", "add_replica", "verify"))
    for expected in (memory, more, whole):
        assert expected.tokens_per_second.before == at(view.derived, "tokens_per_second", "generation")
        assert expected.waiting.before == at(view.derived, "requests_waiting")
    assert whole.tokens_per_second.after >= more.tokens_per_second.after
    # The lab's real scheduler with a pool of twice the size: 132.6 tokens/s, p95 90.9 s.
    assert memory.tokens_per_second.after == pytest.approx(132.6, rel=0.1)
    assert memory.latency_p95.after == pytest.approx(90.9, rel=0.25)


def test_a_collapse_of_requests_that_are_all_alike_is_not_met_with_a_cap_that_nobody_reaches():
    assert "cap_tokens" not in advised(pressed_view(COLLAPSE))


def test_expectations_are_in_the_json_in_numbers_and_in_words():
    action = advised(pressed_view(COLLAPSE))["kv_cache_dtype"]
    told = json.loads(json.dumps(action_json(action)))["expected"]
    assert told["text"].startswith("tokens/s 64 -> 1")
    assert set(told["tokens_per_second"]) == {"before", "after", "low", "high"}
    assert told["refused_ratio"] == 0
    assert action_json(replace(action, expected=None))["expected"] is None


def test_what_is_worth_advising_is_the_operators_to_say():
    """KV in 8 bits gains more than a twentieth here, and less than three quarters in the worst case."""
    view = pressed_view("lab/kv-watermark-long-0.33.0.jsonl.xz")
    proud = load_thresholds("advice_gain_min_ratio: 0.75\n")
    assert "kv_cache_dtype" in advised(view)
    assert "kv_cache_dtype" not in advised(view, thresholds=proud)


@pytest.mark.parametrize("recording", RECORDINGS)
def test_all_of_it_takes_less_than_two_seconds_of_cpu(recording):
    view = pressed_view(recording)
    began = time.process_time()
    advised(view)
    assert time.process_time() - began < 2.0


class Counted:
    def __init__(self) -> None:
        self.asked: list[bool] = []

    def __call__(self, view: EngineView, _: Change) -> tuple[Action, ...]:
        self.asked.append(view.observed is not None)
        return (Action("a", f"at {view.t}", ""),)


def test_what_was_predicted_lately_is_not_predicted_again_while_the_same_is_wrong():
    view, made, kept = pressed_view(COLLAPSE), Counted(), Kept()
    for later in (0.0, 1.0, KEPT_SECONDS - 1):
        kept.advice(replace(view, t=view.t + later), THRESHOLDS, 1, made)
    assert len(made.asked) == 1
    kept.advice(replace(view, t=view.t + KEPT_SECONDS + 1), THRESHOLDS, 1, made)
    assert len(made.asked) == 2
    changed = replace(view, t=view.t + KEPT_SECONDS + 2, limits=replace(view.limits, max_num_seqs=Limit(3)))
    kept.advice(changed, THRESHOLDS, 1, made)
    assert len(made.asked) == 3


def test_many_engines_under_pressure_do_not_take_the_cpu():
    """The rest get the advice that needs no prediction, until their turn comes."""
    view, made, kept = pressed_view(COLLAPSE), Counted(), Kept()
    for number in range(3 * MAX_KEPT):
        kept.advice(replace(view, key=EngineKey(f"t{number}", "m", "0")), THRESHOLDS, 1, made)
    assert made.asked == [True] * MAX_KEPT + [False] * (2 * MAX_KEPT)


def case() -> Case:
    return case_of(pressed_view(THRASH))


def model() -> Model:
    return model_of(given(THRASH))


def step(change: ConfigChange) -> Step:
    expected = model().expected([], [change])
    assert expected is not None
    return Step(change, expected)


def test_priorities_are_a_flag_and_a_number_that_clients_send():
    action = by_priority(case(), model(), step(short_first(500)))
    assert action.flags == {"--scheduling-policy": "priority"}
    assert '"priority": 1' in action.commands[0]
    assert "longer than" not in action.new
    assert "may not be answered" in action.cost


def test_prefix_caching_is_a_switch_without_a_value():
    action = caching(case(), model(), step(prefix_caching()))
    assert flag_words(action.flags) == ["--enable-prefix-caching"]
    assert "does not say" in action.why


def test_a_tier_says_how_much_host_memory_and_promises_no_more_than_the_best():
    action = tier(case(), model(), step(offload(12)))
    assert action.flags == {"--kv-offloading-size": "12"}
    assert "12 GiB of host memory" in action.cost
    assert "up to" in action.expected.text


def test_deployments_apart_say_how_many_serve_which():
    action = keep_apart(case(), model(), step(route_by_length(500, 2, 1)))
    assert "prompts up to 500 on 2, longer ones on 1" in action.new
    assert "by the length" in action.cost


def told(prefixes: bool | None) -> dict[str, Action]:
    view = pressed_view(THRASH)
    cache = replace(view.observed.cache, prefix_caching=prefixes)
    return advised(view, observed=replace(view.observed, cache=cache))


def test_prefix_caching_is_spoken_of_only_where_the_page_says_that_it_is_off():
    off = told(prefixes=False)
    assert "prefix_caching" in off or "prefix caching" in off["would_not_help"].why
    for other in (True, None):
        found = told(other)
        assert "prefix_caching" not in found
        assert "prefix caching" not in found["would_not_help"].why


def same(value: float) -> Shift:
    return Shift(value, value, value, value)


EXPECTED = Expected(same(60.0), same(1.0), Shift(0.9, 0.5, 0.4, 0.6), Shift(1.9, 1.5, 1.2, 1.8), 0.0, 0.0, 10.0)


def now(tokens: float, latency: float, waiting: float) -> Derived:
    e2e = {"e2e": {"0.95": latency}}
    return {"tokens_per_second": {"generation": tokens}, "latency_seconds": e2e, "requests_waiting": waiting}


def test_less_than_a_second_is_no_rounding_error_and_a_short_queue_moves_by_as_many():
    shown = as_shown(now(60.0, 0.2, 0.95), THRESHOLDS, EXPECTED)
    assert math.isnan(shown.latency_p95.before)
    assert (shown.waiting.before, shown.waiting.after) == (0.95, pytest.approx(0.55))
    near = as_shown(now(60.0, 0.81, 0.05), THRESHOLDS, replace(EXPECTED, waiting=Shift(0.5, 0.0, 0.0, 0.2)))
    assert (near.latency_p95.before, near.latency_p95.after) == (0.81, pytest.approx(0.45))
    assert near.waiting == Shift(0.05, 0.0, 0.0, 0.0)
    assert not near.worse


def test_what_makes_it_worse_is_declined_though_what_it_makes_worse_is_not_shown():
    fewer = step(sequences(2))
    assert fewer.expected.worse
    found = Forecast(model(), Choice((fewer,))).printed(replace(case(), derived={}))
    assert not found.steps
    (told,) = found.declined
    assert told.change.key == "max_num_seqs"
    assert "fewer tokens" in told.against
    assert "nan" not in told.expected.text


def test_what_helps_alone_is_advised_where_what_it_gains_nothing_beside_is_not():
    small, fewer = step(kv_in_8_bits()), step(sequences(2))
    found = Forecast(model(), Choice((fewer,), (small,))).printed(case())
    assert [one.change.key for one in found.steps] == ["kv_cache_dtype"]
    assert [one.change.key for one in found.declined] == ["max_num_seqs"]
    beside = Forecast(model(), Choice((step(replicas(2)),), (small,))).printed(case())
    assert beside.declined[0].against == "gains nothing beside the steps that are advised"


def test_what_was_not_measured_is_not_in_the_words_of_an_expectation():
    unknown = as_shown({}, THRESHOLDS, EXPECTED)
    assert unknown.text == ""
    assert replace(unknown, at_best=True).text == ""
    known_queue = replace(unknown, waiting=EXPECTED.waiting)
    assert known_queue.text == "waiting 1.9 -> 1.5"
    assert replace(known_queue, servers=3).text == "on all 3: waiting 1.9 -> 1.5"
    assert replace(known_queue, servers=2).text == "on both: waiting 1.9 -> 1.5"


def test_a_verdict_that_the_evidence_does_not_bear_out_changes_nothing():
    unsure = replace(case(), diagnosis=replace(case().diagnosis, confidence=0.0))
    assert [(one.key, one.when, one.commands != ()) for one in advise_on(unsure)] == [("look_longer", "now", True)]


def test_of_two_steps_without_a_restart_the_one_that_gains_most_is_first():
    view = pressed_view("traces/ramp-into-pressure.jsonl.xz")
    lasting = replace(view.diagnosis, since=view.diagnosis.t - 60)
    small = THRESHOLDS.with_values(advice_gain_min_ratio=0.02)  # by itself the cap gains 5 % on the least sure engine
    found = advised(view, diagnosis=lasting, thresholds=small)
    now = [action for action in found.values() if action.when == NOW and action.expected is not None]
    assert [action.key for action in now] == ["add_replica", "cap_prompt"], "a cap is listed before replicas"
    gains = [action.expected.gain_ratio for action in now if action.expected is not None]
    assert gains[0] > 10 * gains[1] > 0


def test_no_step_cuts_nearly_all_answers_though_hardly_one_of_those_that_ended_was_as_long():
    view = pressed_view(THRASH)
    long = Unfinished(20 * view.observed.outputs.count, 300.0, 2500.0)
    few = tuple(replace(one, finished=0.0) for one in view.observed.intervals)
    observed = replace(view.observed, unfinished=long, intervals=few, minutes=None)
    made = model_of(Given(observed, view.limits, THRESHOLDS.with_values(advice_simulated_error_max_ratio=0.9)))
    most = THRESHOLDS.advice.refused_max_ratio
    cut = [change for change in caps(made.known, most) if change.key == "cap_output"]
    assert any(one.expected.shortened_ratio > most for one in (step_of(made, change) for change in cut))
    about = case_of(view, observed=observed)
    steps = [*without_restart(about, made).steps, *filter(None, [without_gpu(about, made)])]
    assert all(one.expected.shortened_ratio <= most for one in steps)


def step_of(made: Model, change: ConfigChange) -> Step:
    expected = made.expected([], [change], ranged=False)
    assert expected is not None
    return Step(change, expected)


# Advice against eviction: every cure with its price, from hits by pool; or why there is none.


JOINS = "lab/workingset/joins-0.33.0.jsonl.xz"
MEASURED = ((1.25, 0.135), (1.5, 0.263), (2.0, 0.689), (3.0, 0.912), (8.0, 0.912))


def actions(hits_by_pool: tuple[PoolHits, ...]) -> dict[str, Action]:
    view = pressed_view(JOINS)
    assert view.diagnosis.detail == "eviction"
    return advised(view, observed=replace(view.observed, hits_by_pool=hits_by_pool))


def test_every_cure_has_its_price_where_hits_by_pool_are_measured():
    found = actions(tuple(PoolHits(factor, ratio) for factor, ratio in MEASURED))
    expected = found["kv_cache_dtype"].expected
    # The lab did that: from .087 to .677 of the prompts found, from 1.92 to 0.49 s to the first token.
    assert expected.hit_ratio.before == pytest.approx(0.087, abs=0.05)
    assert expected.hit_ratio.after == pytest.approx(0.677, abs=0.1)
    assert expected.first_token_seconds.before == pytest.approx(1.92, rel=0.3)
    assert expected.first_token_seconds.after == pytest.approx(0.49, rel=0.3)
    assert "prefix hits" in action_json(found["kv_cache_dtype"])["expected"]["text"]
    # No pool gains more than 8 % of the tokens in the lab, but answers come in a fifth of the time: both are steps.
    prices = {key: action_json(found[key])["expected"]["text"] for key in ("kv_offloading", "add_replica")}
    assert found["kv_offloading"].new.endswith("GiB for each GPU of a replica")
    assert re.search(r"prefix hits \d+% -> \d\d%, TTFT", prices["kv_offloading"])
    assert re.search(r"prefix hits \d+% -> 91%, TTFT", prices["add_replica"])
    assert re.search(r"sessions at a time: .*\(prefix hits \d+% -> \d\d%, TTFT", found["would_not_help"].why)


def test_a_cure_that_loses_tokens_is_declined_with_its_figure():
    """Its sessions think for 100 s: whoever is held back is not made up for by those who are served faster."""
    found = actions(tuple(PoolHits(factor, ratio) for factor, ratio in MEASURED))
    assert "fewer_sessions" not in found
    why = found["would_not_help"].why
    assert "sessions at a time" in why
    assert "fewer tokens" in why


def test_without_them_the_cures_are_told_and_why_none_is_priced():
    found = actions(())
    for key in ("fewer_sessions", "kv_cache_dtype", "kv_offloading"):
        assert found[key].expected is None
        assert "KV events would" in found[key].unpredicted


AGE, MISSED = "cache_eviction_age_seconds", "kv_capacity_miss_tokens_total"


@pytest.mark.parametrize(("read", "timing_named"), [({}, True), ({AGE: 30.0}, False)])
def test_what_would_measure_evictions_is_said_with_its_cost(read: dict[str, float], timing_named: bool) -> None:
    found = unpriced(read)
    measure = found["measure"]
    assert "--kv-events-config" in measure.commands[0]
    assert ("--kv-cache-metrics alone" in measure.why) is timing_named
    assert "core" in measure.cost
    assert (measure.when, list(found)[-1]) == (AFTER, "verify")


def test_nothing_is_to_be_switched_on_where_events_are_read_already():
    assert "measure" not in unpriced({MISSED: 5.0})


def unpriced(read: dict[str, float]) -> dict[str, Action]:
    """The actions where no hits by pool are known and `read` is all that is known of evictions."""
    view = pressed_view(JOINS)
    derived = {name: value for name, value in view.derived.items() if name not in {AGE, MISSED}} | read
    return advised(view, derived=derived, observed=None)


def test_where_requests_wait_too_the_same_cures_are_priced_by_the_same_hits():
    """The pool as room for what runs alone would promise a larger one too little, or too much."""
    view = pressed_view(JOINS)
    measured = tuple(PoolHits(factor, ratio) for factor, ratio in MEASURED)
    observed, waiting = replace(view.observed, hits_by_pool=measured), replace(view.diagnosis, detail="admission")
    found = advised(view, diagnosis=waiting, observed=observed)
    assert found["kv_cache_dtype"].expected.hit_ratio is not None
    assert list(found)[-1] == "verify"

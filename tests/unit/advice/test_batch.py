from dataclasses import replace

import pytest

from kvpressure.advice.advise import Place
from kvpressure.advice.batch import more_sequences
from kvpressure.advice.forecast import card_of
from kvpressure.advice.replicas import replica
from kvpressure.capacity.cards import table
from kvpressure.model.action import Action
from kvpressure.model.limits import LEARNED, Limit
from kvpressure.model.verdict import Cause
from kvpressure.model.view import EngineView
from tests.support.advice_cases import advised, case_of
from tests.support.observed import pressed_view

pytestmark = pytest.mark.recorded

CAPPED = "lab/cap-prefix-0.33.0.jsonl.xz"


def actions(view: EngineView, cause: Cause, detail: str) -> dict[str, Action]:
    return advised(view, diagnosis=replace(view.diagnosis, cause=cause, detail=detail))


def nobody_waits(view: EngineView) -> EngineView:
    """Return the view without its queue, which only its cap explains."""
    served = tuple(replace(one, waiting=0.0) for one in view.observed.intervals)
    return replace(
        view, derived={**view.derived, "requests_waiting": 0.0}, observed=replace(view.observed, intervals=served)
    )


def test_what_is_simulated_without_the_queue_that_is_shown_is_not_printed():
    view = pressed_view(CAPPED)
    plenty = replace(view, limits=replace(view.limits, max_num_seqs=Limit(256)))
    more = actions(plenty, Cause.COMPUTE_BOUND, "decode")["add_replica"]
    assert more.expectation == "not predicted: the simulation does not reproduce how many requests wait now"


def test_a_raised_cap_says_what_it_is_expected_to_do():
    found = advised(pressed_view(CAPPED))
    raised = found["max_num_seqs"]
    assert raised.expected.tokens_per_second.after > raised.expected.tokens_per_second.before
    assert raised.new == raised.flags["--max-num-seqs"]
    assert found["add_replica"].new.startswith("twice ")


def test_a_cap_that_is_raised_beyond_the_knee_says_so():
    case = case_of(pressed_view(CAPPED))
    assert "Above about 20 running requests, 10 % more give less" in more_sequences(case, 24, knee_requests=19.5).why
    assert "10 % more" not in more_sequences(case, 24, knee_requests=40.0).why


@pytest.mark.parametrize(("knee", "said"), [(10.0, True), (1000.0, False), (None, False)])
def test_whatever_raises_a_cap_or_adds_replicas_says_the_knee_of_the_engines_own_steps(knee, said):
    view = pressed_view(CAPPED)
    known = {} if knee is None else {"running_knee_requests": knee}
    derived = {**{name: value for name, value in view.derived.items() if name != "running_knee_requests"}, **known}
    case = case_of(view, derived=derived, observed=None)
    assert ("Above about 10 running requests" in more_sequences(case, 24).why) is said
    assert ("Above about 10 running requests" in replica(case, "why", 2).why) is said
    assert "running requests, 10" not in replica(case, "why", 8).why  # so many leave each of them below it


def test_a_cap_that_was_learned_may_be_another_flags():
    view = pressed_view(CAPPED)
    assert view.limits.max_num_seqs.source == LEARNED
    assert "--max-num-active-seqs" in advised(view)["max_num_seqs"].why
    declared = replace(view, limits=replace(view.limits, max_num_seqs=Limit(16)))
    assert "--max-num-active-seqs" not in advised(declared)["max_num_seqs"].why


def test_a_busy_gpu_gets_as_many_servers_as_answer_in_time_and_hears_what_sequences_would_not_do():
    view = nobody_waits(pressed_view(CAPPED))
    plenty = replace(view, limits=replace(view.limits, max_num_seqs=Limit(256)))
    found = actions(plenty, Cause.COMPUTE_BOUND, "decode")
    assert "2 replicas: may gain nothing, by what is not known (on both: tokens/s" in found["would_not_help"].why
    assert "max_num_seqs 512: gains less than 5%" in found["would_not_help"].why
    assert found["less_work"].unpredicted


def test_the_tokens_of_a_step_are_raised_to_what_is_predicted_to_help_and_not_where_nothing_does():
    view = nobody_waits(pressed_view(CAPPED))
    roomy = replace(view, limits=replace(view.limits, max_num_seqs=None, max_num_batched_tokens=Limit(8192)))
    found = actions(roomy, Cause.CONCURRENCY_BOUND, "prefill_budget")
    assert "max_num_batched_tokens" not in found or found["max_num_batched_tokens"].expected is not None
    assert "max-num-batched-tokens 16,384: gains" in found["would_not_help"].why


@pytest.mark.parametrize(
    ("gpus", "served", "kv_bits", "known"),
    [
        (("NVIDIA H100 80GB HBM3",), "meta-llama/Llama-3.1-8B-Instruct", None, "llama-3.1-8b.h100_sxm"),
        (("NVIDIA H100 80GB HBM3",) * 2, "Qwen/Qwen3-32B", None, "qwen3-32b.h100_sxm.tp2"),
        (("NVIDIA L40S",), "meta-llama/Llama-3.1-8B-Instruct", None, "llama-3.1-8b.l40s"),
        (("NVIDIA L40S",), "meta-llama/Llama-3.1-8B-Instruct", 8, "llama-3.1-8b.l40s.kv8"),
        (("NVIDIA H100 80GB HBM3",), "meta-llama/Llama-3.1-8B-Instruct", 8, "llama-3.1-8b.h100_sxm"),
        (("NVIDIA H100 80GB HBM3",), "Qwen/Qwen3-32B-FP8", None, "qwen3-32b-fp8.h100_sxm.kv8"),
        (("NVIDIA H100 80GB HBM3", "NVIDIA L40S"), "Qwen/Qwen3-32B", None, None),
        (("NVIDIA H100 PCIe",), "meta-llama/Llama-3.1-8B-Instruct", None, None),
        (("NVIDIA H100 80GB HBM3",), "mine", None, None),
        ((), "meta-llama/Llama-3.1-8B-Instruct", None, None),
    ],
)
def test_step_times_are_those_of_the_card_where_it_and_the_model_are_known(gpus, served, kv_bits, known):
    view = pressed_view(CAPPED)
    seen = replace(view.observed, gpus=gpus, cache=replace(view.observed.cache, kv_bits=kv_bits))
    case = case_of(view, place=Place(runtime="vllm", model_name=served), observed=seen)
    assert card_of(case) is (None if known is None else table(known))


@pytest.mark.parametrize(("kv_bits", "told"), [(None, True), (16, True), (8, False), (4, False)])
def test_a_kv_cache_in_8_bits_is_no_advice_to_an_engine_whose_page_says_that_it_has_one(kv_bits, told):
    view = pressed_view("lab/kv-collapse-0.33.0.jsonl.xz")
    seen = replace(view.observed, cache=replace(view.observed.cache, kv_bits=kv_bits))
    found = advised(view, observed=seen)
    assert ("kv_cache_dtype" in found) is told
    assert told or all("fp8" not in action.why for action in found.values())

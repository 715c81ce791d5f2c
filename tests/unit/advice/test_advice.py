from dataclasses import replace

import pytest

from kvpressure.advice.advise import Limit, Limits, advise, known_limits
from kvpressure.exposition.wording import by_time
from kvpressure.model.action import AFTER, FIRST_STEPS, NOW
from kvpressure.model.samples import CacheConfig
from kvpressure.model.verdict import Cause, Evidence, Stage
from tests.support.advice_cases import LIMITS, PRODUCTION, SHAPE, THRESHOLDS, advice, diagnosis, kv, limits


def keys(*args, **given):
    return [action.key for action in advice(*args, **given)]


# 40,000 tokens: within caps of 1500 + 400 tokens 21 fit, and 44 run at most.
TIGHT = {"derived": {"kv_capacity_tokens": 40_000.0}, "preempting": True}


def tight(**given):
    given.setdefault("limits", limits(kv_capacity_tokens=Limit(40_000, "page")))
    return kv(**TIGHT, **given)


def test_where_nothing_can_be_predicted_pool_exhaustion_is_answered_in_the_order_of_the_playbook():
    actions = advice(Cause.KV_CACHE_PRESSURE, Stage.COLLAPSED)
    assert [action.key for action in actions] == ["cap_tokens", "add_replica", "memory_headroom", "verify"]
    # An alert names the same place.
    place = "at the gateway"
    assert actions[0].title.endswith(place)
    assert all(FIRST_STEPS[key].endswith(place) for key in ("cap_tokens", "cap_prompt", "cap_output"))
    assert [action.order for action in actions] == [1, 2, 3, 4]
    assert [action.when for action in actions] == [NOW, NOW, "", ""]
    assert actions[0].expectation == "not predicted: the traffic of this engine is not known"
    assert all(action.expected is None for action in actions)


def test_after_a_device_oom_the_memory_target_comes_before_the_engines_own_limits_and_the_crash_is_handled():
    assert keys(Cause.KV_CACHE_PRESSURE, Stage.FAILING, device_oom=True) == [
        "cap_tokens",
        "memory_headroom",
        "max_num_batched_tokens",
        "apply",
        "restart",
        "verify",
    ]


@pytest.mark.parametrize("preempting", [None, False])
def test_max_num_seqs_is_cut_only_against_preemption(preempting):
    given = limits(kv_capacity_tokens=Limit(40_000, "page"))
    assert "max_num_seqs" in tight()
    assert "max_num_seqs" not in kv(derived=TIGHT["derived"], limits=given, preempting=preempting)


def test_max_num_seqs_is_never_cut_below_what_the_pool_holds_within_the_caps():
    # 100,000 / (1500 + 400) = 52 fit, 44 run at most: cutting to the 28 that fit at p95 would leave room empty.
    assert "max_num_seqs" not in kv(preempting=True)
    # 57,000 / 1900 = 30 fit: a cut of a third.
    action = tight(limits=limits(kv_capacity_tokens=Limit(57_000, "page")))["max_num_seqs"]
    assert (action.current, action.new, action.flags) == ("48 (declared)", "30", {"--max-num-seqs": "30"})
    assert "57,000 tokens / 1,900 per typical request within the caps = 30 that fit: a cut of 32%" in action.why


def test_max_num_seqs_is_cut_by_half_at_most_and_says_that_fewer_fit():
    action = tight()["max_num_seqs"]
    assert action.new == "22"
    assert "= 21 that fit; one step cuts by 25% to 50%, so 22 now" in action.why


def test_without_request_lengths_nothing_is_cut_in_the_dark():
    assert "max_num_seqs" not in kv(derived={"prompt_tokens": None}, preempting=True)


def test_a_declared_limit_that_holds_nothing_back_is_not_what_is_cut():
    # 256 declared, 44 run: half of 256 would change nothing.
    wide = limits(max_num_seqs=Limit(256), kv_capacity_tokens=Limit(40_000, "page"))
    action = tight(limits=wide)["max_num_seqs"]
    assert action.new == "22"
    assert "a limit above that (256 now) limits nothing" in action.why


def test_one_request_at_a_time_cannot_be_cut():
    assert "max_num_seqs" not in kv(derived={"requests_running_max": 1.0}, preempting=True)


def test_a_cap_below_what_running_requests_hold_is_not_printed():
    assert "cap_tokens" not in kv(derived={"kv_tokens_per_request": 24_000.0})
    assert "cap_tokens" not in kv(derived={"kv_tokens_per_request": 3_141.0})
    assert "cap_tokens" in kv(derived={"kv_tokens_per_request": 3_140.0})  # prompts 2,400 and answers 740


@pytest.mark.parametrize(
    ("seconds", "confidence", "then"),
    [(60.0, 0.44, "restart"), (60.0, 0.0, "see_whether_it_runs"), (0.0, 0.9, "see_whether_it_runs")],
)
def test_a_server_is_replaced_only_once_it_is_surely_stuck_for_long_enough(seconds, confidence, then):
    found = diagnosis(Cause.STUCK)
    stuck = replace(found, since=found.t - seconds, confidence=confidence)
    told = advise(stuck, SHAPE, LIMITS, PRODUCTION, THRESHOLDS)
    assert [action.key for action in told] == ["save_evidence", then]
    assert any("delete" in line for action in told for line in action.commands) == (then == "restart")


def test_a_server_that_is_kept_says_whether_the_verdict_is_unsure_or_too_young():
    stuck = replace(diagnosis(Cause.STUCK), confidence=0.9)
    young = replace(stuck, since=stuck.t - 5.0)
    why = advise(young, SHAPE, LIMITS, PRODUCTION, THRESHOLDS)[1].why
    assert why.endswith("is advised once the verdict is 12 s old; it is 5 s old.")
    unsure = replace(stuck, since=stuck.t - 60.0, confidence=0.1)
    why = advise(unsure, SHAPE, LIMITS, PRODUCTION, THRESHOLDS)[1].why
    assert why.endswith("is advised from a confidence of 25% on; it is 10%.")


def test_the_p95_of_a_request_is_not_that_of_its_prompt_and_that_of_its_answer():
    # 1500 + 400, and the root of 1500 squared + 600 squared beyond that.
    assert "of 3,516 tokens (p95)" in kv()["cap_tokens"].why


def test_a_request_is_never_counted_longer_than_the_longest_allowed():
    action = kv(limits=limits(max_model_len=Limit(2000, "page")))["cap_tokens"]
    assert "of 2,000 tokens (p95)" in action.why


def test_token_caps_are_computed_from_what_doubling_the_batch_leaves_for_each():
    # 64 want to run, 40 do: min(64, 80) = 64 requests share 100,000 tokens: 1562.5 each. Answers first: 1562.5 - 1500
    # would cut more than a quarter of them, so 734; prompts get 822, which would refuse more than a quarter, so 2334.
    action = kv()["cap_tokens"]
    assert action.new == "prompts 2,400, answers 740"
    assert "64 requests, up to twice what runs, of 3,516 tokens (p95) need 224,995" in action.why
    assert "Of requests as long as these limits 31 fit" in action.why  # 100,000 / 3140
    assert "Up to 23% of the prompts are refused and up to 24% of the answers end early" in action.cost


def test_token_caps_between_p50_and_p95_say_how_many_requests_they_cut():
    # 10 share 40,000: 4000 each. Answers min(4000 - 1500, 1000) = 1000, prompts min(4000 - 1000, 3000) = 3000.
    roomy = {"requests_running": 5.0, "requests_waiting": 5.0, "kv_capacity_tokens": 40_000.0}
    action = kv(derived=roomy, limits=limits(kv_capacity_tokens=Limit(40_000, "page")))["cap_tokens"]
    assert action.new == "prompts 3,000, answers 1,000"
    assert "Of requests as long as these limits 10 fit" in action.why
    assert "Up to 5% of the prompts" in action.cost


def test_token_caps_never_exceed_those_declared_already():
    told = limits(max_input_tokens=Limit(1000), max_output_tokens=Limit(256))
    held = {"kv_tokens_per_request": 1_200.0}
    assert kv(derived=held, limits=told)["cap_tokens"].new == "prompts 1,000, answers 256"


def test_without_a_device_oom_the_memory_target_stays_and_the_loss_of_lowering_it_is_said():
    action = kv(device_oom=False)["memory_headroom"]
    assert action.flags == {}
    assert action.title == "Leave gpu-memory-utilization: the pool is exhausted, the device is not"
    # (0.9 - 0.7) / 0.9 of 100,000
    assert "Lowering the target to 0.7 would take at least 22,222 of the pool's 100,000 tokens" in action.why


def test_when_logs_were_not_read_the_advice_says_to_look_for_a_device_oom_first():
    assert "logs were not read here" in kv()["memory_headroom"].why
    assert any("out of memory" in line for line in kv()["memory_headroom"].commands)
    assert kv(device_oom=False)["memory_headroom"].commands == ()


@pytest.mark.parametrize(
    ("derived", "new"),
    [
        ({}, "0.7"),
        ({"prompt_tokens": {"0.5": 4000.0, "0.95": 12_000.0}}, "0.6"),
        ({"arrival_burstiness_ratio": 4.0}, "0.6"),
    ],
)
def test_after_a_device_oom_the_target_is_lower_still_for_long_context_or_bursts(derived, new):
    action = kv(Stage.FAILING, device_oom=True, derived=derived)["memory_headroom"]
    assert (action.new, action.flags) == (new, {"--gpu-memory-utilization": new})
    assert "device OOM" in action.title


def test_a_lower_memory_target_leaves_fewer_sequences_room():
    # 0.9 -> 0.7 leaves at most 77,778 tokens: 22 fit at p95, and within the caps 40 of the 60 that run.
    actions = kv(
        Stage.FAILING,
        device_oom=True,
        preempting=True,
        derived={"requests_running_max": 60.0},
        limits=limits(max_num_seqs=None),
    )
    assert "loses at least 22,222 of its 100,000 tokens; 22 requests fit" in actions["memory_headroom"].cost
    assert actions["max_num_seqs"].new == "40"
    why = actions["max_num_seqs"].why
    assert "77,778 tokens left by the lower memory target / 1,900 per typical request within the caps = 40" in why


def test_a_target_that_is_low_already_is_not_raised_after_a_device_oom():
    action = kv(Stage.FAILING, device_oom=True, limits=limits(gpu_memory_utilization=Limit(0.5, "page")))
    assert action["memory_headroom"].flags == {}
    assert "--gpu-memory-utilization" not in action["apply"].flags


@pytest.mark.parametrize(
    ("longest", "new"),
    [
        (8192, "0.7"),  # 0.9 x 8,192 / 100,000 = 0.07 would be enough
        (80_000, "0.72"),  # at least 0.9 x 80,000 / 100,000
        (99_000, ""),
    ],
)
def test_the_target_is_never_so_low_that_one_longest_request_would_not_fit(longest, new):
    known = limits(max_model_len=Limit(longest, "page"))
    actions = kv(Stage.FAILING, device_oom=True, limits=known)
    action = actions["memory_headroom"]
    assert action.new == new
    if not new:
        assert "with a lower one the server would not start" in action.title
        assert "longest request of 99,000 tokens" in action.why
        assert "--gpu-memory-utilization" not in actions["apply"].flags


def test_the_target_is_raised_where_the_device_has_room():
    # 0.6 of the device is used: 0.25 are free below 0.85, so 0.6 + 0.25; the pool gains 0.25 / 0.6 of itself.
    given = {"derived": {"engine_gpu_memory_used_ratio": 0.6}, "limits": limits(gpu_memory_utilization=Limit(0.6))}
    action = kv(device_oom=False, **given)["memory_headroom"]
    assert action.new == "0.85"
    assert "at least 41,667 tokens" in action.why
    assert kv(device_oom=False, memory_rising=True, **given)["memory_headroom"].new == ""


def test_batched_tokens_are_halved_where_memory_is_short_but_not_below_what_prefill_needs():
    def action(**changes):
        return kv(memory_rising=True, limits=limits(**changes)).get("max_num_batched_tokens")

    assert action().new == "4,096"
    assert action(max_num_batched_tokens=Limit(1500)).new == "1,024"
    assert action(max_num_batched_tokens=Limit(1024)) is None
    assert "max_num_batched_tokens" not in kv()


def test_one_rollout_carries_all_flags():
    assert tight(memory_rising=True)["apply"].flags == {"--max-num-seqs": "22", "--max-num-batched-tokens": "4096"}


def test_recovery_is_judged_by_our_series_with_what_is_seen_now():
    checks = tight()["verify"].checks
    labels = 'namespace="prod",model_name="llama-3"'
    assert f'kvpressure_bottleneck{{{labels},cause="kv_cache_pressure"}} == 0' in checks
    assert f"kvpressure_admission_blocked_ratio{{{labels}}} < 0.5  # now 0.85" in checks
    assert "2 minutes" in checks[0]


@pytest.mark.parametrize(("ratio", "is_verified"), [(0.3, True), (0.0, False)])
def test_what_holds_already_is_not_verified(ratio: float, is_verified: bool):
    checks = kv(derived={"preempted_request_ratio": ratio})["verify"].checks
    assert any("preempted_request_ratio" in check for check in checks) is is_verified
    assert "" not in checks


def test_a_host_oom_is_told_apart_from_the_gpu():
    action = kv(Stage.FAILING, host_oom=True)["host_memory"]
    assert "neither the GPU nor the KV pool" in action.why
    assert "host_memory" not in kv()


def test_a_device_oom_is_answered_even_when_the_restarted_engine_looks_idle():
    assert keys(Cause.IDLE, device_oom=True) == ["memory_headroom", "max_num_batched_tokens", "apply", "restart"]


def test_concurrency_is_raised_to_what_fits_and_is_wanted():
    # 32 run, 30 wait: 62 want to; with 150 tokens each at most 666 would fit, and 64 is the double.
    derived = {
        "requests_running": 32.0,
        "requests_running_max": 32.0,
        "requests_waiting": 30.0,
        "kv_cache_usage_ratio": 0.27,
        "prompt_tokens": {"0.5": 30.0, "0.95": 50.0},
        "output_tokens": {"0.5": 60.0, "0.95": 100.0},
    }
    first = advice(Cause.CONCURRENCY_BOUND, derived=derived, limits=limits(max_num_seqs=Limit(32)))[0]
    assert (first.current, first.new) == ("32 (declared)", "62")
    assert "KV usage goes from 27% to about 52%" in first.why  # 0.27 * 62 / 32


def test_concurrency_is_not_raised_beyond_what_fits():
    full = advice(Cause.CONCURRENCY_BOUND, limits=limits(max_num_seqs=Limit(28)))
    assert [action.key for action in full] == ["add_replica"]
    blind = advice(Cause.CONCURRENCY_BOUND, limits=Limits())
    assert [(one.key, one.new, one.flags, one.when) for one in blind] == [
        ("add_replica", "", {}, NOW),
        ("max_num_seqs", "", {}, AFTER),
    ]


def test_compute_bound_gets_more_gpu_or_less_work_and_no_larger_batch():
    actions = advice(Cause.COMPUTE_BOUND)
    assert [action.key for action in actions] == ["add_replica", "less_work", "verify"]
    assert not any(action.flags for action in actions)


def test_host_bound_begins_with_what_the_evidence_shows():
    assert keys(Cause.HOST_BOUND, frontend_slow=True)[0] == "api_servers"
    assert keys(Cause.HOST_BOUND, cpu_pressed=True)[0] == "cpu"


def test_stuck_saves_the_evidence_before_the_restart():
    assert keys(Cause.STUCK) == ["save_evidence", "restart"]
    assert any("py-spy" in line for line in advice(Cause.STUCK)[0].commands)


@pytest.mark.parametrize("evidence", [{}, {"device_oom": True}])
def test_the_heading_of_what_a_stuck_server_needs_now_does_not_promise_to_spare_it_a_restart(evidence):
    assert [heading for heading, _ in by_time(advice(Cause.STUCK, **evidence))] == ["Now"]
    found = diagnosis(Cause.STUCK)
    young = advise(replace(found, since=found.t), SHAPE, LIMITS, PRODUCTION, THRESHOLDS)
    assert [heading for heading, _ in by_time(young)] == ["Now, without a restart"]


def test_nothing_is_to_be_done_when_nothing_is_wrong():
    assert advice(Cause.IDLE) == advice(Cause.HEALTHY) == ()


def test_pressure_that_only_builds_up_is_met_at_the_edge():
    assert keys(Cause.HEALTHY, Stage.BUILDING) == ["cap_tokens", "verify"]


def test_unknown_says_what_was_not_judged():
    (action,) = advice(Cause.UNKNOWN, kv_saturated=False)
    assert "admission_blocked" in action.why
    assert "kv_saturated" not in action.why


def test_limits_come_from_what_was_declared_then_the_page_then_the_running_batch():
    page = CacheConfig(max_model_len=4096, gpu_memory_utilization=0.92)
    bound = known_limits(diagnosis(Cause.CONCURRENCY_BOUND), SHAPE, page, {"max_model_len": 2048.0})
    assert bound.max_model_len == Limit(2048.0, "declared")
    assert bound.gpu_memory_utilization == Limit(0.92, "page")
    assert bound.max_num_seqs == Limit(44.0, "learned plateau of running")
    assert bound.max_num_batched_tokens is None


def test_under_kv_pressure_the_running_batch_says_nothing_of_max_num_seqs():
    assert known_limits(diagnosis(Cause.KV_CACHE_PRESSURE), SHAPE).max_num_seqs is None


def test_what_is_evicted_beside_requests_that_wait_is_cured_too_and_each_change_is_told_once():
    found = diagnosis(Cause.KV_CACHE_PRESSURE, Stage.COLLAPSED, admission_blocked=True, kv_saturated=True)
    evicting = Evidence("evicting", True, "share of the time", 0.4, 0.2, "ratio")
    both = replace(found, symptoms={**found.symptoms, "evicting": evicting})
    told = [action.key for action in advise(both, SHAPE, LIMITS, PRODUCTION, THRESHOLDS)]
    assert {"cap_tokens", "fewer_sessions", "kv_cache_dtype", "kv_offloading"} <= set(told)
    assert len(told) == len(set(told))
    assert told[-1] == "verify"
    alone = [action.key for action in advise(found, SHAPE, LIMITS, PRODUCTION, THRESHOLDS)]
    assert "fewer_sessions" not in alone

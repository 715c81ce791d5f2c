"""The second word of a verdict: from recordings of vLLM's own scheduler, and from evidence made by hand."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvpressure.cli import replay
from kvpressure.cli.replay import MARKS, Replay, ReplayTarget
from kvpressure.diagnosis.diagnose import Diagnostician
from kvpressure.diagnosis.facts import Inputs
from kvpressure.diagnosis.symptoms import judge_all
from kvpressure.engines.recordings import TraceError
from kvpressure.model.environment import PREFILL, DeclaredLimit
from kvpressure.model.verdict import DETAILS, Cause, Diagnosis
from kvpressure.signals.transfer import Transfer
from kvpressure.signals.waiting import Deferral
from tests.support.verdicts import LAB, THRESHOLDS, grounds, inputs, rule, views

pytestmark = pytest.mark.recorded

EVERY = sorted((*LAB.glob("*.xz"), *(LAB / "apart").glob("*.xz")))
EXPECTED = {
    "deferred-lora-0.33.0": (Cause.DEFERRED, "lora_slots"),
    "deferred-remote-0.33.0": (Cause.DEFERRED, "external_kv"),
    "paused-keep-0.33.0": (Cause.PAUSED, "pause_call"),
    "stuck-hang-0.33.0": (Cause.STUCK, "frozen"),
    "kv-stranded-0.33.0": (Cause.KV_CACHE_PRESSURE, "stranded"),
    "kv-collapse-0.12.0": (Cause.KV_CACHE_PRESSURE, "admission"),
    "idle-stream-0.33.0": (Cause.IDLE, "streams"),
    "cap-prefix-0.33.0": (Cause.CONCURRENCY_BOUND, "sequence_cap"),
    "healthy-pooling-0.33.0": (Cause.HEALTHY, ""),
    "apart/decode-kv-backs-up-prefill-0.33.0": (Cause.KV_CACHE_PRESSURE, "held_for_transfer"),
    "apart/decode-kv-backs-up-decode-0.33.0": (Cause.KV_CACHE_PRESSURE, "admission"),
    "apart/transfer-decode-0.33.0": (Cause.DEFERRED, "transfer"),
}
"""The verdict at the end of each; the lab's fixtures say the same of the scheduler's own reasons."""

NOTHING_ELSE = Deferral(connector=False, images=False)
NO_REASONS = {"reasons_known": False, "blocked_ratio": 0.0, "blocked_by_longest_ratio": 0.0}
FITS = {"blocked_ratio": 0.0, "blocked_by_long_ratio": 0.0}


def word(cause: Cause, made: Inputs) -> str:
    won = rule(made)
    assert won.cause is cause
    assert won.detail in {"", *DETAILS[cause]}
    return won.detail


def verdicts(path: Path) -> list[Diagnosis]:
    return [view.diagnosis for view in views(path) if view.diagnosis is not None]


@pytest.mark.parametrize("name", EXPECTED)
def test_a_recording_ends_with_the_detail_of_what_happened_in_it(name: str):
    last = verdicts(LAB / f"{name}.jsonl.xz")[-1]
    assert (last.cause, last.detail) == EXPECTED[name]
    assert bool(last.grounds) == bool(last.detail)


@pytest.mark.parametrize("path", EVERY, ids=lambda path: path.name)
def test_every_detail_is_a_word_of_its_cause_and_none_flaps(path: Path):
    named = verdicts(path)
    assert all(one.detail in {"", *DETAILS[one.cause]} for one in named)
    changes = [
        after.t
        for before, after in pairwise(named)
        if after.cause is before.cause and before.detail and after.detail != before.detail
    ]
    assert all(b - a >= THRESHOLDS.verdict.cause_hold_seconds for a, b in pairwise(changes))
    assert len(changes) <= 4


def test_a_hung_engine_says_what_stands_still_and_since_when_also_beyond_the_window():
    last = verdicts(LAB / "stuck-hang-0.33.0.jsonl.xz")[-1]
    named = [one for one in verdicts(LAB / "stuck-hang-0.33.0.jsonl.xz") if one.cause is Cause.STUCK]
    assert "generated tokens" in last.grounds
    assert "the use of the KV cache" in last.grounds
    assert "8 requests run, 0 wait" in last.grounds
    began = {one.grounds.partition("since ")[2].partition(" UTC")[0] for one in named}
    assert len(began) == 1, "the time at which it stopped does not move"


def test_a_recording_with_deferred_and_paused_is_drawn():
    assert set(MARKS) == set(Cause)
    assert len(set(MARKS.values())) == len(MARKS)
    result = CliRunner().invoke(replay.command, [str(LAB / "paused-keep-0.33.0.jsonl.xz")])
    assert result.exit_code == 0, result.output
    assert "paused/pause_call" in result.output


@pytest.mark.parametrize(
    ("found", "fetching", "expected"),
    [
        (Deferral(connector=True, remote=True), 1.0, "remote_kv"),
        (Deferral(connector=True, offload=True), 1.0, "offload"),
        (Deferral(connector=True, remote=True, offload=True), 1.0, "external_kv"),
        (Deferral(connector=True), 0.9, "external_kv"),
        (
            replace(NOTHING_ELSE, slots=4.0, adapters_oversubscribed=True, slots_taken=True),
            None,
            "lora_slots",
        ),
        (NOTHING_ELSE, None, "grammar"),
        (Deferral(connector=True, images=False), 0.0, "grammar"),
        (
            replace(NOTHING_ELSE, slots=4.0, adapters_oversubscribed=False, slots_taken=True),
            None,
            "grammar",
        ),
        (Deferral(connector=False, images=True), None, ""),
        (Deferral(connector=True, images=False), None, ""),
        (replace(NOTHING_ELSE, slots=4.0, adapters_oversubscribed=True, slots_taken=False), None, ""),
        (Deferral(), None, ""),
    ],
)
def test_what_is_waited_for_is_named_only_where_nothing_else_can_be_it(found, fetching, expected):
    made = inputs(deferral=found, fetching_ratio=fetching, deferred_ratio=1.0)
    assert word(Cause.DEFERRED, made) == expected


def test_without_the_reasons_for_waiting_a_connector_is_named_by_what_it_brings():
    found = Deferral(connector=True, brought_ratio=0.8, offload=True)
    text = grounds(inputs(deferral=found, **NO_REASONS))
    assert text == ("offload", "80% of the prompts' tokens come from elsewhere; an offload tier is in use.")


def test_how_fast_loads_are_and_what_the_tier_had_no_room_for_is_said():
    def said(**more: float) -> str:
        made = inputs(deferral=Deferral(connector=True, brought_ratio=0.8, offload=True), **NO_REASONS)
        found = replace(made.window.deferral, **more)
        return grounds(replace(made, window=replace(made.window, deferral=found)))[1]

    loads = {"load_tokens_per_second": 900.0, "prompt_tokens_per_second": 4000.0}
    assert said(failed_loads=3.0, dropped_stores=40.0, **loads).endswith(
        " an offload tier is in use. 3 loads of KV failed in the last minutes. One load brings 900 tokens a second, "
        "computing them 4,000. 40 stores into it were dropped in the last minutes: it had no room."
    )
    assert said(read_seconds_per_gigabyte=2.5).endswith(" A gigabyte from its slower tier takes 2.5 s.")
    assert said(load_bytes_per_second=2.4e9).endswith(" an offload tier is in use. One load brings 2.4 GB a second.")
    assert said(loads=1.5).endswith(" in use. 1.5 loads from it are under way at a time.")


def test_without_the_reasons_for_waiting_what_is_left_has_no_word():
    text = grounds(inputs(deferral=NOTHING_ELSE, **NO_REASONS, waited_steps=640.0, prefilling=0.0))
    assert text == ("", "They fit, and wait for 640 steps: for a grammar, or behind one that a limit holds back.")


def test_without_a_word_the_grounds_say_between_what_it_is():
    made = inputs(deferral=Deferral(connector=True, images=True), deferred_ratio=1.0)
    assert grounds(made) == (
        "",
        "For a grammar or KV from elsewhere or room for an image: the page does not say which.",
    )


@pytest.mark.parametrize(
    ("declared", "at_cap", "step_tokens", "expected"),
    [
        ({}, True, 40.0, "sequence_cap"),
        ({"max_num_seqs": 16.0}, True, 40.0, "max_num_seqs"),
        ({"max_num_seqs": 64.0}, True, 40.0, ""),
        ({"max_num_seqs": 64.0, "max_num_batched_tokens": 2048.0}, False, 2040.0, "prefill_budget"),
        ({"max_num_batched_tokens": 8192.0}, False, 2040.0, "head_of_line"),
        ({}, False, 2040.0, ""),
    ],
)
def test_a_cap_is_named_by_its_flag_only_where_the_flag_is_known(declared, at_cap, step_tokens, expected):
    made = inputs({"requests_running_max": 16.0}, declared, at_cap=at_cap, step_tokens=step_tokens, **FITS)
    assert word(Cause.CONCURRENCY_BOUND, made) == expected


@pytest.mark.parametrize("usage", [0.5, 0.97])
def test_a_cap_nobody_knows_of_in_a_full_pool_may_be_a_watermark(usage):
    made = inputs(
        {"requests_running_max": 24.0}, at_cap=True, step_tokens=40.0, kv_usage_ratio=usage, blocked_ratio=0.0
    )
    detail, text = grounds(made)
    assert detail == "sequence_cap"
    assert ("a watermark would look the same" in text) == (usage > 0.9)


PREEMPTING = {"burst_count": 3, "request_ratio": 0.3, "kv_usage_ratio": 0.6}


@pytest.mark.parametrize(
    ("cause", "recent", "expected"),
    [
        (Cause.KV_CACHE_PRESSURE, PREEMPTING, "preemption"),
        (Cause.KV_CACHE_PRESSURE, {"blocked_ratio": 0.9, "blocked_by_long_ratio": 0.9}, "admission"),
        (Cause.KV_CACHE_PRESSURE, {"kv_usage_ratio": 0.97, "blocked_ratio": 0.0}, "full"),
        (Cause.KV_CACHE_PRESSURE, PREEMPTING | {"blocked_ratio": 0.9, "by_watermark_ratio": 0.8}, "watermark"),
        (Cause.KV_CACHE_PRESSURE, {"blocked_ratio": 0.9, "by_watermark_ratio": 0.2}, "admission"),
        (Cause.KV_CACHE_PRESSURE, {"blocked_ratio": 0.0, "blocked_by_longest_ratio": 0.9}, "admission"),
        (Cause.KV_CACHE_PRESSURE, {"blocked_ratio": 0.0, "in_window": True}, "preemption"),
        (Cause.KV_CACHE_PRESSURE, {"blocked_ratio": 1.0, "still_seconds": 20.0}, "stranded"),
        (Cause.KV_CACHE_PRESSURE, {"blocked_ratio": 1.0, "still_seconds": 20.0, "reasons_known": False}, "stranded"),
        (Cause.STUCK, {"kv_usage_ratio": 0.3, "frozen_seconds": 40.0}, "frozen"),
        (Cause.STUCK, {"kv_usage_ratio": 0.3, "looping_seconds": 40.0}, "looping"),
        (Cause.STUCK, {"kv_usage_ratio": 0.3, "still_seconds": 20.0}, "nothing_runs"),
        *((Cause.PAUSED, {"paused_by": by}, by) for by in DETAILS[Cause.PAUSED]),
    ],
)
def test_the_detail_says_how_the_cache_is_short_how_it_is_stuck_and_how_it_was_paused(cause, recent, expected):
    assert word(cause, inputs(**recent)) == expected


def test_preemption_says_what_it_throws_out_where_that_is_known():
    text = judge_all(inputs({"kv_preempted_tokens_per_second": 1234.4}, **PREEMPTING))["preempting"].text
    assert text == "preemptions per request served: 30%; about 1,234 tokens of KV cache lost to it per second"
    assert "lost to it" not in judge_all(inputs(**PREEMPTING, blocked_ratio=None))["preempting"].text


@pytest.mark.parametrize(("ratio", "expected"), [(0.95, "prefill"), (0.7, ""), (0.1, "decode"), (None, "")])
def test_compute_goes_into_prompts_or_into_answers(ratio, expected):
    made = inputs(prefill_ratio=ratio, gpu_utilization_ratio=0.97, **FITS)
    assert word(Cause.COMPUTE_BOUND, made) == expected


HELD_UP = {"prefill_ratio": 0.99, "step_tokens": 900.0, "held_up_ratio": 0.6, "prefilling": 0.7}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "compute.prefill"),
        ({"held_up_ratio": 0.3}, "healthy.served"),
        ({"held_up_ratio": None}, "healthy.served"),
        ({"prefill_ratio": 0.6}, "healthy.served"),
        ({"waiting": 5.0, "waiting_ratio": 1.0, "at_cap": True}, "concurrency.sequence_cap"),
    ],
)
def test_long_prompts_that_hold_up_those_who_decode_are_compute(given, expected):
    quiet = {"waiting": 0.0, "waiting_ratio": 0.0, **FITS}
    assert rule(inputs(**(quiet | HELD_UP | given))).id == expected


def test_the_grounds_say_how_much_of_the_time_prompts_take():
    _, said = grounds(inputs(waiting=0.0, waiting_ratio=0.0, **FITS, **HELD_UP))
    assert (
        said
        == "99% of the tokens computed are of prompts. Steps with prompts take at least 60% of the time between tokens."
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "compute.decode_bandwidth"),
        ({"slowdown_factor": 2.2, "step_tokens": 60.0}, "compute.decode"),
        ({"slowdown_factor": 1.5}, "healthy.served"),
        ({"kv_usage_ratio": 0.22}, "healthy.served"),
        ({"prefill_ratio": 0.8}, "healthy.served"),
        ({"gpu_utilization_ratio": 0.2}, "healthy.served"),
        ({"waiting": 5.0, "waiting_ratio": 1.0, "blocked_by_longest_ratio": 1.0}, "kv.longest"),
    ],
)
def test_decoding_that_reads_more_context_and_gives_no_more_tokens_is_bound_by_bandwidth(given, expected):
    decoding = {"prefill_ratio": 0.1, "step_tokens": 25.0, "slowdown_factor": 2.5, "kv_usage_ratio": 0.6}
    found = inputs(**({"waiting": 0.0, "waiting_ratio": 0.0} | FITS | decoding | given))
    found = replace(found, baseline={"step_tokens": 20.0, "kv_usage": 0.2})
    assert rule(found).id == expected
    if not given:
        assert grounds(found)[1] == (
            "Steps that decode take 2.5 times as long as healthy ones and read 3.0 times as much context; generated "
            "tokens have not grown with it."
        )


@pytest.mark.parametrize(
    ("recent", "derived", "expected"),
    [
        ({"polls": 5, "seconds": 4.0}, {}, "too_few_polls"),
        ({"demand": None}, {}, "no_gauges"),
        ({}, {"kv_capacity_tokens": 1000.0}, "cold_start"),
        ({"kv_usage_ratio": None}, {"kv_capacity_tokens": 1000.0}, "no_gauges"),
        ({"blocked_ratio": 0.2, "blocked_by_longest_ratio": 0.9, "fit_unknown": True}, {}, "layers_differ"),
        ({"blocked_ratio": 0.2, "reasons_known": False}, {}, "no_reasons"),
        ({"blocked_ratio": 0.4, "blocked_by_long_ratio": 0.4}, {}, ""),
    ],
)
def test_unknown_says_what_is_missing(recent, derived, expected):
    assert word(Cause.UNKNOWN, inputs(derived, **recent)) == expected


def test_a_watermark_is_reported_with_how_much_it_keeps():
    made = inputs({"kv_free_tokens": 96.0}, {"kv_watermark_ratio": 0.1}, blocked_ratio=0.9, by_watermark_ratio=0.8)
    assert grounds(made) == (
        "watermark",
        "10.0% of the cache is kept free, 96 tokens are left: but for that a prompt would fit in 84% of the polls.",
    )


def test_declared_to_vllm_it_reaches_the_verdict_on_a_recording():
    path = LAB / "kv-watermark-long-0.33.0.jsonl.xz"
    declared = [DeclaredLimit("kv_watermark_ratio", 0.05, "--watermark=0.05")]
    details = {limits is not None: [] for limits in (None, declared)}
    for limits in (None, declared):
        for item in Replay(ReplayTarget("t", limits=limits), THRESHOLDS).views(path):
            assert not isinstance(item, TraceError)
            details[limits is not None] += [view.diagnosis.detail for view in item[1] if view.diagnosis]
    assert details[False].count("watermark") == 0
    assert details[True].count("watermark") > len(details[True]) / 4


def test_a_detail_stays_as_long_as_a_cause_does_and_empty_gives_way_at_once():
    """The symptom under it comes and goes with every request that ends."""
    blocked = inputs(blocked_ratio=0.9, blocked_by_long_ratio=0.9, burst_count=0, request_ratio=0.0)
    preempting = inputs(blocked_ratio=0.9, blocked_by_long_ratio=0.9, **PREEMPTING)
    engine, details = Diagnostician(), []
    for t in range(40):
        odd = t in (20, 21) or t >= 30
        details.append(engine.diagnose(float(t), preempting if odd else blocked).detail)
    assert set(details[:30]) == {"admission"}
    assert details[33:] == ["admission"] * 1 + ["preemption"] * 6


@pytest.mark.parametrize(
    ("ratio", "seconds", "detail"), [(0.8, 9.0, "held_for_transfer"), (0.8, 1.0, "admission"), (0.3, 9.0, "admission")]
)
def test_a_prefill_engine_whose_prompts_are_read_at_once_lacks_cache_of_its_own(
    ratio: float, seconds: float, detail: str
):
    polls = inputs({"kv_capacity_tokens": 10_000.0}, blocked_ratio=0.9, reasons_known=True)
    transfer = Transfer(PREFILL, held_tokens=4000.0, held_kv_ratio=ratio, held_seconds=seconds)
    assert rule(replace(polls, window=replace(polls.window, transfer=transfer))).detail == detail
    assert rule(polls).detail == "admission"

"""`concurrency_bound`, `compute_bound` and `host_bound`: what limits an engine whose cache has room.

A limit on the batch keeps requests waiting, the GPU computes as much as it can, or the time passes outside the GPU: in
the API process or for lack of CPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kvpressure.diagnosis.facts import Facts, capital
from kvpressure.diagnosis.predicates import batch, progress, queue, room, stall, symptoms
from kvpressure.diagnosis.rules import of_symptom, rules_of, same
from kvpressure.diagnosis.symptoms import estimated_work
from kvpressure.model.values import number
from kvpressure.model.verdict import Cause
from kvpressure.signals.baseline import KV_USAGE
from kvpressure.signals.throughput import tokens_of_a_step

_NO_CACHE: Final[Mapping[str, bool]] = {"admission_blocked": False, "preempting": False}

_capped = queue.queued & batch.at_cap
"""Which flag sets the cap shows only in how the engine was started."""

# After a preemption, what fills the cache may be a preempted request that is computed again.
_long_prompt_alone = queue.queued & progress.computes_long_prompt & ~room.preempted_in_long_window
_fits = (
    queue.queued
    & queue.somebody_runs
    & ~progress.computes_long_prompt
    & room.long_fits
    & (room.room_is_ample | ~room.preempted_in_long_window)
)
"""All that wait fit, and no cap limits the batch: another limit of the scheduler does."""

_takes_turns = queue.queued & batch.prompts_take_turns & batch.small_prompt_steps
"""Steps without answers, full of as few tokens as they may have: the next prompt waits for those before it."""


def _stays(facts: Facts) -> str:
    running = facts.inputs.value("requests_running_max")
    at = "" if running is None else f" at {number(running)}"
    return f"The batch stays{at}, its highest of the last ten minutes"


def _declared(facts: Facts, name: str) -> str:
    return number(facts.inputs.declared.get(name, 0.0))


def _sequence_cap(facts: Facts) -> str:
    like = "; a watermark would look the same" if facts.symptom("kv_saturated") else ""
    computed = tokens_of_a_step(facts.inputs.derived)
    step = "" if computed is None else f", to which a step of about {number(round(computed))} tokens computes"
    kept = "reserve_ratio" in facts.inputs.signals and facts.window.fit.by_reserve_ratio is None
    also = ", or room that is kept for answers" if kept else ""
    cap = facts.inputs.own_names.get("max_num_seqs", "max_num_seqs")
    return (
        f"{_stays(facts)}; how many it may have was not to be read{like}. It is {cap}, or the budget of "
        f"tokens of a step{step}{also}: they look the same."
    )


def _max_num_seqs(facts: Facts) -> str:
    return f"{_stays(facts)}; {number(facts.most_sequences or 0.0)} are allowed."


def _another_cap(facts: Facts) -> str:
    allowed = number(facts.most_sequences or 0.0)
    return f"{_stays(facts)}, and {allowed} are allowed: another of the scheduler's limits applies."


def _step(facts: Facts) -> str:
    step = number(round(facts.window.throughput.step_tokens or 0.0))
    return f"A step computes {step} tokens; {_declared(facts, 'max_num_batched_tokens')} are allowed."


def _small_steps(facts: Facts) -> str:
    throughput = facts.window.throughput
    share, tokens = throughput.prompt_steps_ratio or 0.0, number(round(throughput.prompt_step_tokens or 0.0))
    return f"{share:.0%} of the steps have prompts alone, {tokens} tokens each: those that wait, wait for their turn."


def _head_of_line(facts: Facts) -> str:
    return f"{_step(facts)} The batch is below its highest, and those that wait would fit."


def _queue_limit(facts: Facts) -> str:
    return f"{capital(facts.symptoms['load_shed'].text.removesuffix('.'))}; hardly any request waits."


def _prefill_share(facts: Facts) -> str:
    ratio = facts.window.throughput.prefill_ratio
    return "" if ratio is None else f"{ratio:.0%} of the tokens computed are of prompts{estimated_work(facts.inputs)}."


def _prompts(facts: Facts) -> str:
    return " ".join(filter(None, (_prefill_share(facts), _held_up(facts), _scattered(facts))))


def _long_prompt(facts: Facts) -> str:
    seconds = number(facts.window.progress.filling_seconds)
    return f"For {seconds} s the KV cache only filled, and no prompt was done: a long one was computed, others waited."


def _prompt_alone(facts: Facts) -> str:
    stall = facts.window.stall
    said = f"For {number(round(stall.seconds))} s a prompt has been computed, and its client has not got a token yet."
    if not stall.tokens:
        return said
    return f"{said} All others together get {stall.tokens_per_second or 0.0:.2g} tokens/s meanwhile."


def _held_up(facts: Facts) -> str:
    ratio = facts.window.throughput.held_up_ratio
    if not batch.prompts_hold_up.state(facts) or ratio is None:
        return ""
    return f"Steps with prompts take at least {ratio:.0%} of the time between tokens."


def _context(facts: Facts) -> str:
    usage, slowdown = facts.window.kv_usage_ratio or 0.0, facts.window.throughput.slowdown_factor or 0.0
    return (
        f"Steps that decode take {slowdown:.1f} times as long as healthy ones and read "
        f"{usage / facts.inputs.baseline[KV_USAGE]:.1f} times as much context; generated tokens have not grown with it."
    )


def _scattered(facts: Facts) -> str:
    """Say that other replicas find what this one does not, although its cache is no shorter-lived; else ""."""
    eviction = facts.window.eviction
    hits, elsewhere = eviction.hit_ratio, eviction.hit_ratio_elsewhere
    if hits is None or elsewhere is None or hits >= 1.0:
        return ""
    if (elsewhere - hits) / (1.0 - hits) < facts.thresholds.eviction.recomputed_min_ratio:
        return ""
    return (
        f"Prefix hits are {hits:.0%} here and {elsewhere:.0%} at other replicas of the model whose cache turns over no "
        "more slowly: this may be the routing, which should send a session to the same replica each time."
    )


RULES: Final = (
    *rules_of(
        Cause.CONCURRENCY_BOUND,
        "concurrency",
        {"admission_blocked": False, "kv_saturated": False, "preempting": False, "throughput_plateau": True},
        ("max_num_seqs", "max_num_seqs", _capped & batch.at_declared_cap, _max_num_seqs),
        ("another_cap", "", _capped & ~batch.at_declared_cap, _another_cap),
        ("sequence_cap", "sequence_cap", _capped, _sequence_cap),
        ("small_steps", "prefill_budget", _takes_turns, _small_steps),
        ("prefill_budget", "prefill_budget", _fits & batch.step_at_budget, _step),
        ("head_of_line", "head_of_line", _fits & ~batch.step_at_budget, _head_of_line),
        ("another_limit", "", _fits, same("Which of the scheduler's limits it is, the page does not say.")),
        # No request waits, because those that would have to are refused.
        ("queue_limit", "queue_limit", symptoms.is_shedding_load & ~queue.queued, _queue_limit),
    ),
    *rules_of(
        Cause.COMPUTE_BOUND,
        "compute",
        {**_NO_CACHE, "gpu_compute_low": False, "latency_inflated": True},
        ("queued_prefill", "prefill", queue.queued & batch.prefill_limits, _prompts),
        ("long_prompt", "long_prompt", _long_prompt_alone, _long_prompt),
        ("long_prompt_alone", "long_prompt", stall.prompt_takes_long, _prompt_alone),
        ("prefill", "prefill", batch.compute_limits & batch.mostly_prefill, _prompts),
        ("decode_bandwidth", "decode_bandwidth", batch.bandwidth_limits, _context),
        ("decode", "decode", batch.compute_limits & batch.mostly_decode, _prefill_share),
        ("mixed", "", batch.compute_limits, _prefill_share),
    ),
    *rules_of(
        Cause.HOST_BOUND,
        "host",
        {**_NO_CACHE, "gpu_compute_low": True, "frontend_slow": True, "cpu_pressed": True},
        ("front_end", "front_end", symptoms.frontend_slow, of_symptom("frontend_slow")),
        ("cpu", "cpu", symptoms.cpu_pressed & batch.slowed_by_cpu, of_symptom("cpu_pressed")),
    ),
)

"""What limits the batch, and what its steps are full of."""

from __future__ import annotations

from typing import Final

from kvpressure.diagnosis.facts import Facts
from kvpressure.diagnosis.predicates import Fact, Shared, below, fact, reaches
from kvpressure.diagnosis.predicates.queue import queued
from kvpressure.diagnosis.predicates.room import cache_may_hold_queue
from kvpressure.signals.baseline import KV_USAGE, STEP_TOKENS

MOSTLY_ANSWERS_RATIO: Final = 0.5
"""Below, fewer tokens are computed of prompts than of answers."""
MOSTLY_PROMPTS_RATIO: Final = 0.5


at_cap = Fact(lambda facts: None if facts.window.fit.cap_untold else facts.window.fit.at_cap, "steps")
"""Whether a fixed cap limits the batch; None where a full cache may as well."""

refilled = Fact(lambda facts: facts.window.fit.refilled)
"""Whether enough requests have come to tell a limit of the scheduler from those that are in the batch."""

steady = Fact(lambda facts: reaches(facts.window.fit.steadiness, facts.thresholds.batch.at_cap_min_ratio))
"""Whether the batch stays at its highest of the last ten minutes while requests wait."""


@fact("declared")
def at_declared_cap(facts: Facts) -> bool | None:
    """Return whether the batch is as large as it may be; None where the cap was not read."""
    declared, running = facts.most_sequences, facts.inputs.value("requests_running_max")
    return None if declared is None else reaches(running, facts.thresholds.batch.at_cap_min_ratio * declared)


@fact("declared")
def step_at_budget(facts: Facts) -> bool | None:
    """Return whether steps compute as many tokens as they may."""
    budget, step = facts.inputs.declared.get("max_num_batched_tokens"), facts.window.throughput.step_tokens
    return None if budget is None else reaches(step, facts.thresholds.batch.at_cap_min_ratio * budget)


@fact("steps")
def steps_full(facts: Facts) -> bool | None:
    """Return whether steps compute so many tokens that a GPU is full; of those with prompts, where they are counted."""
    throughput = facts.window.throughput
    tokens = throughput.step_tokens if throughput.prompt_step_tokens is None else throughput.prompt_step_tokens
    return reaches(tokens, facts.thresholds.batch.prefill_full_step_min_tokens)


mostly_prefill = Fact(
    lambda facts: reaches(facts.window.throughput.prefill_ratio, facts.thresholds.batch.prefill_dominant_min_ratio)
)
"""Whether nearly all tokens computed are of prompts."""


@fact()
def mostly_decode(facts: Facts) -> bool | None:
    """Return whether no more tokens are computed of prompts than of answers."""
    ratio = facts.window.throughput.prefill_ratio
    return None if ratio is None else ratio <= MOSTLY_ANSWERS_RATIO


prefills_overlap = Fact(
    lambda facts: reaches(facts.window.throughput.prefilling, facts.thresholds.batch.prefill_busy_min_count),
    "prefill_seconds",
)
"""Whether there is never a moment without prompts to compute."""

prompts_hold_up = Fact(
    lambda facts: reaches(facts.window.throughput.held_up_ratio, facts.thresholds.batch.held_up_min_ratio)
)
"""Whether most of the time between tokens is spent in steps that prompts slow down."""

often_empty = Fact(lambda facts: below(facts.window.queue.demand, 1))
"""Whether there is less than one request on average, so that at times there is nothing to compute."""

slower = Fact(
    lambda facts: reaches(
        facts.window.throughput.slowdown_factor, facts.thresholds.symptoms.latency_inflated_min_factor
    )
)
"""Whether steps take much longer than healthy ones, over the newest polls."""


@fact("steps")
def fuller(facts: Facts) -> bool | None:
    """Return whether steps compute many more tokens than healthy ones."""
    healthy, step = facts.inputs.baseline.get(STEP_TOKENS), facts.window.throughput.step_tokens
    return None if healthy is None else reaches(step, facts.thresholds.batch.step_fuller_min_factor * healthy)


@fact("steps")
def reads_more(facts: Facts) -> bool | None:
    """Return whether decoding reads much more context than in healthy steps, and gets no more tokens for it.

    Every step reads all KV of the running requests. Where steps are slower by more than they have more tokens, a larger
    batch has bought nothing.
    """
    window, thresholds = facts.window, facts.thresholds
    tokens, usage = window.throughput.step_tokens, window.kv_usage_ratio
    healthy_tokens, healthy_usage = (facts.inputs.baseline.get(name) for name in (STEP_TOKENS, KV_USAGE))
    slowdown = window.throughput.slowdown_factor
    if tokens is None or not healthy_tokens or not healthy_usage or usage is None or slowdown is None:
        return None
    return usage >= thresholds.batch.step_fuller_min_factor * healthy_usage and slowdown >= tokens / healthy_tokens


gpu_idle = Fact(
    lambda facts: below(facts.window.gpu_utilization_ratio, facts.thresholds.gpu.compute_low_max_ratio), "gpu"
)
"""Whether its GPUs have been idle for much of the polls."""

gpu_busy = Fact(
    lambda facts: reaches(facts.window.gpu_utilization_ratio, facts.thresholds.gpu.compute_high_min_ratio), "gpu"
)
"""Whether its GPUs have been busy, which says only that some kernel runs: one request can show 100 %."""

_slow_now = slower | queued


@fact("gpu")
def slowed_by_cpu(facts: Facts) -> bool | None:
    """Return whether CPU shortage slows the engine: its GPU idles under demand; without GPU data, steps are slow now.

    CPUs may be short for everything else on the host while the engine's few threads get what they need.
    """
    gpu_idle = facts.symptom("gpu_compute_low")
    if gpu_idle is None:
        return _slow_now.state(facts)
    return gpu_idle and reaches(facts.window.queue.demand, 1)


small_prompt_steps = Fact(
    lambda facts: below(facts.window.throughput.prompt_step_tokens, facts.thresholds.batch.prefill_full_step_min_tokens)
)
"""Whether steps with prompts compute so few tokens that no GPU is full of them."""


@fact()
def prompts_take_turns(facts: Facts) -> bool | None:
    """Return whether most steps have prompts and nothing else: a request waits for those before it."""
    ratio = facts.window.throughput.prompt_steps_ratio
    return None if ratio is None else ratio > MOSTLY_PROMPTS_RATIO


prefill_limits = Shared(mostly_prefill & steps_full)
"""Steps are full of prompts: a waiting request waits for the GPU to compute those before it."""

compute_limits = Shared(
    (prefill_limits & prefills_overlap)
    | (mostly_prefill & prompts_hold_up & ~small_prompt_steps.known_true() & ~often_empty.known_true())
    | (slower & fuller & ~gpu_idle.known_true())
    | (gpu_busy & (slower | (queued & ~steady.known_true())) & ~cache_may_hold_queue.known_true())
)
"""Steps that take longer because they compute more, a busy GPU that makes requests wait without a cap, or prompts
that are computed without a pause or slow down most of the decoding.

A busy GPU alone does not outweigh requests that wait all the time and are preempted, or may not fit; nor does it
explain a queue behind a batch that stays at its highest, with steps as fast as ever.
"""

bandwidth_limits = Shared(
    slower & reads_more & mostly_decode & ~gpu_idle.known_true() & ~(queued & cache_may_hold_queue).known_true()
)
"""Decoding that waits for memory: each step reads the weights and the context of all that run."""

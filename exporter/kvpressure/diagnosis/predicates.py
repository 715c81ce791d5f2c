"""The questions that rules are made of, each with the evidence that its answer rests on.

Names of evidence are signals of a page (`runtimes.signals`, fields of `CacheConfig`) or sources (`missing.SOURCES`).
What could not be known from any page or source has none.
"""

from __future__ import annotations

from typing import Final

from kvpressure.diagnosis.facts import Facts
from kvpressure.diagnosis.kleene import Predicate, Shared, fact
from kvpressure.features.canary import CANARY_UNANSWERED

MIN_POLLS: Final = 4
"""Fewer make no verdict, however far apart."""

MOSTLY_ANSWERS_RATIO: Final = 0.5
"""Below, fewer tokens are computed of prompts than of answers."""

MOSTLY_WATERMARK_RATIO: Final = 0.5
"""From here on, it is the watermark more often than the pool's end that a prompt does not fit."""

REASONS: Final = "waiting_deferred"
FIT: Final = ("capacity_tokens", "computed_prompt_tokens")

_LONG_ANSWER: Final = (("prompt_tokens", "0.95"), ("output_tokens", "0.95"))


def symptom(name: str, *evidence: str) -> Predicate:
    """Whether a symptom holds."""

    @fact(*evidence)
    def holds(facts: Facts) -> bool | None:
        return facts.symptom(name)

    return holds


admission_blocked = symptom("admission_blocked", *FIT, REASONS)
preempting = symptom("preempting")
kv_saturated = symptom("kv_saturated")
frontend_slow = symptom("frontend_slow")
cpu_pressed = symptom("cpu_pressed", "cpu")


@fact()
def always(facts: Facts) -> bool:  # noqa: ARG001 - as the others are called
    """The last rule holds where no other does."""
    return True


# Whether anything can be judged


@fact()
def too_few_polls(facts: Facts) -> bool:
    """Fewer polls than a verdict needs: the least number, or, where polls are rare, a whole window of a few."""
    recent, thresholds = facts.recent, facts.thresholds
    rare = recent.polls >= MIN_POLLS and recent.seconds >= thresholds.verdict_window_seconds
    return recent.polls < thresholds.verdict_min_poll_count and not rare


@fact("running")
def activity_unknown(facts: Facts) -> bool:
    """The page has not told whether there is anything to do."""
    return facts.recent.busy is None


@fact("running")
def demand_unknown(facts: Facts) -> bool:
    """The page has no number of requests running, or none of those that wait."""
    return facts.recent.demand is None


# Whether it gets anywhere


@fact("awake")
def asleep(facts: Facts) -> bool | None:
    """The engine says that it sleeps; one whose page does not say is known to be awake while it works."""
    progress = facts.recent.progress
    if progress.paused_by == "asleep":
        return True
    return None if "awake" not in facts.inputs.signals and not progress.moved else False


def paused_by(word: str) -> Predicate:
    """Whether somebody has stopped it on purpose, in this way."""

    @fact()
    def paused(facts: Facts) -> bool:
        return facts.recent.progress.paused_by == word

    return paused


@fact("log")
def frozen_long(facts: Facts) -> bool:
    """Requests run, and nothing that work moves has moved for so long that it is no pause."""
    return facts.recent.frozen_seconds >= facts.thresholds.stuck_frozen_min_seconds


@fact("log")
def looping_long(facts: Facts) -> bool:
    """Requests run, the use of the cache falls and rises, and nothing has come out for so long."""
    return facts.recent.looping_seconds >= facts.thresholds.stuck_frozen_min_seconds


@fact()
def frozen_a_while(facts: Facts) -> bool:
    """Requests run, and nothing moves."""
    return facts.recent.frozen_seconds > 0


@fact()
def loops_longest(facts: Facts) -> bool:
    """Nothing has come out for longer than everything has stood still."""
    recent = facts.recent
    return recent.looping_seconds > 0 and recent.looping_seconds >= recent.frozen_seconds


@fact()
def still_a_while(facts: Facts) -> bool:
    """Requests wait, and none runs."""
    return facts.recent.still_seconds > 0


@fact()
def nothing_runs(facts: Facts) -> bool:
    """Requests wait, and none has run for longer than a step's pause."""
    return facts.recent.still_seconds >= facts.thresholds.stuck_min_seconds


@fact("log", REASONS)
def still_long(facts: Facts) -> bool:
    """Requests wait for a place in the batch, none runs, and nothing has come out for so long that it is no pause.

    Without the reasons for waiting, they may be deferred: that ends by itself more often, so it has to last longer.
    """
    recent, thresholds = facts.recent, facts.thresholds
    if recent.reasons_known:
        return recent.still_seconds >= thresholds.stuck_min_seconds
    return recent.still_seconds >= thresholds.stuck_frozen_min_seconds and not must_be_deferred.state(facts)


@fact(*FIT)
def cache_is_held(facts: Facts) -> bool:
    """What waits does not fit; where nobody tells how large the cache is, most of it has to be held."""
    if facts.symptom("admission_blocked"):
        return True
    recent = facts.recent
    return recent.blocked_ratio is None and (recent.usage or 0.0) > facts.thresholds.room_ample_max_usage_ratio


looks_stuck = Shared(frozen_long | looping_long | (still_long & ~cache_is_held))
"""The page of an engine that gets nowhere, and not for want of cache."""


@fact("canary")
def answers(facts: Facts) -> bool | None:
    """A request of one token got its answer; not known where none was sent."""
    told = facts.symptom(CANARY_UNANSWERED)
    return None if told is None else not told


statistics_late = Shared(looks_stuck & answers)
"""The page stands still, and the engine works."""


@fact()
def unanswered(facts: Facts) -> bool:
    """A request of one token got no answer. Where nobody is asked, no page by itself is a reason to begin."""
    return facts.symptom(CANARY_UNANSWERED) is True


# What there is to do


@fact()
def busy(facts: Facts) -> bool | None:
    """Requests run or wait, or work was done."""
    return facts.recent.busy


@fact(REASONS)
def queued(facts: Facts) -> bool:
    """Requests wait in most of the polls."""
    ratio = facts.recent.waiting_ratio
    return ratio is not None and ratio >= facts.thresholds.waiting_min_ratio


@fact()
def queued_always(facts: Facts) -> bool:
    """Requests wait in nearly every poll, and not on their own account."""
    ratio = facts.recent.waiting_ratio
    always = ratio is not None and ratio >= facts.thresholds.starved_min_waiting_ratio
    return always and not mostly_deferred.state(facts)


@fact()
def is_shedding_load(facts: Facts) -> bool:
    """The engine refuses requests, at a limit that it was started with."""
    return facts.symptom("load_shed") is True


# What requests wait for on their own account


@fact(REASONS)
def mostly_deferred(facts: Facts) -> bool | None:
    """Most of those that wait have been put off by the engine on their own account."""
    ratio = facts.recent.deferred_ratio
    return None if ratio is None else ratio >= facts.thresholds.deferred_min_ratio


@fact(REASONS)
def reasons_known(facts: Facts) -> bool:
    """The page tells whether requests wait for a place in the batch or were put off."""
    return facts.recent.reasons_known


@fact("fetching")
def mostly_fetching(facts: Facts) -> bool | None:
    """Most of those that wait have their KV on its way from elsewhere; their place in the cache is taken already.

    The engine counts them as put off, too; others whose KV lies elsewhere wait for a place like anybody.
    """
    recent, least = facts.recent, facts.thresholds.deferred_min_ratio
    if recent.fetching_ratio is None:
        # No connector looks prompts up anywhere, or those that wait are known to wait for a place.
        place = recent.deferred_ratio is not None and recent.deferred_ratio < least
        return False if recent.deferral.connector is False or place else None
    return recent.fetching_ratio >= least and (recent.deferred_ratio is None or recent.deferred_ratio >= least)


@fact("external_queries")
def may_fetch(facts: Facts) -> bool:
    """A connector looks prompts up elsewhere, and the page does not tell how many wait for it."""
    recent = facts.recent
    return recent.fetching_ratio is None and recent.deferral.connector is True


@fact(REASONS)
def streams_only(facts: Facts) -> bool:
    """Nothing runs, and whoever waits is put off and stays so: streams whose next piece has not come."""
    recent = facts.recent
    quiet = not recent.tokens and (recent.usage or 0.0) < facts.thresholds.stream_idle_max_usage_ratio
    return recent.held_ratio == 1.0 and quiet and recent.unchanged


@fact()
def adapters_lack_slots(facts: Facts) -> bool:
    """More adapters were asked for than may run at once, and all slots were taken."""
    found = facts.recent.deferral
    return bool(found.crowded and found.slots_taken)


@fact("external_queries")
def mostly_brought(facts: Facts) -> bool:
    """Most of the prompts' KV is brought from elsewhere."""
    return (facts.recent.deferral.brought_ratio or 0.0) >= facts.thresholds.deferred_min_ratio


@fact("steps", "prefill_seconds")
def behind_nobody(facts: Facts) -> bool:
    """They wait for many steps, and for no prompt before them: for something that shows nowhere, such as a grammar."""
    recent, thresholds = facts.recent, facts.thresholds
    long = (recent.waited_steps or 0.0) >= thresholds.put_off_min_step_count
    behind = recent.prefilling is None or recent.prefilling > thresholds.prefill_rare_max_ratio
    return long and not behind and (recent.waiting_ratio or 0.0) >= thresholds.starved_min_waiting_ratio


@fact()
def longest_fits(facts: Facts) -> bool:
    """The longest prompt seen lately fits at every poll, and nothing was preempted that must fit with its answer."""
    return facts.recent.blocked_by_longest_ratio == 0.0 and not facts.recent.preempted_lately


must_be_deferred = Shared(longest_fits & (mostly_brought | adapters_lack_slots | behind_nobody))
"""Where no page tells what requests wait for: they all fit, no cap holds them, and there is something to wait for."""


@fact()
def remote_kv_shows(facts: Facts) -> bool:
    """A connector to other engines is in use, and no other."""
    found = facts.recent.deferral
    return found.remote and not found.offload


@fact()
def offload_shows(facts: Facts) -> bool:
    """An offload tier is in use, and no connector to other engines."""
    found = facts.recent.deferral
    return found.offload and not found.remote


@fact("fetching", "external_queries")
def kv_from_elsewhere_possible(facts: Facts) -> bool:
    """Those that wait may wait for KV. Where stages are told, a connector is in use, and hardly any wait for it."""
    return facts.recent.deferral.connector is not False and facts.recent.fetching_ratio is None


@fact()
def slot_possible(facts: Facts) -> bool:
    """Those that wait may wait for a slot for an adapter."""
    found = facts.recent.deferral
    return found.slots is not None and found.crowded is not False


@fact("encoder_queries")
def image_possible(facts: Facts) -> bool:
    """Those that wait may wait for room for an image."""
    return facts.recent.deferral.images is not False


several_kinds_possible = Shared(kv_from_elsewhere_possible | slot_possible | image_possible)
"""What is waited for may be something else than a grammar, which shows nowhere."""


# Room in the cache


@fact(*FIT)
def fit_known(facts: Facts) -> bool:
    """The fit test could judge a poll."""
    return facts.recent.blocked_ratio is not None


@fact()
def fit_uncertain(facts: Facts) -> bool:
    """A request may cost so much more than its tokens that typical ones need not fit."""
    return facts.recent.unsure


@fact()
def capacity_known(facts: Facts) -> bool:
    """The pool's size is known."""
    return facts.inputs.value("kv_capacity_tokens") is not None


@fact()
def mostly_watermark(facts: Facts) -> bool:
    """But for what the watermark keeps free, most of the prompts that do not fit would."""
    return (facts.recent.by_watermark_ratio or 0.0) >= MOSTLY_WATERMARK_RATIO


@fact(*FIT)
def longest_blocked(facts: Facts) -> bool:
    """One of the longest prompts seen lately does not fit."""
    return (facts.recent.blocked_by_longest_ratio or 0.0) >= facts.thresholds.admission_blocked_min_ratio


@fact()
def long_still_blocked(facts: Facts) -> bool:
    """Some of the long prompts still do not fit: a full pool empties in jumps."""
    ratio = facts.recent.blocked_by_long_ratio
    return ratio is not None and ratio >= facts.thresholds.admission_unblocked_max_ratio


@fact(*FIT)
def long_fits(facts: Facts) -> bool:
    """A long prompt fits at every poll."""
    return facts.recent.blocked_by_long_ratio == 0.0


@fact()
def preempted(facts: Facts) -> bool:
    """A request was preempted in the window."""
    return facts.recent.preempted_in_window


@fact()
def preempted_lately(facts: Facts) -> bool:
    """A request was preempted in the longer window."""
    return facts.recent.preempted_lately


@fact(*FIT)
def room_is_ample(facts: Facts) -> bool:
    """Most of the cache is free, and holds a long request with a long answer several times over."""
    inputs, usage, thresholds = facts.inputs, facts.recent.usage, facts.thresholds
    free = inputs.value("kv_free_tokens")
    prompt, answer = (inputs.value(*path) for path in _LONG_ANSWER)
    if free is None or usage is None or prompt is None or answer is None:
        return False
    ample = free >= thresholds.room_ample_min_factor * (prompt + answer)
    return usage <= thresholds.room_ample_max_usage_ratio and ample


# The batch


@fact()
def at_cap(facts: Facts) -> bool:
    """A fixed cap holds the batch."""
    return facts.recent.at_cap


@fact()
def steady(facts: Facts) -> bool:
    """The batch stays at its highest of the last ten minutes while requests wait."""
    steadiness = facts.recent.steadiness
    return steadiness is not None and steadiness >= facts.thresholds.at_cap_min_ratio


@fact("declared")
def at_declared_cap(facts: Facts) -> bool | None:
    """The batch is as large as the engine was allowed to make it; not known where nobody read what that is."""
    declared, running = facts.inputs.declared.get("max_num_seqs"), facts.inputs.value("requests_running_max")
    if declared is None or running is None:
        return None
    return running >= facts.thresholds.at_cap_min_ratio * declared


@fact("declared")
def step_at_budget(facts: Facts) -> bool | None:
    """Steps compute as many tokens as they may."""
    budget, step = facts.inputs.declared.get("max_num_batched_tokens"), facts.recent.step_tokens
    return None if budget is None or step is None else step >= facts.thresholds.at_cap_min_ratio * budget


# Compute


@fact("steps")
def steps_full(facts: Facts) -> bool | None:
    """Steps compute so many tokens that they are full of prompts."""
    tokens = facts.recent.step_tokens
    return None if tokens is None else tokens >= facts.thresholds.prefill_full_step_min_tokens


@fact()
def mostly_prefill(facts: Facts) -> bool:
    """Nearly all tokens computed are of prompts."""
    return (facts.recent.prefill_ratio or 0.0) >= facts.thresholds.prefill_dominant_min_ratio


@fact()
def mostly_decode(facts: Facts) -> bool:
    """No more tokens are computed of prompts than of answers."""
    ratio = facts.recent.prefill_ratio
    return ratio is not None and ratio <= MOSTLY_ANSWERS_RATIO


@fact("prefill_seconds")
def prefills_overlap(facts: Facts) -> bool | None:
    """There is never a moment without prompts to compute."""
    prefilling = facts.recent.prefilling
    return None if prefilling is None else prefilling >= facts.thresholds.prefill_busy_min_count


@fact()
def slower(facts: Facts) -> bool:
    """Steps take much longer than healthy ones, over the newest polls."""
    slowdown = facts.recent.slowdown
    return slowdown is not None and slowdown >= facts.thresholds.latency_inflated_min_factor


@fact("steps")
def fuller(facts: Facts) -> bool | None:
    """Steps compute many more tokens than healthy ones."""
    now, healthy = facts.recent.step_tokens, facts.inputs.step_tokens_baseline
    if now is None:
        return None
    return healthy is not None and now >= facts.thresholds.step_fuller_min_factor * healthy


@fact("gpu")
def gpu_idle(facts: Facts) -> bool | None:
    """Its GPUs have been idle for much of the polls."""
    utilization = facts.recent.gpu_utilization
    return None if utilization is None else utilization < facts.thresholds.gpu_compute_low_max_ratio


@fact("gpu")
def gpu_busy(facts: Facts) -> bool | None:
    """Its GPUs have been busy. Utilization says only that some kernel runs: one request can show 100 %."""
    utilization = facts.recent.gpu_utilization
    return None if utilization is None else utilization >= facts.thresholds.gpu_compute_high_min_ratio


@fact("gpu")
def cpu_holds_it_up(facts: Facts) -> bool:
    """Where CPUs are short: the GPU idles though there is always a request; or, without GPU data, steps are slow now.

    CPUs may be short for everybody else on the host while the engine's few threads get what they need.
    """
    gpu_idle = facts.symptom("gpu_compute_low")
    if gpu_idle is None:
        return bool(slower.state(facts) or queued.state(facts))
    demand = facts.recent.demand
    return gpu_idle and demand is not None and demand >= 1


# What several rules have in common

prefill_limits = Shared(mostly_prefill & steps_full)
"""Steps are full of prompts: what waits for a place waits for the GPU to compute those before it."""

preempted_without_room = Shared(preempted & ~room_is_ample)
"""Who was preempted must fit with the answer so far."""

cache_may_hold_queue = Shared(queued_always & (longest_blocked | preempted_without_room))
"""A queue without a pause whose head is one of the longest, or was preempted."""

compute_limits = Shared(
    (prefill_limits & prefills_overlap)
    | (slower & fuller & ~gpu_idle.taken_as(False))
    | (gpu_busy & (slower | (queued & ~steady)) & ~cache_may_hold_queue)
)
"""Steps that take longer because they compute more, a busy GPU that makes requests wait without a cap, or prompts
without a pause.

A busy GPU alone does not outweigh requests that wait all the time and are preempted, or may not fit; nor does it
explain a queue behind a batch that stays at its highest, with steps as fast as ever.
"""

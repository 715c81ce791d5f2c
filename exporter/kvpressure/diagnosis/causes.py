"""Which cause the evidence of one moment speaks for: the candidate, before hysteresis."""

from __future__ import annotations

from collections.abc import Mapping

from kvpressure.diagnosis.canary import weighed
from kvpressure.diagnosis.inputs import Inputs
from kvpressure.model.verdict import Cause, Evidence

MIN_POLLS = 4

_ROOM = (("kv_free_tokens",), ("prompt_tokens", "0.95"), ("output_tokens", "0.95"))

Symptoms = Mapping[str, Evidence]


def candidate(inputs: Inputs, symptoms: Symptoms, current: Cause) -> Cause:
    """The first cause, in this order, that the evidence supports; `current` is the one that holds now."""
    recent = inputs.recent
    if recent.paused:
        return Cause.PAUSED
    if not _enough(inputs) or recent.busy is None:
        return Cause.UNKNOWN
    return weighed(_no_progress(inputs, symptoms), symptoms) or _limited(inputs, symptoms, current)


def _no_progress(inputs: Inputs, symptoms: Symptoms) -> Cause | None:
    """There is work, and none of it gets anywhere; None where it does, or too little time has passed to tell.

    Finished requests whose blocks nobody fetches fill the cache and stop everything as well: there it is the cache
    that is short, and nothing runs. Where nobody tells how large it is, most of it has to be held.
    """
    recent, limits = inputs.recent, inputs.thresholds
    if max(recent.frozen_seconds, recent.looping_seconds) >= limits.stuck_frozen_min_seconds:
        return Cause.STUCK
    # Without the reasons for waiting, these may be put off: that ends by itself more often.
    least = limits.stuck_min_seconds if recent.reasons_known else limits.stuck_frozen_min_seconds
    if recent.still_seconds < least or (not recent.reasons_known and _must_be_put_off(inputs)):
        return None
    held = recent.blocked_ratio is None and (recent.usage or 0.0) > limits.room_ample_max_usage_ratio
    return Cause.KV_CACHE_PRESSURE if symptoms["admission_blocked"].state or held else Cause.STUCK


def _limited(inputs: Inputs, symptoms: Symptoms, current: Cause) -> Cause:
    """What limits an engine that works, or has nothing to do."""
    recent = inputs.recent
    if (not recent.busy or _only_streams(inputs)) and not sheds(symptoms):
        return Cause.IDLE
    if recent.demand is None:
        return Cause.UNKNOWN
    if queued(inputs) and _fetches(inputs) and not symptoms["preempting"].state:
        return Cause.DEFERRED
    if kv_limits(inputs, symptoms) or (current is Cause.KV_CACHE_PRESSURE and _kv_still_limits(inputs)):
        return Cause.KV_CACHE_PRESSURE
    if queued(inputs) and not at_cap(inputs) and _put_off(inputs):
        return Cause.DEFERRED
    return _without_kv(inputs, symptoms)


def _only_streams(inputs: Inputs) -> bool:
    """Nothing runs, and whoever waits is put off and stays so: streams whose next piece has not come.

    Not where those that wait are known to fetch KV from elsewhere, or may do so: they want to get on.
    """
    recent = inputs.recent
    if _fetches(inputs) or (recent.fetching_ratio is None and recent.deferral.connector):
        return False
    quiet = not recent.tokens and (recent.usage or 0.0) < inputs.thresholds.stream_idle_max_usage_ratio
    return recent.held_ratio == 1.0 and quiet and recent.unchanged


def kv_limits(inputs: Inputs, symptoms: Symptoms) -> bool:
    """KV is what stops demand from running: admission is blocked, requests are preempted, or the cache is full.

    A full cache counts only where the fit test cannot speak, or the batch breathes with the pool: at a fixed cap,
    with room for the next prompt, it is the cap that makes requests wait.
    """
    if symptoms["admission_blocked"].state or symptoms["preempting"].state:
        return True
    held_otherwise = at_cap(inputs) or _put_off(inputs)
    return bool(symptoms["kv_saturated"].state) and (inputs.recent.blocked_ratio is None or not held_otherwise)


def _fetches(inputs: Inputs) -> bool:
    """Most of those that wait have their KV on its way from elsewhere; their place in the cache is taken already.

    The engine counts them as put off, too; others whose KV lies elsewhere wait for a place like anybody.
    """
    recent, least = inputs.recent, inputs.thresholds.deferred_min_ratio
    return (recent.fetching_ratio or 0.0) >= least and (recent.deferred_ratio is None or recent.deferred_ratio >= least)


def _put_off(inputs: Inputs) -> bool:
    """Most of those that wait have been put off by the engine on their own account."""
    return (inputs.recent.deferred_ratio or 0.0) >= inputs.thresholds.deferred_min_ratio


def _kv_still_limits(inputs: Inputs) -> bool:
    """A full pool empties in jumps: while requests wait, no cap holds them and some still do not fit, it limits."""
    ratio = inputs.recent.blocked_by_long_ratio
    stays = ratio is not None and ratio >= inputs.thresholds.admission_unblocked_max_ratio
    return stays and queued(inputs) and not at_cap(inputs)


def queued(inputs: Inputs) -> bool:
    """Requests wait in most of the recent polls."""
    ratio = inputs.recent.waiting_ratio
    return ratio is not None and ratio >= inputs.thresholds.waiting_min_ratio


def sheds(symptoms: Symptoms) -> bool:
    """The engine refuses requests, at a limit that it was started with."""
    told = symptoms.get("load_shed")
    return told is not None and told.state is True


def at_cap(inputs: Inputs) -> bool:
    """A fixed cap holds the batch."""
    return inputs.recent.at_cap


def _without_kv(inputs: Inputs, symptoms: Symptoms) -> Cause:
    found = _of_queue(inputs) if queued(inputs) else None
    if found is not None:
        return found
    if _compute_limits(inputs):
        return Cause.COMPUTE_BOUND
    if symptoms["frontend_slow"].state or (symptoms["cpu_pressed"].state and _waits_for_cpu(inputs, symptoms)):
        return Cause.HOST_BOUND
    if queued(inputs):
        return _unexplained(inputs)
    # Nobody waits because whoever would have to is sent away.
    return Cause.CONCURRENCY_BOUND if sheds(symptoms) else Cause.HEALTHY


def _of_queue(inputs: Inputs) -> Cause | None:
    """What a queue shows by itself; None where something else has to explain it."""
    if _fit_unknown(inputs):
        return Cause.UNKNOWN
    if _prefill_limits(inputs):
        return Cause.COMPUTE_BOUND
    return Cause.CONCURRENCY_BOUND if at_cap(inputs) else None


def _unexplained(inputs: Inputs) -> Cause:
    """A queue that comes and goes is no loss, if it is known to wait for its turn only.

    Without the reasons for waiting nobody can tell that from what requests wait for on their own account, unless
    nothing else is left.
    """
    if not inputs.recent.reasons_known:
        return Cause.DEFERRED if _must_be_put_off(inputs) else Cause.UNKNOWN
    if not _always_queued(inputs):
        return Cause.HEALTHY
    return Cause.UNKNOWN if inputs.recent.blocked_ratio is None else _another_limit(inputs)


def _another_limit(inputs: Inputs) -> Cause:
    """No cap holds the batch, and it is known that the requests that wait do so for a place in it.

    The first of them is one of the longest and does not fit, or was preempted and must fit with its answer; or all fit,
    and the scheduler keeps to another of its limits.
    """
    recent, ample = inputs.recent, _ample(inputs)
    by_longest = recent.blocked_by_longest_ratio or 0.0
    if by_longest >= inputs.thresholds.admission_blocked_min_ratio or (recent.preempted_in_window and not ample):
        return Cause.KV_CACHE_PRESSURE
    fits = recent.blocked_by_long_ratio == 0.0 and (ample or not recent.preempted_lately)
    return Cause.CONCURRENCY_BOUND if fits else Cause.UNKNOWN


def _ample(inputs: Inputs) -> bool:
    """Whether most of the cache is free, and holds a long request with a long answer several times over."""
    free, *lengths = (inputs.value(*path) for path in _ROOM)
    known = [length for length in lengths if length is not None]
    usage, limits = inputs.recent.usage, inputs.thresholds
    if free is None or usage is None or len(known) < len(lengths):
        return False
    return usage <= limits.room_ample_max_usage_ratio and free >= limits.room_ample_min_factor * sum(known)


def _must_be_put_off(inputs: Inputs) -> bool:
    """Where no page tells what requests wait for: they all fit, no cap holds them, and something is there to wait for.

    More adapters are asked for than may run at once, or most of the prompts' KV is brought from elsewhere. Or they wait
    for many steps, and for no prompt before them: then it is something that shows nowhere, such as a grammar.
    """
    recent, found = inputs.recent, inputs.recent.deferral
    if recent.blocked_by_longest_ratio != 0.0 or recent.preempted_lately:
        return False
    brought = (found.brought_ratio or 0.0) >= inputs.thresholds.deferred_min_ratio
    return brought or bool(found.crowded and found.slots_taken) or _held_back(inputs)


def _held_back(inputs: Inputs) -> bool:
    recent, limits = inputs.recent, inputs.thresholds
    long = (recent.waited_steps or 0.0) >= limits.put_off_min_step_count
    behind = recent.prefilling is None or recent.prefilling > limits.prefill_rare_max_ratio
    return long and not behind and (recent.waiting_ratio or 0.0) >= limits.starved_min_waiting_ratio


def _always_queued(inputs: Inputs) -> bool:
    """Requests wait in nearly every poll, and not on their own account."""
    ratio = inputs.recent.waiting_ratio
    return ratio is not None and ratio >= inputs.thresholds.starved_min_waiting_ratio and not _put_off(inputs)


def _fit_unknown(inputs: Inputs) -> bool:
    """The pool's size is known, and no request has told yet how long prompts are; or what they cost is not known."""
    recent = inputs.recent
    return recent.unsure or (recent.blocked_ratio is None and inputs.value("kv_capacity_tokens") is not None)


def _prefill_limits(inputs: Inputs) -> bool:
    """Steps are full of prompts: what waits for a place waits for the GPU to compute those before it."""
    recent, limits = inputs.recent, inputs.thresholds
    full = recent.step_tokens is not None and recent.step_tokens >= limits.prefill_full_step_min_tokens
    return full and (recent.prefill_ratio or 0.0) >= limits.prefill_dominant_min_ratio


def _prefills_without_pause(inputs: Inputs) -> bool:
    """The same without a queue: prompts wait for each other in the batch, and steps are full of them."""
    prefilling = inputs.recent.prefilling
    return _prefill_limits(inputs) and (prefilling or 0.0) >= inputs.thresholds.prefill_busy_min_count


def _waits_for_cpu(inputs: Inputs, symptoms: Symptoms) -> bool:
    """Where CPUs are short: the GPU idles though there is always a request; or, without GPU data, steps are slow now.

    CPUs may be short for everybody else on the host while the engine's few threads get what they need.
    """
    gpu_idle = symptoms["gpu_compute_low"].state
    if gpu_idle is not None:
        return gpu_idle and inputs.recent.demand is not None and inputs.recent.demand >= 1
    return _slower(inputs) or queued(inputs)


def _compute_limits(inputs: Inputs) -> bool:
    """Steps that take much longer because they compute more, or a busy GPU that makes requests wait without a cap.

    Utilization alone says only that some kernel runs, and one request can show 100 %. So steps must be slower than
    healthy ones, and either the GPU is busy, or it is not known to be idle and the steps compute more tokens.
    Or there is never a moment without prompts to compute.
    """
    recent, limits = inputs.recent, inputs.thresholds
    if _prefills_without_pause(inputs):
        return True
    slower = _slower(inputs)
    now, healthy = recent.step_tokens, inputs.step_tokens_baseline
    fuller = now is not None and healthy is not None and now >= limits.step_fuller_min_factor * healthy
    gpu_idle = recent.gpu_utilization is not None and recent.gpu_utilization < limits.gpu_compute_low_max_ratio
    if slower and fuller and not gpu_idle:
        return True
    # A busy GPU alone does not outweigh requests that wait all the time and are thrown out, or may not fit.
    if _always_queued(inputs) and _another_limit(inputs) is Cause.KV_CACHE_PRESSURE:
        return False
    # Nor does it explain a queue behind a batch that stays at its highest, with steps as fast as ever.
    return bool(_gpu_busy(inputs)) and (slower or (queued(inputs) and not _steady(inputs)))


def _steady(inputs: Inputs) -> bool:
    """Whether the batch stays at its highest of the last ten minutes while requests wait."""
    steadiness = inputs.recent.steadiness
    return steadiness is not None and steadiness >= inputs.thresholds.at_cap_min_ratio


def _slower(inputs: Inputs) -> bool:
    """Steps take much longer than healthy ones, over the newest polls."""
    slowdown = inputs.recent.slowdown
    return slowdown is not None and slowdown >= inputs.thresholds.latency_inflated_min_factor


def _gpu_busy(inputs: Inputs) -> bool | None:
    value = inputs.recent.gpu_utilization
    return None if value is None else value >= inputs.thresholds.gpu_compute_high_min_ratio


def _enough(inputs: Inputs) -> bool:
    """Enough polls for a verdict: the least number, or, where polls are rare, a whole verdict window of a few."""
    recent, limits = inputs.recent, inputs.thresholds
    if recent.polls >= limits.verdict_min_poll_count:
        return True
    return recent.polls >= MIN_POLLS and recent.seconds >= limits.verdict_window_seconds

"""Which kind of a cause holds, and what tells so: the second word of a verdict, from the evidence of one moment.

What the evidence does not tell has no word: the detail is then "", and the grounds say between what it cannot tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final, NamedTuple

from kvpressure.diagnosis.canary import answered_while_still, unanswered
from kvpressure.diagnosis.causes import MIN_POLLS, Symptoms, at_cap, queued, sheds
from kvpressure.diagnosis.inputs import Inputs
from kvpressure.diagnosis.symptoms.gpu_compute_low import estimated_work
from kvpressure.features.canary import CANARY_UNANSWERED
from kvpressure.model.values import number
from kvpressure.model.verdict import Cause

MOSTLY_ANSWERS_RATIO: Final = 0.5
"""Below, fewer tokens are computed of prompts than of answers."""

MOSTLY_WATERMARK_RATIO: Final = 0.5
"""From here on, it is the watermark more often than the pool's end that a prompt does not fit."""


class Detail(NamedTuple):
    """A word of `verdict.DETAILS`, "" where nothing tells which, and what tells so, in a sentence ("" for nothing)."""

    word: str = ""
    grounds: str = ""


def detail_of(cause: Cause, inputs: Inputs, symptoms: Symptoms) -> Detail:
    """The detail of `cause`, which must be what the evidence speaks for now."""
    return _BY_CAUSE[cause](inputs, symptoms)


def _nothing(inputs: Inputs, symptoms: Symptoms) -> Detail:  # noqa: ARG001 - as the others are called
    return Detail()


def _idle(inputs: Inputs, symptoms: Symptoms) -> Detail:  # noqa: ARG001
    held = inputs.recent.busy and inputs.recent.held_ratio == 1.0
    return (
        Detail("streams", f"{_capital(_waiting(inputs))}, all put off; nothing runs or changes.") if held else Detail()
    )


def _kv_cache_pressure(inputs: Inputs, symptoms: Symptoms) -> Detail:
    recent = inputs.recent
    if recent.still_seconds >= inputs.thresholds.stuck_min_seconds:
        return Detail("stranded", f"For {recent.still_seconds:.0f} s {_waiting(inputs)} and none runs{_used(inputs)}.")
    if symptoms["admission_blocked"].state and (recent.by_watermark_ratio or 0.0) >= MOSTLY_WATERMARK_RATIO:
        return Detail("watermark", _watermark(inputs))
    for symptom, word in (("preempting", "preemption"), ("admission_blocked", "admission"), ("kv_saturated", "full")):
        if symptoms[symptom].state:
            return Detail(word, f"{_sentence(symptoms[symptom].text)}.")
    longest = recent.blocked_by_longest_ratio or 0.0
    if longest >= inputs.thresholds.admission_blocked_min_ratio:
        return Detail(
            "admission", f"Polls in which one of the longest prompts did not fit the free cache: {longest:.0%}."
        )
    if recent.preempted_in_window:
        return Detail("preemption", "Requests were preempted, and wait until they fit with their answers.")
    return Detail()


def _watermark(inputs: Inputs) -> str:
    share, most = inputs.declared.get("kv_watermark_ratio", 0.0), inputs.recent.by_watermark_ratio or 0.0
    free = inputs.value("kv_free_tokens")
    left = "" if free is None else f", {number(round(free))} tokens are left"
    return f"{share:.1%} of the cache is kept free{left}: but for that a prompt would fit in {most:.0%} of the polls."


def _concurrency_bound(inputs: Inputs, symptoms: Symptoms) -> Detail:
    """At its highest the batch is held by a cap on sequences: which flag sets it shows only in how it was started."""
    if sheds(symptoms) and not queued(inputs):
        return Detail("queue_limit", f"{_sentence(symptoms['load_shed'].text)}; hardly anybody waits.")
    running = inputs.value("requests_running_max")
    return _of_sequences(running, inputs, symptoms) if running is not None and at_cap(inputs) else _of_steps(inputs)


def _of_sequences(running: float, inputs: Inputs, symptoms: Symptoms) -> Detail:
    declared = inputs.declared.get("max_num_seqs")
    stays = f"The batch stays at {number(running)}, its highest of the last ten minutes"
    if declared is None:
        like = "; a watermark would look the same" if symptoms["kv_saturated"].state else ""
        return Detail("sequence_cap", f"{stays}; how many it may have was not to be read{like}.")
    if running >= inputs.thresholds.at_cap_min_ratio * declared:
        return Detail("max_num_seqs", f"{stays}; {number(declared)} are allowed.")
    return Detail("", f"{stays}, and {number(declared)} are allowed: another of the scheduler's limits holds it.")


def _of_steps(inputs: Inputs) -> Detail:
    budget, step = inputs.declared.get("max_num_batched_tokens"), inputs.recent.step_tokens
    if budget is not None and step is not None:
        told = f"A step computes {number(round(step))} tokens; {number(budget)} are allowed"
        if step >= inputs.thresholds.at_cap_min_ratio * budget:
            return Detail("prefill_budget", f"{told}.")
        return Detail("head_of_line", f"{told}. The batch is below its highest, and those that wait would fit.")
    return Detail("", "Which of the scheduler's limits it is, the page does not tell.")


def _compute_bound(inputs: Inputs, symptoms: Symptoms) -> Detail:  # noqa: ARG001
    ratio, limit = inputs.recent.prefill_ratio, inputs.thresholds.prefill_dominant_min_ratio
    if ratio is None:
        return Detail()
    word = "prefill" if ratio >= limit else "decode" if ratio <= MOSTLY_ANSWERS_RATIO else ""
    return Detail(word, f"{ratio:.0%} of the tokens computed are of prompts{estimated_work(inputs)}.")


def _host_bound(inputs: Inputs, symptoms: Symptoms) -> Detail:  # noqa: ARG001
    for symptom, word in (("frontend_slow", "front_end"), ("cpu_pressed", "cpu")):
        if symptoms[symptom].state:
            return Detail(word, f"{_sentence(symptoms[symptom].text)}.")
    return Detail()


def _deferred(inputs: Inputs, symptoms: Symptoms) -> Detail:  # noqa: ARG001
    """KV from elsewhere and adapters show; a grammar is what is left where nothing else can be."""
    recent, found = inputs.recent, inputs.recent.deferral
    if (recent.fetching_ratio or 0.0) >= inputs.thresholds.deferred_min_ratio:
        return _elsewhere(inputs, f"{recent.fetching_ratio or 0.0:.0%} of those that wait wait for KV from elsewhere")
    if found.crowded and found.slots_taken:
        slots = number(found.slots or 0.0)
        return Detail("lora_slots", f"All {slots} slots for adapters are taken, and more adapters are asked for.")
    if not recent.reasons_known and (found.brought_ratio or 0.0) >= inputs.thresholds.deferred_min_ratio:
        return _elsewhere(inputs, f"{found.brought_ratio or 0.0:.0%} of the prompts' tokens come from elsewhere")
    possible = {
        # Where stages are told, a connector is in use, and hardly any of those that wait wait for it.
        "KV from elsewhere": found.connector is not False and recent.fetching_ratio is None,
        "a slot for an adapter": found.slots is not None and found.crowded is not False,
        "room for an image": found.images is not False,
    }
    left = [kind for kind, may_be in possible.items() if may_be]
    if left:
        return Detail("", f"For a grammar or {' or '.join(left)}: the page does not tell which.")
    if not recent.reasons_known:
        steps = number(round(recent.waited_steps or 0.0))
        return Detail(
            "", f"They fit, and wait for {steps} steps: for a grammar, or behind one that a limit holds back."
        )
    return Detail("grammar", "Nothing else is left: no KV comes from elsewhere, no slot is short, no image was sent.")


def _elsewhere(inputs: Inputs, share: str) -> Detail:
    found = inputs.recent.deferral
    if found.remote and not found.offload:
        return Detail("remote_kv", f"{share}; a connector to other engines is in use.")
    if found.offload and not found.remote:
        return Detail("offload", f"{share}; an offload tier is in use.")
    why = "both other engines and an offload tier are in use" if found.remote else "no connector says what it is"
    return Detail("external_kv", f"{share}; {why}.")


def _paused(inputs: Inputs, symptoms: Symptoms) -> Detail:  # noqa: ARG001
    by = inputs.recent.progress.paused_by
    return Detail(by, _PAUSED_BY.get(by, ""))


_PAUSED_BY: Final = {
    "asleep": "The page says that it sleeps, or that an operation to that end is under way.",
    "weight_update": "The page says that an operation that loads new weights is under way.",
    "pause_call": "Its web server has counted more calls of /pause than of /resume.",
}


def _stuck(inputs: Inputs, symptoms: Symptoms) -> Detail:
    """What stands still, and since when."""
    recent, progress = inputs.recent, inputs.recent.progress
    longest = max((recent.frozen_seconds, "frozen"), (recent.looping_seconds, "looping"))
    seconds, word = max(longest, (recent.still_seconds, "nothing_runs"))
    asked = symptoms[CANARY_UNANSWERED].text if unanswered(symptoms) else ""
    if seconds <= 0:
        return Detail("unanswered", f"{_sentence(asked)}.") if asked else Detail()
    stands = ", ".join(_STANDING.get(name, name) for name in progress.standing)
    held = inputs.standing_since
    since = "" if held is None else f"for {max(seconds, inputs.t - held):.0f} s, since {_clock(held)}"
    told = f"Stand still {since or f'for {seconds:.0f} s'}: {stands}. {_queue(inputs)}"
    return Detail(word, f"{told} {_sentence(asked)}." if asked else told)


_STANDING: Final[Mapping[str, str]] = {
    "steps": "steps",
    "prompt_tokens": "prompt tokens",
    "generation_tokens": "generated tokens",
    "finished": "requests that ended",
    "started": "first tokens",
    "finished_prompts": "prompts of requests that ended",
    "preemptions": "preemptions",
    "running": "requests running",
    "waiting": "requests waiting",
    "waiting_deferred": "requests put off",
    "kv_usage": "the use of the KV cache",
}


def _unknown(inputs: Inputs, symptoms: Symptoms) -> Detail:
    if answered_while_still(inputs, symptoms):
        return Detail("statistics_late", f"{_sentence(symptoms[CANARY_UNANSWERED].text)}.")
    return _lacking(inputs)


def _lacking(inputs: Inputs) -> Detail:
    """What is missing, in the order in which causes are looked for."""
    recent = inputs.recent
    full = recent.polls >= MIN_POLLS and recent.seconds >= inputs.thresholds.verdict_window_seconds
    if recent.polls < inputs.thresholds.verdict_min_poll_count and not full:
        return Detail("too_few_polls", f"{recent.polls} polls in {recent.seconds:.0f} s.")
    if recent.busy is None or recent.demand is None:
        return Detail("no_gauges", "The page has no number of requests running, or none of those that wait.")
    if recent.unsure:
        return Detail(
            "layers_differ", "A request may take so much more of the cache than its tokens that it does not fit."
        )
    return _lacking_of_queue(inputs) if recent.waiting else Detail()


def _lacking_of_queue(inputs: Inputs) -> Detail:
    """What would tell why requests wait."""
    recent = inputs.recent
    if recent.blocked_ratio is None and inputs.value("kv_capacity_tokens") is not None:
        return Detail("cold_start", "Requests wait, and none has ended yet to tell how long prompts are.")
    if recent.blocked_ratio is None:
        return Detail("no_capacity", f"{_capital(_waiting(inputs))}; the page does not tell how much the cache holds.")
    if recent.reasons_known:
        return Detail()
    return Detail("no_reasons", f"{_capital(_waiting(inputs))}; the page does not tell what for.")


_BY_CAUSE: Final[Mapping[Cause, Callable[[Inputs, Symptoms], Detail]]] = {
    Cause.IDLE: _idle,
    Cause.HEALTHY: _nothing,
    Cause.KV_CACHE_PRESSURE: _kv_cache_pressure,
    Cause.COMPUTE_BOUND: _compute_bound,
    Cause.CONCURRENCY_BOUND: _concurrency_bound,
    Cause.HOST_BOUND: _host_bound,
    Cause.DEFERRED: _deferred,
    Cause.PAUSED: _paused,
    Cause.STUCK: _stuck,
    Cause.UNKNOWN: _unknown,
}


def _waiting(inputs: Inputs) -> str:
    waiting = inputs.recent.waiting
    return "requests wait" if waiting is None else f"{number(round(waiting))} requests wait"


def _queue(inputs: Inputs) -> str:
    demand, waiting = inputs.recent.demand, inputs.recent.waiting
    if demand is None or waiting is None:
        return ""
    return f"{number(round(demand - waiting))} requests run, {number(round(waiting))} wait."


def _used(inputs: Inputs) -> str:
    usage = inputs.recent.usage
    return "" if usage is None else f", {usage:.0%} of the cache is held"


def _sentence(text: str) -> str:
    return _capital(text.removesuffix("."))


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _clock(t: float) -> str:
    try:
        return datetime.fromtimestamp(t, UTC).strftime("%H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return "then"

"""An engine's window as a prediction of consequences needs it; computed only where there is something to predict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from kvpressure.model.record import changed
from kvpressure.model.samples import HistogramSample
from kvpressure.model.view import Interval, Observed, Unfinished
from kvpressure.signals.baseline import BATCH
from kvpressure.signals.lengths import ratio
from kvpressure.signals.minutes import COUNTED
from kvpressure.signals.points import Point, grown
from kvpressure.signals.windows import EngineWindow

LEAST_ENDED = 8.0
"""Of fewer lengths than this in a window, those of a longer one say more."""

CHANGED_FACTOR = 1.3
"""Where requests of the window are so many times as long, or as short, as those of the longer one, they are others."""

ALIASED_RATIO = 1.15
"""Sequences in a step over requests at a poll, from which on polls meet the engine at moments unlike the others."""


def observed(window: EngineWindow, baseline: Mapping[str, float], **remembered: Any) -> Observed:
    """Return what a prediction needs of the window and of the engine's healthy state, with what else is `remembered`.

    The latter are fields of `Observed`.
    """
    newest = window.points[-1].counters if window.points else {}
    computed, brought = window.points.growth("computed_prompt_tokens"), window.points.growth("brought_prompt_tokens")
    placed = None if computed is None else ratio(computed + (brought or 0.0), window.points.growth("prompt_tokens"))
    return Observed(
        intervals=_by_steps(window.each_interval(_interval), window.each_interval(_steps)),
        cache=window.cache,
        prompts=window.of_histograms(_lengths, "request_prompt_tokens"),
        outputs=window.of_histograms(_lengths, "request_output_tokens"),
        unfinished=window.of_histograms(_unfinished),
        prefill_seconds=ratio(window.newest("prefill_seconds"), window.newest("prefilled")),
        prefill_tokens=ratio(newest.get("finished_prompt_tokens"), newest.get("finished_prompts")),
        cached_ratio=None if placed is None else max(0.0, 1.0 - placed),
        healthy_seconds=baseline.get("e2e"),
        healthy_step_seconds=baseline.get("inter_token"),
        healthy_batch=baseline.get(BATCH),
        adapter_slots=window.points.max("adapter_slots"),
        adapters_seen=window.points.max("adapters_seen"),
        **remembered,
    )


def _interval(before: Point, after: Point) -> Interval:
    grew = partial(grown, before, after)
    ended_prompts, ended_outputs = grew("finished_prompt_tokens"), grew("finished_output_tokens")
    return Interval(
        seconds=after.t - before.t,
        running=after.gauges.get("running"),
        waiting=after.gauges.get("waiting"),
        usage_ratio=after.gauges.get("kv_usage"),
        started=grew("started"),
        **{name: grew(counter) for name, counter in COUNTED.items()},
        ended_tokens=None if ended_prompts is None or ended_outputs is None else ended_prompts + ended_outputs,
    )


class _Steps(NamedTuple):
    """Steps between two polls: the mean of their sequences, and sums over them of what the poll has and what they had.

    None where drafts or prompts' steps would blur it.
    """

    sequences: float
    polled: float
    computed: float


def _steps(before: Point, after: Point) -> _Steps | None:
    steps, tokens = grown(before, after, "steps"), grown(before, after, "generation_tokens")
    if not steps or tokens is None or "decode_steps" in after.counters or "running" not in after.gauges:
        return None
    sequences = (tokens - (grown(before, after, "accepted_draft_tokens") or 0.0)) / steps
    return _Steps(sequences, after.gauges["running"] * steps, sequences * steps)


def _by_steps(intervals: Sequence[Interval], steps: Sequence[_Steps | None]) -> tuple[Interval, ...]:
    """Return the intervals; where polls find a smaller batch than its steps have, with that of the steps and no usage.

    A server without a CPU to spare answers a poll only while a long step leaves it one. Where that is a prompt's step,
    a request has just ended: each poll then finds too few that run, and too little of the pool in use.
    """
    known = [stepped for stepped in steps if stepped is not None]
    polled = sum([stepped.polled for stepped in known])
    if not polled or sum([stepped.computed for stepped in known]) < ALIASED_RATIO * polled:
        return tuple(intervals)
    return tuple(
        interval
        if stepped is None
        else changed(interval, running=max(interval.running or 0.0, stepped.sequences), usage_ratio=None)
        for interval, stepped in zip(intervals, steps, strict=True)
    )


def _lengths(window: EngineWindow, name: str) -> HistogramSample | None:
    newest = window.histogram(name)
    longer = window.long_histogram(name)
    total = window.total(name)
    if longer is None or longer.count < LEAST_ENDED:
        return total if total is not None and total.count else longer
    if newest is None or newest.count < LEAST_ENDED or not newest.sum or not longer.sum:
        return longer
    factor = (newest.sum / newest.count) / (longer.sum / longer.count)
    return longer if 1 / CHANGED_FACTOR < factor < CHANGED_FACTOR else newest


def _unfinished(window: EngineWindow) -> Unfinished | None:
    """Return what requests under way have: that of all since the server's start, less what those that ended brought.

    None where one of the counts is missing, or they contradict each other.
    """
    newest = window.points[-1].counters if window.points else {}
    started, prompts, outputs = (newest.get(name) for name in ("started", "prompt_tokens", "generation_tokens"))
    ended_prompts, ended_outputs = window.total("request_prompt_tokens"), window.total("request_output_tokens")
    if started is None or prompts is None or outputs is None or ended_prompts is None or ended_outputs is None:
        return None
    requests = started - ended_prompts.count
    prompt, output = prompts - ended_prompts.sum, outputs - ended_outputs.sum
    if requests < 1 or prompt <= 0 or output < 0:
        return None
    return Unfinished(requests, prompt / requests, output / requests)

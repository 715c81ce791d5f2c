"""The verdict window: the newest polls, counted for a verdict. Exported series of the same meaning are these values."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any, Final

from kvpressure.model.record import record
from kvpressure.model.samples import HistogramSample
from kvpressure.signals.context import Context
from kvpressure.signals.eviction import NOTHING_EVICTED, Eviction
from kvpressure.signals.fit import Fit, fit_of
from kvpressure.signals.gpu import utilization_since
from kvpressure.signals.latency import Answers, TimeOutsideEngine, answers_of, slowdown_factor, time_outside_engine
from kvpressure.signals.optional import groups_of
from kvpressure.signals.points import Polls, mean
from kvpressure.signals.progress import Progress, progress_of
from kvpressure.signals.stall import SERVED, Stall
from kvpressure.signals.traffic import refused_ratio
from kvpressure.signals.transfer import Transfer, transfer_of
from kvpressure.signals.waiting import Deferral, Queue, deferral_of, queue_of, streams_idle
from kvpressure.signals.windows import EngineWindow

POOLS: Final = {"state_usage": "Mamba states", "window_usage": "sliding windows"}
"""Gauges, and what their pools hold."""


@record
class OtherPool:
    """The fullest pool beside that of tokens: `name` is what it holds, "" where there is none; `usage_ratio` a mean."""

    name: str = ""
    usage_ratio: float = 0.0


def other_pool(points: Polls) -> OtherPool:
    """Return the fullest of the pools that the page tells apart."""
    means = [(value, name) for gauge, name in POOLS.items() if (value := points.mean(gauge)) is not None]
    usage, name = max(means, default=(0.0, ""))
    return OtherPool(name, usage)


BURST_SECONDS = 5.0
LATE_FACTOR = 2.0
"""A gap between tokens that is longer than so many times the pace was held up."""


@record
class Preemption:
    """Preemptions of the window; None where the page does not count them.

    `burst_count` is the number of five-second spans with any, `request_ratio` preemptions per request served, at most
    1. `in_window` and `in_long_window` are whether any request was preempted in the window, in the longer one.
    """

    burst_count: int | None = None
    request_ratio: float | None = None
    in_window: bool = False
    in_long_window: bool = False


@record
class Throughput:
    """Tokens of the window and of its steps; None where not known.

    `step_tokens` are the prompt and output tokens of a step, `slowdown_factor` is inter-token p95 over the healthy one,
    as far as it is proven.
    `prefill_ratio` is the share of prompt tokens among all tokens computed, `prefilling` how many requests on average
    had their prompt computed at a time (Little's law): pods that only prefill may show an empty batch at every poll.
    `held_up_ratio` is the share, at least, of the time between tokens in which they came later than half of them do.
    Where a step has either prompts or answers, `prompt_steps_ratio` is the share of those with prompts, each of which
    computes `prompt_step_tokens`.
    """

    generated_tokens: float | None = None
    step_tokens: float | None = None
    slowdown_factor: float | None = None
    inter_token_mean_seconds: float | None = None
    prefill_ratio: float | None = None
    prefilling: float | None = None
    held_up_ratio: float | None = None
    prompt_steps_ratio: float | None = None
    prompt_step_tokens: float | None = None


@record
class VerdictWindow:
    """What the newest polls say, in groups. Ratios are shares of polls, None where no poll could be judged.

    `coverage` is how much of a full verdict's evidence there is, at most 1: lower where an engine answers so slowly
    that older polls have to be counted too, and where it has not been watched for long. `busy` is whether there was
    anything to do.
    `refused_ratio` is the share of the requests sent that the engine refused, None where it has never refused any.
    `highest_kv_usage_ratio` is over the whole window.
    `optional` are the groups of optional sources that report, by name (`signals.optional`).
    `progress`, `deferral` and `eviction` are over the whole window, of which they say more than a verdict needs;
    `stall` is since somebody was last served.
    """

    polls: int
    seconds: float
    coverage: float = 1.0
    busy: bool | None = None
    kv_usage_ratio: float | None = None
    highest_kv_usage_ratio: float | None = None
    refused_ratio: float | None = None
    gpu_utilization_ratio: float | None = None
    queue: Queue = field(default_factory=Queue)
    fit: Fit = field(default_factory=Fit)
    preemption: Preemption = field(default_factory=Preemption)
    throughput: Throughput = field(default_factory=Throughput)
    answers: Answers = field(default_factory=Answers)
    outside: TimeOutsideEngine | None = None
    progress: Progress = field(default_factory=Progress)
    stall: Stall = SERVED
    pool: OtherPool = field(default_factory=OtherPool)
    deferral: Deferral = field(default_factory=Deferral)
    eviction: Eviction = NOTHING_EVICTED
    transfer: Transfer = field(default_factory=Transfer)
    optional: Mapping[str, Any] = field(default_factory=dict)


def verdict_window(
    window: EngineWindow, context: Context, eviction: Eviction = NOTHING_EVICTED, stall: Stall = SERVED
) -> VerdictWindow:
    """Return what the newest polls of `window` say, with what is remembered of evictions and of who was served."""
    thresholds = context.thresholds
    points = window.latest(thresholds.verdict.verdict_window_seconds, int(thresholds.verdict.verdict_min_poll_count))
    if not points:
        return VerdictWindow(0, 0.0)
    deferral = deferral_of(window)
    # More adapters are requested than may run at once, as far as those that have not run yet can be known.
    adapters_known = window.t - window.points[0].t >= thresholds.queue.adapters_known_min_seconds
    adapters_wait = deferral.slots_taken and (deferral.adapters_oversubscribed or not adapters_known)
    streams = not adapters_wait and streams_idle(points, window, thresholds)
    usage = points.values("kv_usage")
    newest_t = points.times[-1]
    inside = len([True for t in points.times if newest_t - t <= thresholds.verdict.verdict_window_seconds])
    return VerdictWindow(
        polls=len(points),
        seconds=points[-1].t - points[0].t,
        coverage=min(
            1.0,
            inside / thresholds.verdict.verdict_min_poll_count,
            (window.t - window.points[0].t) / thresholds.verdict.full_confidence_seconds,
        ),
        busy=_busy(points),
        kv_usage_ratio=mean(usage) if usage else None,
        highest_kv_usage_ratio=window.points.max("kv_usage"),
        refused_ratio=refused_ratio(points, window),
        gpu_utilization_ratio=utilization_since(context.gpus, points[0].t),
        queue=queue_of(points, streams=streams),
        fit=fit_of(points, window, context, deferral, streams=streams),
        preemption=Preemption(
            burst_count=_preemption_bursts(points, usage, thresholds.symptoms.preempting_min_usage_ratio),
            request_ratio=_preempted_ratio(points),
            in_window=bool(window.points.growth("preemptions")),
            in_long_window=window.long_delta("preemptions") > 0,
        ),
        throughput=_throughput(points, window, context),
        answers=answers_of(window, context.baseline),
        outside=time_outside_engine(points, window, thresholds.verdict.verdict_window_seconds),
        progress=progress_of(window, thresholds.verdict.verdict_window_seconds),
        stall=stall,
        deferral=deferral,
        eviction=eviction,
        pool=other_pool(points),
        transfer=transfer_of(points, window, context, deferral),
        optional=groups_of(points),
    )


def _preemption_bursts(points: Polls, usage: Sequence[float], least: float) -> int | None:
    """Return how many five-second spans had preemptions; none of those that made room where there was plenty."""
    known = [(point.t, point.counters["preemptions"]) for point in points if "preemptions" in point.counters]
    if len(known) < 2:
        return None
    if usage and max(usage) < least:
        return 0
    if not points.growth("preemptions"):
        return 0
    return len({int((points[-1].t - t) // BURST_SECONDS) for (_, a), (t, b) in itertools.pairwise(known) if b > a})


def _preempted_ratio(points: Polls) -> float | None:
    preempted, started = points.growth("preemptions"), points.growth("started")
    if started is None:
        started = points.growth("finished")  # as many come as go, in the long run
    if preempted is None or started is None:
        return None
    served = started + next(iter(points.values("running")), 0.0)
    return min(1.0, preempted / served) if served > 0 else float(preempted > 0)


def _throughput(points: Polls, window: EngineWindow, context: Context) -> Throughput:
    prompt, output = points.growth("prompt_tokens"), points.growth("generation_tokens")
    steps = points.growth("steps")
    if prompt is not None:
        prompt = max(0.0, prompt - (points.growth("brought_prompt_tokens") or 0.0))
    computed = None if prompt is None or output is None else prompt + output
    between = window.histogram("inter_token", context.thresholds.verdict.verdict_window_seconds)
    decoding = points.growth("decode_steps")
    with_prompts = None if decoding is None or steps is None else steps - decoding
    return Throughput(
        generated_tokens=output,
        step_tokens=computed / steps if steps and computed is not None else None,
        inter_token_mean_seconds=None if between is None else between.sum / between.count,
        slowdown_factor=slowdown_factor(between, context.baseline),
        prefill_ratio=prompt / computed if prompt is not None and computed else None,
        prefilling=points.rate("prefill_seconds"),
        held_up_ratio=None if between is None else _held_up(between),
        prompt_steps_ratio=with_prompts / steps if steps and with_prompts is not None else None,
        prompt_step_tokens=prompt / with_prompts if with_prompts and prompt is not None else None,
    )


def _held_up(between: HistogramSample) -> float | None:
    """Return the share of all seconds that is left when gaps up to twice the median's bound take all that they may.

    Decoding goes on at a pace that hardly changes within seconds; steps that compute long prompts as well hold it up.
    Gaps of one pace may lie on either side of a bucket's bound, so one in the next bucket is late only by its length.
    """
    if between.sum <= 0:
        return None
    buckets = list(zip(between.bounds, between.counts, strict=True))
    pace = next(bound for bound, count in buckets if 2 * count >= between.count)
    on_pace = 0.0
    below = 0.0
    low = 0.0
    for bound, count in buckets:
        if low >= LATE_FACTOR * pace:
            break
        on_pace += (count - below) * max(0.0, min(bound, LATE_FACTOR * pace) if bound > pace else bound)
        below, low = count, bound
    return max(0.0, 1.0 - on_pace / between.sum)


def _busy(points: Polls) -> bool | None:
    """Return whether there was anything to do; pooling shows in prompts and finished requests only."""
    running, waiting = points.values("running"), points.values("waiting")
    if any(running) or any(waiting):
        return True
    if points.growth("generation_tokens") or points.growth("prompt_tokens") or points.growth("finished"):
        return True
    return False if running and waiting else None

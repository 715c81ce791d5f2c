"""The verdict window: the newest polls, counted for a verdict. Exported series of the same meaning are these values."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import field

from kvpressure.config.thresholds import Thresholds
from kvpressure.features.context import Context
from kvpressure.features.deferral import Deferral, deferral_of
from kvpressure.features.fit import by_watermark_ratio, fit_of
from kvpressure.features.latency import answer_growth, answer_tokens, p95
from kvpressure.features.outside import Outside, outside_engine
from kvpressure.features.points import growth, mean, rate, values
from kvpressure.features.progress import Progress, progress_of
from kvpressure.features.refusals import refused_ratio
from kvpressure.features.waiting import streams_idle, waiting_of
from kvpressure.features.windows import EngineWindow, Point
from kvpressure.model.record import record

BURST_SECONDS = 5.0


@record
class Recent:
    """The polls that a verdict counts. Ratios are shares of polls, None where no poll could be judged.

    `coverage` is the number of polls in the verdict window over the least that make one, at most 1: lower where an
    engine answers so slowly that older polls have to be counted too.

    `blocked_ratio`, `blocked_by_long_ratio`, `blocked_by_longest_ratio`, `steadiness`, `at_cap`, `starved` and
    `unsure` are those of `fit.Fit`, `by_watermark_ratio` is that of `fit.by_watermark_ratio`.
    `slowdown` is inter-token p95 over the healthy one, `step_tokens` the prompt and output tokens of a step.
    `preempted_in_window` and `preempted_lately` are whether any request was preempted in the window, in the longer one.
    `refused_ratio` is the share of the requests sent that the engine refused, None where it has never refused any.
    `paused`, `frozen_seconds`, `still_seconds` and `looping_seconds` are those of `progress.Progress`.
    `waited_steps` is how many steps pass while a request waits, by Little's law.
    `prefill_ratio` is the share of prompt tokens among all tokens computed, `prefilling` how many requests on average
    had their prompt computed at a time (Little's law): pods that only prefill may show an empty batch at every poll.
    `deferred_ratio` is the share of waiting requests that the engine has put off on their own account, over the polls
    in which any waited, `fetching_ratio` of those whose KV comes from elsewhere; `held_ratio` the share of polls in
    which nothing ran and all that waited were put off, `unchanged` whether they were as many all the time.
    `answer_tokens` is the p95 of output length over the window, `answer_growth` how many times as long as healthy ones
    answers are, at least 1.
    `progress` and `deferral` are over the whole window, of which they say more than a verdict needs.
    """

    polls: int
    seconds: float
    coverage: float = 1.0
    demand: float | None = None
    waiting: float | None = None
    waiting_ratio: float | None = None
    usage: float | None = None
    blocked_ratio: float | None = None
    blocked_by_long_ratio: float | None = None
    blocked_by_longest_ratio: float | None = None
    steadiness: float | None = None
    at_cap: bool = False
    by_watermark_ratio: float | None = None
    starved: bool = False
    unsure: bool = False
    started: float | None = None
    preemption_bursts: int | None = None
    preempted_ratio: float | None = None
    preempted_in_window: bool = False
    preempted_lately: bool = False
    refused_ratio: float | None = None
    tokens: float | None = None
    busy: bool | None = None
    paused: bool = False
    frozen_seconds: float = 0.0
    still_seconds: float = 0.0
    looping_seconds: float = 0.0
    reasons_known: bool = True
    deferred_ratio: float | None = None
    fetching_ratio: float | None = None
    held_ratio: float | None = None
    unchanged: bool = False
    outside: Outside | None = None
    gpu_utilization: float | None = None
    slowdown: float | None = None
    step_tokens: float | None = None
    waited_steps: float | None = None
    prefill_ratio: float | None = None
    prefilling: float | None = None
    answer_tokens: float | None = None
    answer_growth: float = 1.0
    progress: Progress = field(default_factory=Progress)
    deferral: Deferral = field(default_factory=Deferral)


def count(window: EngineWindow, context: Context) -> Recent:
    """Count the newest polls."""
    thresholds = context.thresholds
    points = window.latest(thresholds.verdict_window_seconds, int(thresholds.verdict_min_poll_count))
    if not points:
        return Recent(0, 0.0)
    running, queue, put_off = (values(points, name) for name in ("running", "waiting", "waiting_deferred"))
    deferral = deferral_of(window)
    streams = not _adapters_wait(deferral, window, thresholds) and streams_idle(points, window, thresholds)
    fit = fit_of(points, window, thresholds, streams=streams)
    waiting = [value for point in points if (value := waiting_of(point, streams=streams)) is not None]
    answers = window.of_histograms(answer_tokens)
    tokens = growth(points, "generation_tokens")
    usage = values(points, "kv_usage")
    bursts = _preemption_bursts(points, usage, thresholds.preempting_min_usage_ratio)
    progress = progress_of(window)
    return Recent(
        polls=len(points),
        seconds=points[-1].t - points[0].t,
        coverage=_coverage(points, thresholds),
        demand=mean(running) + mean(waiting) if running and waiting else None,
        waiting=mean(waiting) if waiting else None,
        waiting_ratio=mean([float(value >= 1) for value in waiting]) if waiting else None,
        usage=mean(usage) if usage else None,
        blocked_ratio=fit.blocked_ratio,
        blocked_by_long_ratio=fit.blocked_by_long_ratio,
        blocked_by_longest_ratio=fit.blocked_by_longest_ratio,
        steadiness=fit.steadiness,
        at_cap=fit.at_cap,
        by_watermark_ratio=by_watermark_ratio(points, window, thresholds),
        starved=fit.starved,
        unsure=fit.unsure,
        started=growth(points, "started"),
        preemption_bursts=bursts,
        preempted_ratio=_preempted_ratio(points),
        preempted_in_window=bool(window.delta("preemptions")),
        preempted_lately=window.increased_in_long_window("preemptions"),
        refused_ratio=refused_ratio(points, window),
        tokens=tokens,
        busy=_busy(points, running, queue),
        paused=progress.paused,
        frozen_seconds=progress.frozen_seconds,
        still_seconds=progress.still_seconds,
        reasons_known=bool(put_off),
        looping_seconds=progress.looping_seconds,
        deferred_ratio=0.0 if streams else _share(put_off, queue),
        unchanged=len(set(queue)) == 1,
        fetching_ratio=_share(values(points, "fetching"), queue),
        held_ratio=mean([float(_held(point)) for point in points]),
        outside=outside_engine(points, window, thresholds.verdict_window_seconds),
        gpu_utilization=_gpu_utilization(context, points[0].t),
        slowdown=_slowdown(window, context),
        step_tokens=_step_tokens(points),
        waited_steps=_waited_steps(points, waiting),
        prefill_ratio=_prefill_ratio(points),
        prefilling=rate(points, "prefill_seconds"),
        answer_tokens=answers,
        answer_growth=answer_growth(answers, context.baseline),
        progress=progress,
        deferral=deferral,
    )


def _adapters_wait(deferral: Deferral, window: EngineWindow, limits: Thresholds) -> bool:
    """More adapters are asked for than may run at once, as far as those that have not run yet can be known."""
    known = window.t - window.points[0].t >= limits.adapters_known_min_seconds
    return bool(deferral.slots_taken) and (bool(deferral.crowded) or not known)


def _coverage(points: Sequence[Point], limits: Thresholds) -> float:
    inside = sum(points[-1].t - point.t <= limits.verdict_window_seconds for point in points)
    return min(1.0, inside / limits.verdict_min_poll_count)


def _gpu_utilization(context: Context, since: float) -> float | None:
    """Mean over the engine's GPUs of the driver's samples since `since`; None when one of them has none."""
    means = [value for gpu in context.gpus if (value := gpu.utilization_since(since)) is not None]
    return mean(means) if means and len(means) == len(context.gpus) else None


def _slowdown(window: EngineWindow, context: Context) -> float | None:
    now = p95(window.histogram("inter_token", context.thresholds.verdict_window_seconds))
    healthy = context.baseline.get("inter_token")
    return now / healthy if now is not None and healthy else None


def _step_tokens(points: Sequence[Point]) -> float | None:
    steps = growth(points, "steps")
    prompt, output = growth(points, "prompt_tokens"), growth(points, "generation_tokens")
    return (prompt + output) / steps if steps and prompt is not None and output is not None else None


def _waited_steps(points: Sequence[Point], waiting: Sequence[float]) -> float | None:
    """Where nobody has started, at least as many as there were."""
    steps, started = growth(points, "steps"), growth(points, "started")
    return mean(waiting) * steps / max(1.0, started) if waiting and steps and started is not None else None


def _preemption_bursts(points: Sequence[Point], usage: Sequence[float], least: float) -> int | None:
    """In how many five-second spans requests were preempted; none of them to make room where there was plenty."""
    known = [(point.t, point.counters["preemptions"]) for point in points if "preemptions" in point.counters]
    if len(known) < 2:
        return None
    if usage and max(usage) < least:
        return 0
    return len({int((points[-1].t - t) // BURST_SECONDS) for (_, a), (t, b) in itertools.pairwise(known) if b > a})


def _preempted_ratio(points: Sequence[Point]) -> float | None:
    preempted, started = growth(points, "preemptions"), growth(points, "started")
    if preempted is None or started is None:
        return None
    served = started + next(iter(values(points, "running")), 0.0)
    return min(1.0, preempted / served) if served > 0 else float(preempted > 0)


def _busy(points: Sequence[Point], running: Sequence[float], waiting: Sequence[float]) -> bool | None:
    """Whether there was anything to do; pooling shows in prompts and finished requests only."""
    worked = (growth(points, name) for name in ("generation_tokens", "prompt_tokens", "finished"))
    if any(running) or any(waiting) or any(worked):
        return True
    return False if running and waiting else None


def _share(some: Sequence[float], waiting: Sequence[float]) -> float | None:
    """Of all that wait over the polls, those of some kind."""
    return min(1.0, sum(some) / sum(waiting)) if some and sum(waiting) > 0 else None


def _held(point: Point) -> bool:
    waiting, deferred = point.gauges.get("waiting", 0.0), point.gauges.get("waiting_deferred", 0.0)
    return point.gauges.get("running") == 0 and waiting >= 1 and deferred >= waiting


def _prefill_ratio(points: Sequence[Point]) -> float | None:
    prompt, output = growth(points, "prompt_tokens"), growth(points, "generation_tokens")
    return prompt / (prompt + output) if prompt is not None and output is not None and prompt + output > 0 else None

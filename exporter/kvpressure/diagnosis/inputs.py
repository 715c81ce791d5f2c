"""What symptoms and causes are judged from: derived values, and the newest polls counted for a verdict."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kvpressure.config.thresholds import Thresholds
from kvpressure.features import Context, Derived
from kvpressure.features.evidence import Told
from kvpressure.features.kv import blocked, typical_prompt_tokens
from kvpressure.features.latency import p95
from kvpressure.features.windows import EngineWindow, Point, line
from kvpressure.model.samples import HistogramSample
from kvpressure.model.values import at

BURST_SECONDS = 5.0
MIN_PEAK_POLLS = 3


@dataclass(frozen=True, slots=True)
class Recent:
    """The polls that a verdict counts. Ratios are shares of polls, None where no poll could be judged.

    `coverage` is the number of polls in the verdict window over the least that make one, at most 1: lower where an
    engine answers so slowly that older polls have to be counted too.

    `steadiness` is the median batch while requests wait over the highest in ten minutes: near 1 at a fixed cap, lower
    under a pool.
    `blocked_ratio` takes the mean prompt for the one that waits, `blocked_by_long_ratio` a long one of the traffic's;
    `blocked_at_peak_ratio` does so too, of the polls in which the batch was at its largest.
    `slowdown` is inter-token p95 over the healthy one, `step_tokens` the prompt and output tokens of a step.
    `still_seconds` is how long requests have waited with nothing running and no token. `answer_tokens` is the p95 of
    output length over the window.
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
    blocked_at_peak_ratio: float | None = None
    steadiness: float | None = None
    started: float | None = None
    preemption_bursts: int | None = None
    preempted_ratio: float | None = None
    tokens: float | None = None
    busy: bool | None = None
    awake: bool = True
    still_seconds: float = 0.0
    outside_seconds: float | None = None
    outside_ratio: float | None = None
    gpu_utilization: float | None = None
    slowdown: float | None = None
    step_tokens: float | None = None
    answer_tokens: float | None = None


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything one verdict depends on.

    `batch_baseline` and `step_tokens_baseline` are the engine's own healthy values, `memory_rise_ratio` the share of
    device memory gained over the window, `starts` how often the server was seen to start in the last ten minutes; None
    where not known. `answer_growth` is how many times as long as healthy ones answers are, at least 1.
    `extra` holds evidence that other sources bring (pods, logs, host), by symptom name.
    """

    derived: Derived
    thresholds: Thresholds
    recent: Recent
    batch_baseline: float | None = None
    step_tokens_baseline: float | None = None
    memory_rise_ratio: float | None = None
    answer_growth: float = 1.0
    starts: int | None = None
    extra: Mapping[str, Told] = field(default_factory=dict)

    def value(self, *path: str) -> float | None:
        """A derived number, None where not known."""
        return at(self.derived, *path)

    def inflation(self) -> tuple[float | None, str]:
        """The larger of end-to-end (beyond what longer answers explain) and inter-token inflation, and its kind."""
        explained = {"e2e": self.answer_growth, "inter_token": 1.0}
        found = [
            (value / growth, kind)
            for kind, growth in explained.items()
            if (value := self.value("latency_inflation_ratio", kind)) is not None
        ]
        return max(found, default=(None, "e2e"))


def recent(window: EngineWindow, context: Context) -> Recent:
    """Count the newest polls."""
    thresholds = context.thresholds
    points = window.latest(thresholds.verdict_window_seconds, int(thresholds.verdict_min_poll_count))
    if not points:
        return Recent(0, 0.0)
    running, waiting = _values(points, "running"), _values(points, "waiting")
    outside = outside_engine(window, thresholds.verdict_window_seconds)
    prompt = typical_prompt_tokens(window)
    long = _long_prompt_tokens(window, prompt)
    tokens = _growth(points, "generation_tokens")
    bursts = _preemption_bursts(points)
    return Recent(
        polls=len(points),
        seconds=points[-1].t - points[0].t,
        coverage=_coverage(points, thresholds),
        demand=_mean(running) + _mean(waiting) if running and waiting else None,
        waiting=_mean(waiting) if waiting else None,
        waiting_ratio=_mean([float(value >= 1) for value in waiting]) if waiting else None,
        usage=_mean(usage) if (usage := _values(points, "kv_usage")) else None,
        blocked_ratio=_blocked_ratio(points, window, prompt),
        blocked_by_long_ratio=_blocked_ratio(points, window, long),
        blocked_at_peak_ratio=_blocked_ratio(_at_peak(points), window, long),
        steadiness=_steadiness(points, window.highest_running()),
        started=_growth(points, "started"),
        preemption_bursts=bursts,
        preempted_ratio=_preempted_ratio(points),
        tokens=tokens,
        busy=_busy(running, waiting, tokens),
        awake=points[-1].gauges.get("awake", 1.0) > 0,
        still_seconds=_still_seconds(window),
        outside_seconds=outside[0] if outside else None,
        outside_ratio=outside[1] if outside else None,
        gpu_utilization=_gpu_utilization(context, points[0].t),
        slowdown=_slowdown(window, context),
        step_tokens=_step_tokens(points),
        answer_tokens=p95(window.histogram("request_output_tokens")),
    )


def _coverage(points: Sequence[Point], limits: Thresholds) -> float:
    inside = sum(points[-1].t - point.t <= limits.verdict_window_seconds for point in points)
    return min(1.0, inside / limits.verdict_min_poll_count)


def memory_rise_ratio(context: Context) -> float | None:
    """Largest share of a device's memory gained over the window along a straight line; None without GPU memory."""
    rises = []
    for gpu in context.gpus:
        points = [(s.t, s.memory_used_bytes) for s in gpu.samples if s.memory_used_bytes is not None]
        fit, total = line(points), gpu.last.memory_total_bytes
        if fit is None or not total:
            return None
        steady = fit.slope > 0 and fit.r2 >= context.thresholds.kv_growth_min_r2
        rises.append(fit.slope * (points[-1][0] - points[0][0]) / total if steady else 0.0)
    return max(rises, default=None)


def outside_engine(window: EngineWindow, seconds: float) -> tuple[float, float] | None:
    """Mean seconds of time to first token spent outside the engine, and their share of it; None when not known.

    Time to first token minus queue time minus prefill time. Queue and prefill are reported when requests end, so the
    means are of slightly other requests; the difference is never taken below 0.
    """
    ttft, queue = window.histogram("ttft", seconds), window.histogram("queue", seconds)
    prefill, prefilled = window.delta("prefill_seconds"), window.delta("prefilled")
    if ttft is None or queue is None or prefill is None or not prefilled:
        return None
    whole = _histogram_mean(ttft)
    outside = max(0.0, whole - _histogram_mean(queue) - prefill / prefilled)
    return outside, outside / whole if whole > 0 else 0.0


def _gpu_utilization(context: Context, since: float) -> float | None:
    """Mean over the engine's GPUs of the driver's samples since `since`; None when one of them has none."""
    means = []
    for gpu in context.gpus:
        values = [value for sample in gpu.samples if sample.t >= since for value in sample.utilization]
        if not values or not gpu.last.utilization:
            return None
        means.append(_mean(values))
    return _mean(means) if means else None


def _slowdown(window: EngineWindow, context: Context) -> float | None:
    now = p95(window.histogram("inter_token", context.thresholds.verdict_window_seconds))
    healthy = context.baseline.get("inter_token")
    return now / healthy if now is not None and healthy else None


def _step_tokens(points: Sequence[Point]) -> float | None:
    steps = _growth(points, "steps")
    prompt, output = _growth(points, "prompt_tokens"), _growth(points, "generation_tokens")
    return (prompt + output) / steps if steps and prompt is not None and output is not None else None


def _histogram_mean(histogram: HistogramSample) -> float:
    return histogram.sum / histogram.count


def _values(points: Sequence[Point], gauge: str) -> list[float]:
    return [value for point in points if (value := point.gauges.get(gauge)) is not None]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _growth(points: Sequence[Point], counter: str) -> float | None:
    known = [point.counters[counter] for point in points if counter in point.counters]
    return known[-1] - known[0] if len(known) > 1 else None


def _blocked_ratio(points: Sequence[Point], window: EngineWindow, prompt: float | None) -> float | None:
    capacity = window.cache.capacity_tokens
    if capacity is None:
        return None
    tests = [test for point in points if (test := blocked(point, capacity, prompt)) is not None]
    return sum(tests) / len(tests) if tests else None


def _at_peak(points: Sequence[Point]) -> list[Point]:
    """The polls with the largest batch; () where they are too few to say anything.

    A small batch churns: in the step after a request ends there is room for the next, which is only admitted in the one
    after, and polls that fall in step with the engine may see mostly that. At its largest, a batch shows its limit.
    """
    peak = max(_values(points, "running"), default=0.0)
    found = [point for point in points if peak > 0 and point.gauges.get("running") == peak]
    return found if len(found) >= MIN_PEAK_POLLS else []


def _long_prompt_tokens(window: EngineWindow, typical: float | None) -> float | None:
    """The prompt that a token of the traffic belongs to on average: longer than the mean where lengths differ much.

    Waiting requests are served in order, so a long prompt at the head that does not fit holds up short ones that
    would; and it is the long ones that get there and stay. Sum of squares over sum, from the buckets' middles.
    """
    histogram = window.shape("request_prompt_tokens") or window.total("request_prompt_tokens")
    if histogram is None or typical is None or histogram.count == 0:
        return typical
    weights = [b - a for a, b in zip((0.0, *histogram.counts), histogram.counts, strict=False)]
    middles = [
        (low + high) / 2 if math.isfinite(high) else 1.5 * low
        for low, high in zip((0.0, *histogram.bounds), histogram.bounds, strict=False)
    ]
    total = sum(w * m for w, m in zip(weights, middles, strict=True))
    return max(typical, sum(w * m * m for w, m in zip(weights, middles, strict=True)) / total) if total else typical


def _steadiness(points: Sequence[Point], highest: float | None) -> float | None:
    """Polls without a queue say nothing of what holds it back; a batch may run empty between two."""
    held = [point for point in points if point.gauges.get("waiting", 0.0) >= 1] or points
    running = _values(held, "running")
    return statistics.median(running) / highest if running and highest else None


def _preemption_bursts(points: Sequence[Point]) -> int | None:
    """In how many five-second spans requests were preempted."""
    known = [(point.t, point.counters["preemptions"]) for point in points if "preemptions" in point.counters]
    if len(known) < 2:
        return None
    return len({int((points[-1].t - t) // BURST_SECONDS) for (_, a), (t, b) in itertools.pairwise(known) if b > a})


def _preempted_ratio(points: Sequence[Point]) -> float | None:
    preempted, started = _growth(points, "preemptions"), _growth(points, "started")
    if preempted is None or started is None:
        return None
    served = started + next(iter(_values(points, "running")), 0.0)
    return min(1.0, preempted / served) if served > 0 else float(preempted > 0)


def _busy(running: Sequence[float], waiting: Sequence[float], tokens: float | None) -> bool | None:
    if any(running) or any(waiting) or tokens:
        return True
    return False if running and waiting else None


def _still_seconds(window: EngineWindow) -> float:
    newest = window.points[-1]
    tokens = newest.counters.get("generation_tokens")
    since = newest.t
    for point in reversed(window.points):
        still = point.gauges.get("running") == 0 and point.gauges.get("waiting", 0.0) >= 1
        if not still or point.counters.get("generation_tokens") != tokens:
            break
        since = point.t
    return newest.t - since

"""Tokens per second, and whether more demand still buys more of them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import Final

from kvpressure.config.thresholds import Thresholds
from kvpressure.model.family import engine_family, json_value
from kvpressure.model.values import Derived, at, known
from kvpressure.signals.batch import never_decoded
from kvpressure.signals.context import Context
from kvpressure.signals.points import mean, rate
from kvpressure.signals.windows import EngineWindow

_KINDS: Final = {"prompt": "prompt_tokens", "generation": "generation_tokens"}

FAMILIES: Final = (
    engine_family("tokens_total", "Tokens processed, as the engine counts them; kind is prompt or generation.", "kind"),
    json_value(
        "tokens_per_second", "Tokens processed per second over the window; kind is prompt or generation.", "kind"
    ),
    engine_family(
        "estimated_flops_total",
        "Floating-point operations per GPU, estimated by the engine; absent unless enabled in the engine.",
    ),
    engine_family(
        "estimated_memory_bytes_total",
        "Bytes read and written in GPU memory per GPU, estimated by the engine; absent unless enabled in the engine.",
    ),
    json_value("estimated_flops_per_second", "The rate of estimated_flops_total over the window."),
    json_value("estimated_memory_bytes_per_second", "The rate of estimated_memory_bytes_total over the window."),
    json_value("throughput_plateau", "1 while demand grows or queues and generated tokens per second do not grow."),
)


def derive(window: EngineWindow, context: Context) -> Derived:
    """Return tokens so far and a second by kind, `throughput_plateau`, and the work that its GPUs are given."""
    flops, flops_per_second = _estimated(window, "estimated_flops")
    moved_bytes, moved_bytes_per_second = _estimated(window, "estimated_read_bytes", "estimated_write_bytes")
    return known(
        {
            "tokens_total": known({kind: window.newest(counter) for kind, counter in _KINDS.items()}),
            "tokens_per_second": known({kind: window.points.rate(counter) for kind, counter in _KINDS.items()}),
            "throughput_plateau": plateau(window, context.thresholds),
            "estimated_flops_total": flops,
            "estimated_memory_bytes_total": moved_bytes,
            "estimated_flops_per_second": flops_per_second,
            "estimated_memory_bytes_per_second": moved_bytes_per_second,
        }
    )


def _estimated(window: EngineWindow, *counters: str) -> tuple[float | None, float | None]:
    """Return the `counters` together, so far and per second; None where one has never moved: it is switched off."""
    so_far = [count for counter in counters if (count := window.newest(counter))]
    if len(so_far) < len(counters):
        return None, None
    rates = [rate for counter in counters if (rate := window.points.rate(counter)) is not None]
    return sum(so_far), sum(rates) if len(rates) == len(counters) else None


def plateau(window: EngineWindow, thresholds: Thresholds) -> float | None:
    """Return 1 when demand grows or queues while generated tokens per second do not; compares the window's halves.

    None until both halves hold at least half of their polls' time span, and for a model that generates nothing.
    """
    if never_decoded(window):
        return None
    points, middle = window.points, window.t - window.seconds / 2
    # A poll in the middle is in both halves.
    early_end, late_start = bisect_right(points.times, middle), bisect_left(points.times, middle)
    early, late = points[:early_end], points[late_start:]
    if len(early) < 2 or early[-1].t - early[0].t < window.seconds / 4:
        return None
    before, after = rate(early, "generation_tokens"), rate(late, "generation_tokens")
    running, waiting = points.readings("running"), points.readings("waiting")
    demand_before = _demand(running[:early_end], waiting[:early_end])
    demand_after = _demand(running[late_start:], waiting[late_start:])
    if before is None or after is None or demand_before is None or demand_after is None:
        return None
    queued = mean([many for many in waiting[late_start:] if many is not None]) >= 1.0
    rising = demand_after - demand_before >= max(
        1.0, thresholds.symptoms.plateau_demand_growth_min_ratio * demand_before
    )
    flat = after <= before * (1.0 + thresholds.symptoms.plateau_token_growth_max_ratio)
    return float((queued or rising) and flat)


def _demand(running: Sequence[float | None], waiting: Sequence[float | None]) -> float | None:
    """Return the mean of the requests that run or wait, over the polls that have both; None where none has."""
    both = [run + wait for run, wait in zip(running, waiting, strict=True) if run is not None and wait is not None]
    return mean(both) if both else None


def tokens_of_a_step(derived: Derived) -> float | None:
    """Return about how many tokens a step computes: each running request's next one, and its share of the prompts.

    Running times (prompt + answer) / answer, by their rates: what an engine shows of it that has no series of steps.
    """
    prompts, answers = (at(derived, "tokens_per_second", kind) for kind in ("prompt", "generation"))
    running = at(derived, "requests_running")
    return None if prompts is None or not answers or running is None else running * (prompts + answers) / answers

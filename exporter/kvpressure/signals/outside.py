"""Time that requests spend outside the engine: tokenizer, API process, network."""

from __future__ import annotations

from collections.abc import Sequence

from kvpressure.model.record import record
from kvpressure.model.samples import HistogramSample
from kvpressure.signals.points import growth
from kvpressure.signals.windows import EngineWindow, Point


@record
class TimeOutsideEngine:
    """Mean `seconds` of a request outside the engine, and their share `ratio` of its time.

    That of `whole` requests is exact: their time in the server, in the queue and in the batch are all counted when they
    end. Else it is of the time to first token, counted when first tokens come: a mean of slightly other requests.
    """

    seconds: float
    ratio: float
    whole: bool


def time_outside_engine(points: Sequence[Point], window: EngineWindow, seconds: float) -> TimeOutsideEngine | None:
    """Return that of the requests that ended during `points`, or of first tokens in the last `seconds`.

    The latter where the runtime does not count the time in the batch. None when nothing ended, or not known.
    """
    inside = growth(points, "inference_seconds")
    if inside is None:
        return _of_first_tokens(window, seconds)
    ended, all_seconds, queued = (growth(points, name) for name in ("ended", "e2e_seconds", "queue_seconds"))
    if not ended or not all_seconds or queued is None:
        return None
    outside = max(0.0, all_seconds - queued - inside)
    return TimeOutsideEngine(outside / ended, outside / all_seconds, whole=True)


def _of_first_tokens(window: EngineWindow, seconds: float) -> TimeOutsideEngine | None:
    ttft, queue = window.histogram("ttft", seconds), window.histogram("queue", seconds)
    prefill, prefilled = window.delta("prefill_seconds"), window.delta("prefilled")
    if ttft is None or queue is None or prefill is None or not prefilled:
        return None
    whole = _mean(ttft)
    outside = max(0.0, whole - _mean(queue) - prefill / prefilled)
    return TimeOutsideEngine(outside, outside / whole if whole > 0 else 0.0, whole=False)


def _mean(histogram: HistogramSample) -> float:
    return histogram.sum / histogram.count

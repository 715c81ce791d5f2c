"""Windows made by hand, for tests of derived values."""

import math
from collections.abc import Callable, Mapping

from kvpressure.config.thresholds import load_thresholds
from kvpressure.model.samples import CacheConfig, EngineSample, HistogramSample
from kvpressure.signals import Context
from kvpressure.signals.windows import EngineWindow

CACHE = CacheConfig(block_size=16, capacity_tokens=10_000)
THRESHOLDS = load_thresholds()
CONTEXT = Context(THRESHOLDS)

Values = Mapping[str, float]


def window(
    seconds: int,
    gauges: Callable[[int], Values] = lambda t: {},
    counters: Callable[[int], Values] = lambda t: {},
    histograms: Callable[[int], Mapping[str, HistogramSample]] = lambda t: {},
    cache: CacheConfig | None = CACHE,
    multiprocess: bool = False,
) -> EngineWindow:
    """A 60 s window polled at 1 Hz for `seconds`."""
    made = EngineWindow(60, 600)
    for t in range(seconds):
        sample = EngineSample("m", "0", gauges(t), counters(t), histograms(t), cache)
        made.add(float(t), sample, multiprocess=multiprocess)
    return made


def histogram(bounds: tuple[float, ...], counts: tuple[float, ...], total: float = 0.0) -> HistogramSample:
    """A histogram; `bounds` without +Inf."""
    return HistogramSample((*bounds, math.inf), counts, total)

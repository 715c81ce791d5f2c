"""How long blocks survive unused, as an engine measures it on a sample of its blocks (`--kv-cache-metrics`)."""

from __future__ import annotations

from typing import Final

from kvpressure.model.family import engine_family
from kvpressure.model.values import Derived
from kvpressure.signals.context import Context
from kvpressure.signals.lengths import ratio
from kvpressure.signals.windows import EngineWindow

FAMILIES: Final = (
    engine_family(
        "cache_eviction_age_seconds",
        "Mean time from a block's last use to its eviction, over the blocks that the engine sampled in the window.",
    ),
)


def derive(window: EngineWindow, _: Context) -> Derived:
    """Return the mean age at eviction; absent where the engine times no blocks, and while none is evicted.

    It is timed from a block's allocation or last hit, while the request that has it still runs: the mean time from
    admission to the last token comes off. It also times blocks that were never cached, such as a prompt's last one:
    where these are all, nothing is left. Its histogram of reuse gaps is not read: it has gaps of blocks that were
    found, and none of evicted ones.
    """
    idle = window.of_histograms(_mean_idle)
    served = ratio(window.points.growth("inference_seconds"), window.points.growth("ended"))
    if idle is None or served is None or idle <= served:
        return {}
    return {"cache_eviction_age_seconds": idle - served}


def _mean_idle(window: EngineWindow) -> float | None:
    # Not a quantile: buckets are twice as long as the one before, and the mean is exact.
    histogram = window.histogram("idle_before_evict")
    return None if histogram is None else histogram.sum / histogram.count

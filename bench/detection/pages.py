"""An engine's page as a Prometheus has it: the series that rules ask for, by the names of the newest vLLM."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from kvpressure.model.samples import EngineSample
from kvpressure.runtimes.vllm.metrics import COUNTERS, GAUGES, HISTOGRAMS, SERVER_GAUGES


@dataclass(frozen=True, slots=True)
class Series:
    """One series at one moment."""

    name: str
    labels: Mapping[str, str]
    value: float


_SERIES: Final = {row.signal: (row.names[0], dict(row.where)) for row in (*GAUGES, *COUNTERS, *SERVER_GAUGES)}
"""Signal to a metric and the labels that it is told by there."""

_SUMS: Final = {row.signal: f"{row.names[0]}_sum" for row in HISTOGRAMS}
"""Signal of a histogram to the series that adds up what it observed."""


def page_series(sample: EngineSample, wanted: Collection[str]) -> Iterator[Series]:
    """What the page says, of the metrics in `wanted`; what is not on it is not there."""
    for signal, value in (*sample.gauges.items(), *sample.counters.items()):
        name, labels = _SERIES.get(signal, ("", {}))
        if name in wanted:
            yield Series(name, labels, value)
    for signal, histogram in sample.histograms.items():
        if _SUMS.get(signal) in wanted:
            yield Series(_SUMS[signal], {}, histogram.sum)

"""GPUs of engines, by the series of dcgm-exporter or AMD's device-metrics-exporter in the same Prometheus.

They are joined by the pod that these series name, and read as the exporter reads such a page.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kvpressure.model.errors import SourceError
from kvpressure.model.samples import GpuReport
from kvpressure.prometheus.client import Prometheus
from kvpressure.prometheus.names import Target, one_of, quoted
from kvpressure.prometheus.paging import Span, ranged
from kvpressure.promtext.lines import Series
from kvpressure.sources.gpu.exporter_pages import WANTED, read_page

STEP_SECONDS: Final = 15.0
PAGE_SECONDS: Final = 7_200.0
"""Of one answer: eight GPUs with nine fields each are 35,000 values in two hours."""
_USED: Final = ("DCGM_FI_DEV_FB_USED", "gpu_used_vram", "amd_gpu_used_vram")
"""Who has one of these, has a GPU."""
_NAMES: Final = one_of(name.decode() for name in WANTED)
_POD_LABELS: Final = (("exported_namespace", "exported_pod"), ("namespace", "pod"))
"""The first are of the engine's pod where the others are those of the exporter itself."""


def gpus_there(server: Prometheus, targets: Iterable[Target], span: Span) -> dict[Target, str]:
    """Return what selects the series of the GPUs of each target whose pod has some. Raises PrometheusError."""
    selectors = dict[tuple[str, str, str], str]()
    for labels in server.series([f'{{{one_of(_USED)}, pod!=""}}'], span.start, span.end):
        named = next((pair for pair in _POD_LABELS if labels.get(pair[1])), None)
        if labels.get("__name__") not in _USED or named is None:
            continue
        place = labels.get("cluster", ""), labels.get(named[0], ""), labels[named[1]]
        pairs = zip(("cluster", *named), place, strict=True)
        matchers = ", ".join(f"{label}={quoted(value)}" for label, value in pairs if value)
        selectors[place] = f"{{{_NAMES}, {matchers}}}"
    places = ((one, (one.get("cluster"), one.namespace, one.pod)) for one in targets if one.pod)
    return {target: selectors[place] for target, place in places if place in selectors}


class Gpus:
    """The GPUs of one target, read some hours at a time as moments go forward."""

    def __init__(self, server: Prometheus, selector: str) -> None:
        self._server, self._selector = server, selector
        self._page = Span(0.0, 0.0)
        self._values: dict[int, dict[Series, float]] = {}

    def at(self, t: float) -> GpuReport | None:
        """Return them at a moment; None where the Prometheus has none then. Raises PrometheusError."""
        if not self._page.start <= t < self._page.end:
            self._page = Span(t, t + PAGE_SECONDS)
            self._values = self._read()
        now = self._values.get(round((t - self._page.start) / STEP_SECONDS), {})
        try:
            return read_page(now, now.values(), t)[0]
        except SourceError:  # none, or those of several nodes: nothing is known of the engine's
            return None

    def _read(self) -> dict[int, dict[Series, float]]:
        found = dict[int, dict[Series, float]]()
        for row in ranged(self._server, self._selector, self._page, STEP_SECONDS):
            labels = row.get("metric", {})
            series = Series(labels.get("__name__", ""), tuple(sorted(labels.items())))
            if series.name.encode() not in WANTED:
                continue
            for t, value in row["values"]:
                found.setdefault(round((t - self._page.start) / STEP_SECONDS), {})[series] = value
        return found

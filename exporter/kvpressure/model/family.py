"""What a metric family is. Each is declared beside the function that gives its values; `exposition.families` collects.

A series' name, type, help and labels are written down there and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Final

from kvpressure.model.view import ENGINE_LABELS

PREFIX: Final = "kvpressure_"

JSON_ONLY: Final = "json"
"""The type of a value that has no series: Prometheus' functions give it of another, as `rate()` of a counter does."""


class Scope(Enum):
    """What a family describes; its value is the labels that every series of it carries."""

    ENGINE = ENGINE_LABELS
    TARGET = ("target", "namespace", "pod")
    GPU = ("gpu_uuid", "gpu_index", "vendor")
    SOURCE = ("source", "target")
    CONTAINER = ("namespace", "pod", "container")
    EXPORTER = ()

    @property
    def labels(self) -> tuple[str, ...]:
        """The label names."""
        names: tuple[str, ...] = self.value
        return names


@dataclass(frozen=True, slots=True)
class Family:
    """A metric family; `labels` are its own, beside the scope's.

    `observed` is the key of the histograms that give quantiles their count and sum, where no family shows them.
    """

    key: str
    type: str
    scope: Scope
    help: str
    labels: tuple[str, ...] = ()
    observed: str = ""

    @property
    def name(self) -> str:
        """The full metric name."""
        return PREFIX + self.key


def family(scope: Scope, key: str, text: str, *labels: str, kind: str = "", observed: str = "") -> Family:
    """Return a family: a counter if its name ends so, a summary with the label `quantile`, else a gauge or `kind`."""
    # The label `quantile` is reserved for summaries, which quantiles over a sliding window are (decision 0012).
    by_name = "counter" if key.endswith("_total") else "summary" if "quantile" in labels else "gauge"
    return Family(key, kind or by_name, scope, text, labels, observed)


engine_family, gpu_family, target_family, source_family, container_family, exporter_family = (
    partial(family, scope)
    for scope in (Scope.ENGINE, Scope.GPU, Scope.TARGET, Scope.SOURCE, Scope.CONTAINER, Scope.EXPORTER)
)

json_value = partial(family, Scope.ENGINE, kind=JSON_ONLY)
"""Returns a value of an engine for the JSON alone, as of a moment: a rate of a counter, or a highest reading."""

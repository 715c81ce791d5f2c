"""What a metric family is. Each is declared beside the function that gives its values; `exposition.families` collects.

A series' name, type, help and labels are written down there and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
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


def engine_family(key: str, text: str, *labels: str, kind: str = "gauge", observed: str = "") -> Family:
    """Return a family of engines."""
    # The label `quantile` is reserved for summaries, which quantiles over a sliding window are (decision 0012).
    return Family(key, "summary" if "quantile" in labels else kind, Scope.ENGINE, text, labels, observed)


def json_value(key: str, text: str, *labels: str) -> Family:
    """Return a value of an engine for the JSON alone, as of a moment: a rate of a counter, or a highest reading."""
    return Family(key, JSON_ONLY, Scope.ENGINE, text, labels)


def gpu_family(key: str, text: str, *labels: str) -> Family:
    """Return a family of GPUs."""
    return Family(key, "gauge", Scope.GPU, text, labels)


def target_family(key: str, text: str, *labels: str) -> Family:
    """Return a family of targets, whether they answer or not."""
    return Family(key, "gauge", Scope.TARGET, text, labels)


def container_family(key: str, kind: str, text: str, *labels: str) -> Family:
    """Return a family of containers."""
    return Family(key, kind, Scope.CONTAINER, text, labels)


def exporter_family(key: str, kind: str, text: str, *labels: str) -> Family:
    """Return a family of the exporter itself."""
    return Family(key, kind, Scope.EXPORTER, text, labels)

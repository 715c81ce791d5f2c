"""A real Prometheus on a TSDB made of samples of the past: `promtool` writes the blocks, range queries read them."""

from __future__ import annotations

import json
import shutil
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.support.past import blocks_of, prometheus

STEP_SECONDS: Final = 15.0
START: Final = 1_699_999_200.0
"""All episodes begin here, at a full hour, as subqueries do: their own labels tell them apart."""
LOOKBACK_SECONDS: Final = 5
"""So long after the next scrape was due, a series that is no longer scraped is gone, as staleness markers make it."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of one series, `t` seconds after START."""

    name: str
    labels: Mapping[str, str]
    t: float
    value: float


@dataclass(frozen=True, slots=True)
class Server:
    """A running Prometheus."""

    url: str

    def true_times(self, expr: str, seconds: float) -> dict[tuple[str, str], list[float]]:
        """By (episode, engine): the evaluation times after START at which `expr` gives a result.

        What is said of a whole server has no engine: it is told of rank 0.
        """
        query = {"query": expr, "start": START, "end": START + seconds, "step": STEP_SECONDS}
        request = urllib.request.Request(f"{self.url}/api/v1/query_range", urllib.parse.urlencode(query).encode())
        with urllib.request.urlopen(request, timeout=60) as answer:
            found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
        times: dict[tuple[str, str], set[float]] = {}
        for series in found:
            key = (series["metric"]["episode"], series["metric"].get("engine", "0"))
            times.setdefault(key, set()).update(float(t) - START for t, _ in series["values"])
        return {key: sorted(values) for key, values in times.items()}


def installed() -> bool:
    """Whether Debian's `prometheus` package, with promtool, is there."""
    return bool(shutil.which("prometheus") and shutil.which("promtool"))


def openmetrics(samples: Iterable[Sample]) -> Iterator[str]:
    """Lines of an OpenMetrics file; samples of one name come together."""
    by_name: dict[str, list[Sample]] = {}
    for sample in samples:
        by_name.setdefault(sample.name, []).append(sample)
    for name, rows in by_name.items():
        for row in rows:
            labels = ",".join(f"{key}={json.dumps(value)}" for key, value in row.labels.items())
            yield f"{name}{{{labels}}} {row.value!r} {START + row.t:.3f}\n"
    yield "# EOF\n"


@contextmanager
def serving(samples: Iterable[Sample], scrape_seconds: int = 15) -> Iterator[Server]:
    """A Prometheus that holds the samples. RuntimeError with its last words when it does not come up."""
    with tempfile.TemporaryDirectory(prefix="detection-") as name:
        folder = Path(name)
        data = blocks_of(folder, (line.encode() for line in openmetrics(samples)))
        lookback = f"--query.lookback-delta={scrape_seconds + LOOKBACK_SECONDS}s"
        with prometheus(folder, data, lookback) as url:
            yield Server(url)

"""Snapshot to a metrics page, in the Prometheus text format 0.0.4 or OpenMetrics 1.0.

Both formats carry the same sample lines; only the headers of counters and the end differ.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping

from kvpressure.exposition.containers import container_values
from kvpressure.exposition.families import FAMILIES, Family, Scope
from kvpressure.exposition.snapshot import EngineView, Snapshot
from kvpressure.exposition.verdicts import diagnosis_families, silence_families
from kvpressure.model.samples import HistogramSample, SourceHealth

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


def render(snapshot: Snapshot, *, openmetrics: bool) -> bytes:
    """The page. A family without series is left out, header included."""
    items = _by_scope(snapshot)
    out: list[str] = []
    for family in FAMILIES:
        lines: list[str] = []
        for prefix, values in items[family.scope]:
            value = values.get(family.key)
            if value is not None:
                lines.extend(_lines(family, prefix, value))
        if lines:
            out.append(_header(family, openmetrics=openmetrics))
            out.extend(lines)
    if openmetrics:
        out.append("# EOF\n")
    return "".join(out).encode()


def _by_scope(snapshot: Snapshot) -> dict[Scope, list[tuple[str, Mapping[str, object]]]]:
    return {
        Scope.ENGINE: [(labels(Scope.ENGINE.labels, view.labels), _engine_values(view)) for view in snapshot.known],
        Scope.GPU: [(labels(Scope.GPU.labels, view.labels), view.derived) for view in snapshot.gpus],
        Scope.SOURCE: [
            (
                labels(Scope.SOURCE.labels, (health.source, health.target)),
                {
                    "source_up": float(health.up),
                    "source_duration_seconds": None if math.isnan(health.duration_seconds) else health.duration_seconds,
                    "source_last_success_timestamp_seconds": health.last_success,
                    "source_errors_total": health.errors,
                    "poll_duration_seconds": _poll_durations(health),
                },
            )
            for health in snapshot.sources
        ],
        Scope.CONTAINER: [
            (labels(Scope.CONTAINER.labels, (key.namespace, key.pod, key.container)), values)
            for key, values in container_values(snapshot.surroundings).items()
        ],
        Scope.EXPORTER: [("", snapshot.exporter)],
    }


def _poll_durations(health: SourceHealth) -> Mapping[str, float] | None:
    if health.usual_seconds is None or health.longest_seconds is None:
        return None
    return {"0.5": health.usual_seconds, "1": health.longest_seconds}


def _engine_values(view: EngineView) -> Mapping[str, object]:
    if view.silence is not None:
        return silence_families(view, view.silence)
    return view.derived if view.diagnosis is None else view.derived | diagnosis_families(view.diagnosis)


def _header(family: Family, *, openmetrics: bool) -> str:
    name = family.name.removesuffix("_total") if openmetrics and family.type == "counter" else family.name
    return f"# HELP {name} {family.help}\n# TYPE {name} {family.type}\n"


def _lines(family: Family, prefix: str, value: object) -> Iterator[str]:
    if isinstance(value, HistogramSample):
        return _histogram_lines(family.name, prefix, value)
    return _sample_lines(family.name, prefix, family.labels, value)


def _sample_lines(name: str, inside: str, names: tuple[str, ...], value: object) -> Iterator[str]:
    """One line per number below `value`, which is nested in the order of the label `names`."""
    if isinstance(value, Mapping):
        for label_value, below in value.items():
            pair = _pair(names[0], label_value)
            yield from _sample_lines(name, f"{inside},{pair}" if inside else pair, names[1:], below)
    elif inside:
        yield f"{name}{{{inside}}} {number_text(value)}\n"  # type: ignore[arg-type]
    else:
        yield f"{name} {number_text(value)}\n"  # type: ignore[arg-type]


def _histogram_lines(name: str, prefix: str, histogram: HistogramSample) -> Iterator[str]:
    start = f"{name}_bucket{{{prefix},"
    for pair, count in zip(_le_pairs(histogram.bounds), histogram.counts, strict=True):
        yield f"{start}{pair}}} {number_text(count)}\n"
    yield f"{name}_sum{{{prefix}}} {number_text(histogram.sum)}\n"
    yield f"{name}_count{{{prefix}}} {number_text(histogram.count)}\n"


@functools.lru_cache(maxsize=64)
def _le_pairs(bounds: tuple[float, ...]) -> tuple[str, ...]:
    return tuple(_pair("le", number_text(bound)) for bound in bounds)


@functools.lru_cache(maxsize=4096)
def _pair(name: str, value: str) -> str:
    return f'{name}="{value.translate(_ESCAPES)}"'


def labels(names: Iterable[str], values: Iterable[str]) -> str:
    """`name="value"` pairs, escaped, joined by commas."""
    return ",".join(map(_pair, names, values))


def number_text(value: float) -> str:
    """A number as both formats want it: `1.0`, `+Inf`, `NaN`."""
    text = repr(float(value))
    if text[-1] not in "fn":
        return text
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"

"""Snapshot to a metrics page, in the Prometheus text format 0.0.4 or OpenMetrics 1.0.

Both formats carry the same sample lines; only the headers of counters and the end differ.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping

from kvpressure.exposition.families import FAMILIES, Family, Scope
from kvpressure.exposition.snapshot import Snapshot
from kvpressure.samples import HistogramSample

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

MAX_LABEL_LENGTH = 128

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
        Scope.ENGINE: [(labels(Scope.ENGINE.labels, view.labels), view.derived) for view in snapshot.engines],
        Scope.GPU: [(labels(Scope.GPU.labels, view.labels), view.derived) for view in snapshot.gpus],
        Scope.SOURCE: [
            (
                labels(Scope.SOURCE.labels, (health.source, health.target)),
                {
                    "source_up": float(health.up),
                    "source_duration_seconds": None if math.isnan(health.duration_seconds) else health.duration_seconds,
                    "source_last_success_timestamp_seconds": health.last_success,
                    "source_errors_total": health.errors,
                },
            )
            for health in snapshot.sources
        ],
        Scope.EXPORTER: [("", snapshot.exporter)],
    }


def _header(family: Family, *, openmetrics: bool) -> str:
    name = family.name.removesuffix("_total") if openmetrics and family.type == "counter" else family.name
    return f"# HELP {name} {family.help}\n# TYPE {name} {family.type}\n"


def _lines(family: Family, prefix: str, value: object) -> Iterator[str]:
    if isinstance(value, HistogramSample):
        yield from _histogram_lines(family.name, prefix, value)
        return
    for own, number in _leaves(family.labels, value):
        inside = f"{prefix},{own}" if prefix and own else prefix or own
        yield (
            f"{family.name}{{{inside}}} {number_text(number)}\n" if inside else f"{family.name} {number_text(number)}\n"
        )


def _leaves(names: tuple[str, ...], value: object) -> Iterator[tuple[str, float]]:
    if not isinstance(value, Mapping):
        yield "", float(value)  # type: ignore[arg-type]
        return
    for label_value, below in value.items():
        own = labels(names[:1], (label_value,))
        for rest, number in _leaves(names[1:], below):
            yield f"{own},{rest}" if rest else own, number


def _histogram_lines(name: str, prefix: str, histogram: HistogramSample) -> Iterator[str]:
    for bound, count in zip(histogram.bounds, histogram.counts, strict=True):
        yield f'{name}_bucket{{{prefix},le="{number_text(bound)}"}} {number_text(count)}\n'
    yield f"{name}_sum{{{prefix}}} {number_text(histogram.sum)}\n"
    yield f"{name}_count{{{prefix}}} {number_text(histogram.count)}\n"


def labels(names: Iterable[str], values: Iterable[str]) -> str:
    """`name="value"` pairs, escaped and cut, joined by commas."""
    return ",".join(f'{name}="{_cut(value).translate(_ESCAPES)}"' for name, value in zip(names, values, strict=True))


def _cut(value: str) -> str:
    """An over-long label value ends in a hash of the whole, so that two that start alike stay two series."""
    if len(value) <= MAX_LABEL_LENGTH:
        return value
    digest = hashlib.blake2s(value.encode("utf-8", "replace"), digest_size=4).hexdigest()
    return f"{value[: MAX_LABEL_LENGTH - 9]}~{digest}"


def number_text(value: float) -> str:
    """A number as both formats want it: `1.0`, `+Inf`, `NaN`."""
    if math.isfinite(value):
        return repr(float(value))
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"

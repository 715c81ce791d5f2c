"""Values as a panel shows them: texts, colours, stretches of the same state, rows of a table."""

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from matplotlib.colors import to_rgb

from kvpressure.model.catalogue import CATALOGUE as CAUSES
from tests.dashboards.grafana import Answer

INK, PAPER, FIRST = "#24292e", "#ffffff", "#4a90d9"


def runs(points: Sequence[tuple[float, float]]) -> Iterator[tuple[float, float, float]]:
    """Start, end and value of each stretch of the same value."""
    step = min((later[0] - earlier[0] for earlier, later in itertools.pairwise(points)), default=5.0)
    begin, last, value = points[0][0], points[0][0], points[0][1]
    for t, now in points[1:]:
        if now != value or t - last > 1.5 * step:
            yield begin, last + step if t - last > 1.5 * step else t, value
            begin, value = t, now
        last = t
    yield begin, last, value


def shown_value(value: float, defaults: Mapping[str, Any]) -> tuple[str, str]:
    """A value's text and colour, as mappings, thresholds, unit and decimals of its field say."""
    colour = FIRST
    for step in defaults.get("thresholds", {}).get("steps", ()):
        if step["value"] is None or value >= step["value"]:
            colour = step["color"]
    for mapping in defaults.get("mappings", ()):
        if look := mapping["options"].get(f"{value:g}"):
            return look["text"], look["color"]
    return in_unit(value, defaults.get("unit", ""), defaults.get("decimals")), colour


def in_unit(value: float, unit: str, decimals: int | None = None) -> str:
    """As Grafana writes it, roughly: 93%, 1.25 s, 4.1 K; `suffix:` and whatever stands behind the number."""
    known, _, suffix = unit.partition("suffix:")
    return _in_unit(value, known, decimals) + suffix


def _in_unit(value: float, unit: str, decimals: int | None) -> str:
    if math.isnan(value):
        return "NaN"
    if unit == "percentunit":
        return f"{value * 100:.{decimals or 0}f}%"
    if unit == "s":
        return f"{value * 1000:.3g} ms" if 0 < abs(value) < 1 else f"{value:.3g} s"
    for size, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if unit in ("bytes", "Bps") and abs(value) >= size:
            return f"{value / size:.3g} {name}{'/s' if unit == 'Bps' else ''}"
    for size, name in ((1e6, "Mil"), (1e3, "K")):
        if unit == "short" and abs(value) >= size:
            return f"{value / size:.3g} {name}"
    if decimals is None:
        decimals = 0 if abs(value) >= 1e3 else None
    return f"{value:.{decimals}f}" if decimals is not None else f"{value:.3g}"


def ink_on(colour: str) -> str:
    """What can be read on a colour: the palette's own ink for causes."""
    return next(
        (look.ink for look in CAUSES.values() if look.fill == colour), INK if sum(to_rgb(colour)) > 1.6 else PAPER
    )


def merged(panel: Any, found: Mapping[str, Answer]) -> list[dict[str, Any]]:
    """Rows of a table: answers with the same labels in one, hidden columns left out, sorted as the panel says."""
    rows: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    organize = panel["transformations"][-1]["options"]
    for target in panel["targets"]:
        answer = found.get(target["refId"])
        for series in answer.series if answer else ():
            row = rows.setdefault(tuple(sorted(series.labels.items())), dict(series.labels))
            row[target["legendFormat"]] = series.points[-1][1]
    (sort,) = panel["options"]["sortBy"]
    kept = [{k: v for k, v in row.items() if not organize["excludeByName"].get(k)} for row in rows.values()]
    empty = -math.inf if any(isinstance(row.get(sort["displayName"]), float) for row in kept) else ""
    return sorted(kept, key=lambda row: row.get(sort["displayName"], empty), reverse=bool(sort["desc"]))


def legend(template: str, labels: Mapping[str, str]) -> str:
    """A legend with its labels filled in."""
    return re.sub(r"\{\{\s*(\w+)\s*\}\}", lambda found: labels.get(found[1], ""), template).strip()

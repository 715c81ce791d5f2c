"""Draws a dashboard from what its queries answered: the layout, colours and lines of its JSON, no Grafana."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.dates import DateFormatter, MinuteLocator
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from tests.dashboards.grafana import Answer
from tests.dashboards.wording import INK, PAPER, in_unit, ink_on, legend, merged, runs, shown_value

COLUMN_INCHES, ROW_INCHES, DPI = 0.62, 0.36, 90
BACK, EDGE, MUTED, GRID = "#f4f5f5", "#dfe1e4", "#6a737d", "#e8eaec"
LINK = "#1f60c4"
CYCLE = ("#4a90d9", "#e39a4f", "#8a939c", "#2e9e6b", "#b07cd8", "#5e1736", "#f0b429", "#0b5394")
Answers = Mapping[tuple[str, str], Answer]
"""By panel title and query letter."""
_Pair = tuple[float, float]
_Box = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class _Line:
    """One series of a graph."""

    name: str
    colour: str
    points: Sequence[tuple[float, float]]
    dashed: bool
    filled: bool
    right: bool


def picture(board: Mapping[str, Any], rows: Sequence[str], answers: Answers, start: float, end: float) -> Figure:
    """The named rows of a dashboard, one below the other."""
    placed = list(_placed(board, rows))
    height = max(panel["gridPos"]["h"] + top for panel, top in placed)
    figure = Figure(figsize=(24 * COLUMN_INCHES, height * ROW_INCHES), dpi=DPI, facecolor=BACK)
    FigureCanvasAgg(figure)
    with mpl.rc_context({"font.size": 8, "text.color": INK, "axes.labelcolor": MUTED}):
        for panel, top in placed:
            _panel(figure, panel, top, height, answers, (start, end))
    return figure


def save(figure: Figure, path: Path) -> None:
    """As PNG, with few colours: pictures live in the repository."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, facecolor=BACK, metadata={"Software": None})


def _placed(board: Mapping[str, Any], rows: Sequence[str]) -> Iterator[tuple[dict[str, Any], float]]:
    """Panels of the rows with where they begin, in rows from the top."""
    wanted, offset, top = False, 0.0, 0.0
    for panel in (inner for one in board["panels"] for inner in (one, *one.get("panels", ()))):
        at = panel["gridPos"]
        if panel["type"] == "row":
            wanted = panel["title"] in rows
            offset = top - at["y"]
        if wanted:
            yield panel, at["y"] + offset
            top = max(top, at["y"] + offset + at["h"])


def _panel(figure: Figure, panel: dict[str, Any], top: float, height: float, answers: Answers, span: _Pair) -> None:
    at = panel["gridPos"]
    gap = 0.06
    x, w = (at["x"] + gap) / 24, (at["w"] - 2 * gap) / 24
    y, h = 1 - (top + at["h"] - gap) / height, (at["h"] - 2 * gap) / height
    if panel["type"] == "row":
        figure.text(x + 0.002, y + h / 2, f"⌄  {panel['title']}", va="center", fontsize=10, weight="bold")
        return
    figure.add_artist(Rectangle((x, y), w, h, facecolor=PAPER, edgecolor=EDGE, linewidth=0.8, zorder=0))
    title = 0.9 / height
    figure.text(x + 0.006, y + h - title / 2, panel["title"], va="center", fontsize=8.5, weight="bold")
    found = {target["refId"]: answers.get((panel["title"], target["refId"])) for target in panel.get("targets", ())}
    if not any(answer and answer.series for answer in found.values()):
        text = panel["fieldConfig"]["defaults"].get("noValue", "No data")
        figure.text(x + w / 2, y + (h - title) / 2, text, ha="center", va="center", color=MUTED)
        return
    box = (x, y, w, h - title)
    _KINDS[panel["type"]](figure, box, panel, {ref: answer for ref, answer in found.items() if answer}, span)


def _graph(figure: Figure, box: _Box, panel: Any, found: Mapping[str, Answer], span: _Pair) -> None:
    defaults = panel["fieldConfig"]["defaults"]
    stacked = defaults["custom"].get("stacking", {}).get("mode") == "normal"
    lines = list(_lines(panel, found))
    right = any(line.right for line in lines)
    axes = _axes(figure, box, panel, legend=True, right=0.05 if right else 0.008)
    other = axes.twinx() if right else axes
    if stacked:
        _stack(axes, lines)
    for line in [] if stacked else lines:
        _line(other if line.right else axes, line)
    if right:
        _bare(other)
        _scale(other, defaults, span)
    for step in defaults.get("thresholds", {}).get("steps", ())[1:]:
        if defaults["custom"].get("thresholdsStyle", {}).get("mode") == "dashed":
            axes.axhline(step["value"], color=step["color"], linewidth=1.2, linestyle=(0, (6, 4)))
    _scale(axes, defaults, span)
    _legend(figure, box, {line.name: line.colour for line in lines})


def _stack(axes: Axes, lines: Sequence[_Line]) -> None:
    times = sorted({t for line in lines for t, _ in line.points})
    values = [[dict(line.points).get(t, 0.0) for t in times] for line in lines]
    axes.stackplot(list(map(_time, times)), values, colors=[line.colour for line in lines], alpha=0.85)


def _line(axes: Axes, line: _Line) -> None:
    # A gap in the data is a gap in the line, as Grafana draws it.
    step = min((later[0] - earlier[0] for earlier, later in itertools.pairwise(line.points)), default=5.0)
    times: list[float] = []
    numbers: list[float] = []
    for t, value in line.points:
        if times and _time(t) - times[-1] > 1.5 * step / 86400.0:
            times.append(times[-1])
            numbers.append(math.nan)
        times.append(_time(t))
        numbers.append(value)
    axes.plot(times, numbers, "--" if line.dashed else "-", color=line.colour, linewidth=1.4)
    if line.filled:
        axes.fill_between(times, numbers, alpha=0.08, color=line.colour, linewidth=0)


def _lines(panel: Any, found: Mapping[str, Answer]) -> Iterator[_Line]:
    looks = _looks(panel)
    cycle = itertools.cycle(CYCLE)
    for target in panel["targets"]:
        answer = found.get(target["refId"])
        for series in sorted(answer.series, key=lambda one: sorted(one.labels.items())) if answer else ():
            name = legend(target["legendFormat"], series.labels)
            look = {**looks.get(target["refId"], {}), **looks.get(name, {})}
            yield _Line(
                str(look.get("displayName", name)),
                look.get("color", {}).get("fixedColor") or next(cycle),
                series.points,
                dashed="custom.lineStyle" in look,
                filled=look.get("custom.fillOpacity") != 0,
                right="custom.axisPlacement" in look,
            )


def _looks(panel: Any) -> dict[str, dict[str, Any]]:
    """Overrides: what they match to their properties."""
    return {
        override["matcher"]["options"]: {prop["id"]: prop["value"] for prop in override["properties"]}
        for override in panel["fieldConfig"]["overrides"]
    }


def _timeline(figure: Figure, box: _Box, panel: Any, found: Mapping[str, Answer], span: _Pair) -> None:
    (answer,) = found.values()
    names = {
        name: look for each in panel["fieldConfig"]["defaults"]["mappings"] for name, look in each["options"].items()
    }
    axes = _axes(figure, box, panel, legend=True, left=0.17)
    rows = sorted(answer.series, key=lambda one: legend(panel["targets"][0]["legendFormat"], one.labels), reverse=True)
    shown: dict[str, str] = {}
    for row, series in enumerate(rows):
        for begin, stop, value in runs(series.points):
            shade = EDGE if names else to_hex(colormaps["Blues"](value))
            look = names.get(f"{value:g}", {"text": f"{value:g}", "color": shade})
            if names:
                shown[look["text"]] = look["color"]
            left, right = _time(begin), _time(stop)
            axes.barh(row, right - left, left=left, height=0.86, color=look["color"], linewidth=0)
            if stop - begin > (span[1] - span[0]) * 0.09 and len(names) > 2:
                middle = left + (right - left) / 2
                ink = ink_on(look["color"])
                axes.text(middle, row, look["text"], ha="center", va="center", color=ink, fontsize=7)
    axes.set_yticks(range(len(rows)), [legend(panel["targets"][0]["legendFormat"], row.labels) for row in rows])
    axes.set_ylim(-0.5, len(rows) - 0.5)
    axes.grid(visible=False)
    _scale(axes, {"unit": "", "states": True}, span)
    _legend(figure, box, shown)


def _stat(figure: Figure, box: _Box, panel: Any, found: Mapping[str, Answer], _: _Pair) -> None:
    x, y, w, h = box
    (answer,) = found.values()
    value = answer.series[0].points[-1][1]
    defaults = panel["fieldConfig"]["defaults"]
    text, colour = shown_value(value, defaults)
    ink = colour
    if panel["options"]["colorMode"] == "background_solid":
        figure.add_artist(Rectangle((x, y), w, h, facecolor=colour, linewidth=0, zorder=1))
        ink = ink_on(colour)
    size = 20 if len(text) < 9 else 13
    figure.text(x + w / 2, y + h / 2, text, ha="center", va="center", fontsize=size, weight="bold", color=ink, zorder=2)


def _heat(figure: Figure, box: _Box, panel: Any, found: Mapping[str, Answer], span: _Pair) -> None:
    (answer,) = found.values()
    by_bound = {float(series.labels["le"].replace("+Inf", "inf")): dict(series.points) for series in answer.series}
    bounds = sorted(by_bound)
    times = sorted({t for points in by_bound.values() for t in points})
    cumulative = [[by_bound[bound].get(t, 0.0) for t in times] for bound in bounds]
    below = [[0.0] * len(times), *cumulative]
    counts = [
        [max(0.0, a - b) for a, b in zip(now, less, strict=True)] for now, less in zip(cumulative, below, strict=False)
    ]
    filled = [index for index, row in enumerate(counts) if any(row)] or [0]
    low, high = max(0, filled[0] - 1), min(len(bounds), filled[-1] + 2)
    axes = _axes(figure, box, panel, legend=False, left=0.035)
    step = times[1] - times[0] if len(times) > 1 else 60.0
    # A rate looks back, so a cell stands for the step that ends at its time.
    edges = [_time(t - step) for t in times] + [_time(times[-1])]
    values = [[math.sqrt(count) if count > 1e-9 else math.nan for count in row] for row in counts[low:high]]
    mesh = axes.pcolormesh(edges, range(high - low + 1), values, cmap="cividis", edgecolors=PAPER, linewidth=0.6)
    mesh.set_clim(0)
    labels = ["∞" if math.isinf(bound) else in_unit(bound, "short") for bound in bounds[low:high]]
    axes.set_yticks(range(1, high - low + 1), labels)
    axes.grid(visible=False)
    _scale(axes, {"states": True}, span)


def _table(figure: Figure, box: _Box, panel: Any, found: Mapping[str, Answer], _: _Pair) -> None:
    x, y, w, h = box
    rows = merged(panel, found)
    looks = _looks(panel)
    columns = [name for name in looks if any(name in row for row in rows)]
    line = min(h / (len(rows) + 1.2), 0.9 * h / 5)
    for place, name in enumerate(columns):
        left = x + w * (place + 0.1) / len(columns)
        figure.text(left, y + h - line * 0.5, name, va="center", color=MUTED, weight="bold", fontsize=7.5)
        for number, row in enumerate(rows):
            middle = y + h - line * (number + 1.5)
            if name in row:
                _cell(figure, (left, middle), (w / len(columns), line), row[name], looks[name])


def _cell(
    figure: Figure, at: tuple[float, float], size: tuple[float, float], value: Any, look: Mapping[str, Any]
) -> None:
    """A cell whose text begins `at`, in a column and line of `size`."""
    (left, middle), (width, line) = at, size
    options = {key.removeprefix("custom."): given for key, given in look.items()}
    text, colour = (str(value), LINK if "links" in look else INK)
    if isinstance(value, float):
        text, colour = shown_value(value, options)
    ink = colour if not isinstance(value, float) or "thresholds" in look else INK
    kind = options.get("cellOptions", {}).get("type")
    if kind == "color-background":
        corner = (left - width * 0.05, middle - line * 0.42)
        figure.add_artist(Rectangle(corner, width * 0.95, line * 0.84, facecolor=colour, zorder=1))
        ink = ink_on(colour)
    elif kind == "gauge":
        corner = (left, middle - line * 0.25)
        figure.add_artist(Rectangle(corner, width * 0.6 * min(1.0, value), line * 0.5, facecolor=colour, zorder=1))
        left += width * 0.64
    figure.text(left, middle, text, va="center", fontsize=7.5, color=ink, zorder=2)


def _axes(figure: Figure, box: _Box, panel: Any, *, legend: bool, left: float = 0.045, right: float = 0.008) -> Axes:
    x, y, w, h = box
    rows = panel["gridPos"]["h"] - 0.9
    bottom = h * (1.65 if legend else 0.9) / rows
    axes = figure.add_axes((x + left, y + bottom, w - left - right, h - bottom - h * 0.25 / rows), facecolor="none")
    axes.grid(color=GRID, linewidth=0.7)
    axes.set_axisbelow(True)
    _bare(axes)
    return axes


def _bare(axes: Axes) -> None:
    for side in axes.spines.values():
        side.set_visible(False)
    axes.tick_params(which="both", length=0, labelsize=7, labelcolor=MUTED)


def _scale(axes: Axes, defaults: Mapping[str, Any], span: _Pair) -> None:
    axes.set_xlim(_time(span[0]), _time(span[1]))
    axes.xaxis.set_major_locator(MinuteLocator(interval=max(1, round((span[1] - span[0]) / 360))))
    axes.xaxis.set_major_formatter(DateFormatter("%H:%M", tz=UTC))
    if "states" in defaults:
        return
    if defaults["custom"].get("scaleDistribution", {}).get("type") == "log":
        axes.set_yscale("log")
    else:
        low, high = axes.get_ylim()
        axes.set_ylim(defaults.get("min", low), defaults.get("max", high * 1.02))
    if (defaults.get("min"), defaults.get("max")) == (0.0, 1.0):
        axes.set_ylim(-0.01, 1.03)
    axes.yaxis.set_major_formatter(lambda value, _: in_unit(value, defaults["unit"]))


def _legend(figure: Figure, box: _Box, colours: Mapping[str, str]) -> None:
    """Names in one line at the foot of the panel, as many as fit."""
    x, y, w, _ = box
    inches = figure.get_size_inches()
    left, foot = x + 0.1 / inches[0], y + 0.14 / inches[1]
    for name, colour in colours.items():
        width = (0.3 + 0.062 * len(name)) / inches[0]
        if left + width > x + w:
            figure.text(left, foot, "…", va="center", fontsize=7)
            return
        figure.add_artist(Rectangle((left, foot - 0.02 / inches[1]), 0.12 / inches[0], 0.045 / inches[1], color=colour))
        figure.text(left + 0.16 / inches[0], foot, name, va="center", fontsize=7)
        left += width


def _time(t: float) -> Any:
    # Days since the epoch, which is what matplotlib's axes of dates count in.
    return datetime.fromtimestamp(t, UTC).timestamp() / 86400.0


_KINDS = {
    "timeseries": _graph,
    "state-timeline": _timeline,
    "stat": _stat,
    "heatmap": _heat,
    "table": _table,
}

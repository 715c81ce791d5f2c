"""The kinds of panel the dashboards are made of, each with a title, a description, a unit and legends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from grafana_foundation_sdk.builders import common, heatmap, prometheus, stat, statetimeline, table, text, timeseries
from grafana_foundation_sdk.builders.dashboard import FieldColor, ThresholdsConfig
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import common as common_model
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode, HeatmapColorScale
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from grafana_foundation_sdk.models.text import TextMode

from dashboards.looks import FIRST, SERIES, steps

DATASOURCE: Final = model.DataSourceRef("prometheus", "${datasource}")
WIDTH: Final = 24


Panel = Builder[model.Panel]
"""What a dashboard takes: anything that makes a panel."""


@dataclass(frozen=True, slots=True)
class Query:
    """One query. `legend` names a series of a graph, or the column of a table that its value stands in.

    `right` gives its series an axis of their own.
    """

    expr: str
    legend: str
    colour: str = ""
    dashed: bool = False
    right: bool = False


@dataclass(frozen=True, slots=True)
class Line:
    """A threshold drawn across a graph: from `value` on it is `colour`."""

    value: float
    colour: str


@dataclass(frozen=True, slots=True)
class Column:
    """How a table shows one column. `bar` fills the cell up to 1; `link` is where a click leads."""

    name: str
    unit: str = "short"
    decimals: int | None = None
    mappings: Sequence[model.ValueMapping] = ()
    thresholds: ThresholdsConfig | None = None
    bar: bool = False
    link: str = ""
    width: int = 0


def graph(  # noqa: PLR0913 -- what a graph can be told apart by
    title: str,
    what: str,
    unit: str,
    *queries: Query,
    width: int = 12,
    height: int = 8,
    lines: Sequence[Line] = (),
    least: float | None = 0.0,
    most: float | None = None,
    axis: str = "",
    stacked: bool = False,
    logarithmic: bool = False,
    none: str = "",
    since: str = "",
) -> timeseries.Panel:
    """Values over time. `none` is what stands there when there is no series; `since` fixes a longer time range."""
    panel = timeseries.Panel().title(title).description(what).datasource(DATASOURCE).span(width).height(height)
    panel = panel.unit(unit).line_width(1.5).fill_opacity(70 if stacked else 8).show_points(_NEVER)
    panel = panel.span_nulls(False).axis_border_show(False).axis_label(axis)
    panel = panel.legend(_legend()).tooltip(common.VizTooltipOptions().mode(_MULTI).sort(_DESC))
    panel = panel.color_scheme(FieldColor().mode(model.FieldColorModeId.PALETTE_CLASSIC_BY_NAME))
    for ref, query in enumerate(queries):
        panel = panel.with_target(_target(query, ref))
        if query.colour:
            panel = panel.override_by_query(_ref(ref), _series_look(query, stacked=stacked))
    if stacked:
        panel = panel.stacking(common.StackingConfig().mode(common_model.StackingMode.NORMAL).group("A"))
    if logarithmic:
        panel = panel.scale_distribution(common.ScaleDistributionConfig().type(_LOG).log(10))
    elif least is not None:
        panel = panel.min(least)
    if most is not None:
        panel = panel.max(most)
    if lines:
        panel = panel.thresholds(steps("transparent", *((line.value, line.colour) for line in lines)))
        panel = panel.thresholds_style(common.GraphThresholdsStyleConfig().mode(_DASHED))
    if since:
        panel = panel.time_from(since)
    return panel.no_value(none) if none else panel


def colours_by_name(panel: timeseries.Panel, colours: Mapping[str, tuple[str, str]]) -> timeseries.Panel:
    """Give series their own colour and name: legend to both."""
    for legend, (name, colour) in colours.items():
        panel = panel.override_by_name(
            legend,
            [
                model.DynamicConfigValue("color", {"mode": "fixed", "fixedColor": colour}),
                model.DynamicConfigValue("displayName", name),
            ],
        )
    return panel


def number(  # noqa: PLR0913 -- what a number can be told apart by
    title: str,
    what: str,
    unit: str,
    query: Query,
    *,
    width: int = 4,
    thresholds: ThresholdsConfig | None = None,
    mappings: Sequence[model.ValueMapping] = (),
    decimals: int | None = None,
    none: str = "",
    calm: bool = False,
) -> stat.Panel:
    """Return the newest value, large. `calm` colours the number alone, not the field around it."""
    panel = stat.Panel().title(title).description(what).datasource(DATASOURCE).span(width).height(4)
    panel = panel.with_target(_target(query, 0, instant=True)).unit(unit)
    panel = panel.graph_mode(common_model.BigValueGraphMode.NONE)
    loud = thresholds is not None and not calm
    panel = panel.color_mode(_MODE.BACKGROUND_SOLID if loud else _MODE.VALUE)
    panel = panel.reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
    panel = panel.color_scheme(FieldColor().mode(model.FieldColorModeId.THRESHOLDS))
    panel = panel.thresholds(thresholds or steps(FIRST))
    if mappings:
        panel = panel.mappings(list(mappings))
    if decimals is not None:
        panel = panel.decimals(decimals)
    return panel.no_value(none) if none else panel


def timeline(
    title: str,
    what: str,
    query: Query,
    mappings: Sequence[model.ValueMapping],
    *,
    height: int = 8,
    none: str = "",
    shades: bool = False,
) -> statetimeline.Panel:
    """Return a row per series, coloured by its state, which `mappings` names, or with `shades` by its value, 0 to 1."""
    panel = statetimeline.Panel().title(title).description(what).datasource(DATASOURCE).span(WIDTH).height(height)
    panel = panel.with_target(_target(query, 0)).unit("short").mappings(list(mappings))
    panel = panel.merge_values(True).show_value(common_model.VisibilityMode.AUTO).row_height(0.9)
    panel = panel.line_width(0).fill_opacity(90).legend(_legend())
    panel = panel.tooltip(common.VizTooltipOptions().mode(common_model.TooltipDisplayMode.SINGLE))
    panel = panel.color_scheme(FieldColor().mode(model.FieldColorModeId.THRESHOLDS))
    panel = panel.thresholds(steps("transparent"))
    if shades:
        panel = panel.show_value(_NEVER).min(0).max(1).decimals(1)
        panel = panel.color_scheme(FieldColor().mode(model.FieldColorModeId.CONTINUOUS_BLUES))
    return panel.no_value(none) if none else panel


def heat(
    title: str,
    what: str,
    query: Query,
    *,
    width: int = 12,
    height: int = 8,
    none: str = "",
    since: str = "",
) -> heatmap.Panel:
    """Buckets of tokens over time, darker where there is nothing."""
    panel = heatmap.Panel().title(title).description(what).datasource(DATASOURCE).span(width).height(height)
    target = _target(query, 0).format(PromQueryFormat.HEATMAP)
    panel = panel.with_target(target).unit("short").calculate(False).interval("1m")
    colour = heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Cividis").exponent(0.5).steps(64)
    panel = panel.color(colour.scale(HeatmapColorScale.EXPONENTIAL).fill(FIRST))
    panel = panel.y_axis(heatmap.YAxisConfig().unit("short").decimals(0)).show_legend()
    panel = panel.show_value(_NEVER).rows_frame(heatmap.RowsHeatmapOptions().layout(common_model.HeatmapCellLayout.LE))
    panel = panel.cell_values(heatmap.CellValues().unit("short").decimals(2))
    if since:
        panel = panel.time_from(since).interval("30m")
    return panel.no_value(none) if none else panel


def rows(  # noqa: PLR0913 -- what a table can be told apart by
    title: str,
    what: str,
    columns: Sequence[Column],
    *queries: Query,
    sort: str,
    descending: bool = True,
    width: int = WIDTH,
    height: int = 10,
    none: str = "",
    hidden: Sequence[str] = (),
) -> table.Panel:
    """One row per set of labels that the queries share; a query's `legend` is the column of its value."""
    panel = table.Panel().title(title).description(what).datasource(DATASOURCE).span(width).height(height)
    for ref, query in enumerate(queries):
        panel = panel.with_target(_target(query, ref, instant=True).format(PromQueryFormat.TABLE))
    # With one query its value has no number, and there is nothing to merge.
    several = len(queries) > 1
    names = {f"Value #{_ref(ref)}" if several else "Value": query.legend for ref, query in enumerate(queries)}
    order = {(_original(column.name, names)): index for index, column in enumerate(columns)}
    hide = dict.fromkeys(("Time", *hidden), True)
    if several:
        panel = panel.with_transformation(model.DataTransformerConfig("merge", options={}))
    options = {"excludeByName": hide, "renameByName": names, "indexByName": order}
    panel = panel.with_transformation(model.DataTransformerConfig("organize", options=options))
    for column in columns:
        panel = panel.override_by_name(column.name, _column_look(column))
    sorting = common.TableSortByFieldState().display_name(sort).desc(descending)
    panel = panel.sort_by([sorting]).unit("short").show_header(True).cell_height(common_model.TableCellHeight.SM)
    return panel.no_value(none) if none else panel


def words(title: str, what: str, content: str, *, width: int = WIDTH, height: int = 8) -> text.Panel:
    """Text for people, in Markdown."""
    panel = text.Panel().title(title).description(what).span(width).height(height)
    return panel.mode(TextMode.MARKDOWN).content(content)


def _target(query: Query, ref: int, *, instant: bool = False) -> prometheus.Dataquery:
    target = prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(_ref(ref))
    target = target.datasource(DATASOURCE)
    return target.instant() if instant else target.range()


def _ref(number_: int) -> str:
    return chr(ord("A") + number_)


def _original(name: str, renamed: Mapping[str, str]) -> str:
    return next((old for old, new in renamed.items() if new == name), name)


def _series_look(query: Query, *, stacked: bool) -> list[model.DynamicConfigValue]:
    # Engines shown together differ in shade, so that "p95" is told from "p50" at a glance and one engine from another.
    look = [model.DynamicConfigValue("color", {"mode": "shades", "fixedColor": query.colour})]
    if query.dashed:
        look.append(model.DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [8, 6]}))
    if query.right:
        look.append(model.DynamicConfigValue("custom.axisPlacement", "right"))
    if query.colour not in SERIES[:1] and not stacked:
        look.append(model.DynamicConfigValue("custom.fillOpacity", 0))
    return look


def _column_look(column: Column) -> list[model.DynamicConfigValue]:
    look: dict[str, Any] = {"unit": column.unit}
    if column.decimals is not None:
        look["decimals"] = column.decimals
    if column.mappings:
        look["mappings"] = list(column.mappings)
        look["custom.cellOptions"] = {"type": "color-background", "mode": "basic"}
    if column.bar:
        look |= {
            "min": 0,
            "max": 1,
            "custom.cellOptions": {"type": "gauge", "mode": "basic", "valueDisplayMode": "text"},
        }
    if column.thresholds is not None:
        look["thresholds"] = column.thresholds.build()
        look["color"] = {"mode": "thresholds"}
        if not column.bar:
            look["custom.cellOptions"] = {"type": "color-text"}
    if column.link:
        look["links"] = [{"title": "Open the engine's dashboard", "url": column.link, "targetBlank": False}]
    if column.width:
        look["custom.width"] = column.width
    return [model.DynamicConfigValue(key, value) for key, value in look.items()]


def _legend() -> common.VizLegendOptions:
    legend = common.VizLegendOptions().show_legend(True).display_mode(common_model.LegendDisplayMode.LIST)
    return legend.placement(common_model.LegendPlacement.BOTTOM)


_MODE: Final = common_model.BigValueColorMode
_NEVER: Final = common_model.VisibilityMode.NEVER
_MULTI: Final = common_model.TooltipDisplayMode.MULTI
_DESC: Final = common_model.SortOrder.DESCENDING
_LOG: Final = common_model.ScaleDistribution.LOG
_DASHED: Final = common_model.GraphThresholdsStyleMode.DASHED

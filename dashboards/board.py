"""The frame of every dashboard: variables, links, rows, annotations; and its JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as model

from dashboards.panels import DATASOURCE, Panel

TAG: Final = "kvpressure"
ALL: Final = model.VariableOption(True, "All", "$__all")
EVERYTHING: Final = ".*"
"""What All stands for: unlike the list of all values, it matches series that lack the label."""


@dataclass(frozen=True, slots=True)
class Row:
    """A titled row of panels. The first of a board is open; the others run no query until somebody opens them."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True)
class Note:
    """An annotation: a mark on every graph where `expr` has a value. `text` may name labels."""

    name: str
    expr: str
    colour: str
    text: str


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard. `uid` is what alerts and bookmarks link to: it never changes."""

    uid: str
    title: str
    what: str
    variables: Sequence[build.QueryVariable]
    rows: Sequence[Row]
    notes: Sequence[Note] = field(default_factory=tuple)

    def json(self) -> dict[str, Any]:
        """Return the template, as Grafana's own JSON but for what `kvpressure generate` fills in."""
        board = build.Dashboard(self.title).uid(self.uid).description(self.what).tags([TAG]).editable()
        board = board.time("now-1h", "now").refresh("30s").tooltip(model.DashboardCursorSync.CROSSHAIR)
        board = board.timezone("browser").link(_others()).link(_elsewhere("Logs", "logs"))
        board = board.link(_elsewhere("The engine's own dashboard", "engine_board"))
        for variable in (_datasource(), *self.variables, *_addresses()):
            board = board.with_variable(variable)
        first, *others = self.rows
        board = board.with_row(build.Row(first.title))
        for panel in first.panels:
            board = board.with_panel(panel)
        for row in others:
            board = board.with_row(_folded(row))
        made: dict[str, Any] = json.loads(json.dumps(board.build(), cls=JSONEncoder))
        made["annotations"] = {"list": [_note(note) for note in self.notes]}
        for number, panel in enumerate(_flat(made["panels"]), 1):
            panel["id"] = number
        for one in made["templating"]["list"]:
            # What follows from the other variables must not travel in links: it would be the list of yesterday.
            if one.get("hide") and one.get("includeAll"):
                one["skipUrlSync"] = True
        return made


def variable(
    name: str,
    label: str,
    query: str,
    *,
    hidden: bool = False,
    regex: str = "",
    everything: str = EVERYTHING,
) -> build.QueryVariable:
    """Return a variable with several values and All, asked for again whenever the time range changes."""
    made = build.QueryVariable(name).label(label).query(query).datasource(DATASOURCE).multi(True).include_all(True)
    made = made.refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED).current(ALL).regex(regex)
    made = made.sort(model.VariableSort.DISABLED if regex else model.VariableSort.ALPHABETICAL_ASC)
    if hidden:
        made = made.hide(model.VariableHide.HIDE_VARIABLE)
    return made.all_value(everything) if everything else made


def one_of(name: str, label: str, query: str) -> build.QueryVariable:
    """Return a hidden variable with one value: the first there is, or the one that a link names."""
    made = build.QueryVariable(name).label(label).query(query).datasource(DATASOURCE)
    made = made.refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED).sort(model.VariableSort.ALPHABETICAL_ASC)
    return made.hide(model.VariableHide.HIDE_VARIABLE)


def text_of(board: Board) -> str:
    """Return the template as it is written to a file."""
    return json.dumps(board.json(), indent=1, ensure_ascii=False) + "\n"


def _datasource() -> build.DatasourceVariable:
    return build.DatasourceVariable("datasource").label("Data source").type("prometheus")


def _others() -> build.DashboardLink:
    link = build.DashboardLink("kvpressure").type(model.DashboardLinkType.DASHBOARDS).tags([TAG]).as_dropdown(True)
    return link.include_vars(True).keep_time(True).icon("external link").tooltip("The other dashboards of kvpressure")


def _addresses() -> list[build.TextBoxVariable]:
    """Where logs, and the runtime's own dashboard, are to be found: an address of one's own, saved with the board."""
    hidden = model.VariableHide.HIDE_VARIABLE
    logs = build.TextBoxVariable("logs").label("Address of logs").default_value("/explore")
    own = build.TextBoxVariable("engine_board").label("Address of the engine's own dashboard")
    return [logs.hide(hidden), own.default_value("/dashboards?query=vllm").hide(hidden)]


def _elsewhere(title: str, name: str) -> build.DashboardLink:
    link = build.DashboardLink(title).type(model.DashboardLinkType.LINK).url(f"${{{name}:raw}}")
    return link.keep_time(True).target_blank(True).icon("external link").tooltip(f"Set the variable {name}")


def _folded(row: Row) -> build.Row:
    folded = build.Row(row.title).collapsed(True)
    for panel in row.panels:
        folded = folded.with_panel(panel)
    return folded


def _note(note: Note) -> Mapping[str, Any]:
    return {
        "name": note.name,
        "datasource": {"type": DATASOURCE.type_val, "uid": DATASOURCE.uid},
        "enable": True,
        "hide": False,
        "iconColor": note.colour,
        "expr": note.expr,
        "step": "60s",
        "titleFormat": note.name,
        "textFormat": note.text,
        "useValueForTime": False,
    }


def _flat(panels: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [inner for panel in panels for inner in (panel, *panel.get("panels", ()))]

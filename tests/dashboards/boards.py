"""The generated dashboards as Grafana reads them: panels, queries and variables, and how it fills variables in."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support import built

ROOT = Path(__file__).parents[2]
LINT = Path(__file__).with_name(".lint")
"""What Grafana's linter is told to leave out."""
UIDS = ("kvpressure-fleet", "kvpressure-engine", "kvpressure-capacity", "kvpressure-exporter")
ALL = "$__all"
_VARIABLE = re.compile(r"\$(\w+)|\$\{(\w+)(?::(\w+))?\}")


@dataclass(frozen=True, slots=True)
class BoardQuery:
    """One query of a dashboard. `panel` is its title, `ref` the query's letter; an annotation's is "annotation".

    `interval` is the least step, and `since` how far a panel looks back whatever the time range, both "" for none.
    """

    uid: str
    panel: str
    ref: str
    expr: str
    instant: bool
    interval: str = ""
    legend: str = ""
    since: str = ""

    def __str__(self) -> str:
        return f"{self.uid.removeprefix('kvpressure-')} / {self.panel} / {self.ref}"


def path(uid: str) -> Path:
    """A dashboard's file."""
    return built.bundle() / "grafana" / "dashboards" / f"{uid}.json"


def load(uid: str) -> dict[str, Any]:
    """A dashboard's JSON."""
    board: dict[str, Any] = json.loads(path(uid).read_text())
    return board


def panels(board: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """All panels but the rows that hold them."""
    for panel in board["panels"]:
        if panel["type"] == "row":
            yield from panel.get("panels", ())
        else:
            yield panel


def queries(board: Mapping[str, Any]) -> Iterator[BoardQuery]:
    """All queries of panels and annotations."""
    uid = board["uid"]
    for panel in panels(board):
        for target in panel.get("targets", ()):
            interval = panel.get("interval", "")
            yield BoardQuery(
                *(uid, panel["title"], target["refId"], target["expr"], target["instant"]),
                *(interval, target["legendFormat"], panel.get("timeFrom", "")),
            )
    for note in board["annotations"]["list"]:
        yield BoardQuery(uid, note["name"], "annotation", note["expr"], instant=False, interval=note["step"])


def variables(board: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The variables that ask Prometheus, in their order."""
    return [one for one in board["templating"]["list"] if one["type"] == "query"]


def filled(text: str, values: Mapping[str, str | list[str]]) -> str:
    """Variables filled in as Grafana's Prometheus data source does: lists as an alternation, escaped for a string."""

    def one(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name not in values:
            raise LookupError(f"{name} in {text!r} is no variable")
        value = values[name]
        return value if isinstance(value, str) else _alternatives(value)

    return _VARIABLE.sub(one, text)


def seconds(duration: str) -> float:
    """`30s`, `1m` as seconds."""
    return float(duration[:-1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[duration[-1]]


def _alternatives(values: list[str]) -> str:
    escaped = [re.sub(r"[\\^$*+?.()|\[\]{}]", r"\\\\\g<0>", value).replace('"', '\\"') for value in values]
    return escaped[0] if len(escaped) == 1 else f"({'|'.join(escaped)})"

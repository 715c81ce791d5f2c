"""PURE: server metrics over time in other tools' files, as pages: aiperf's JSONL, Grafana's CSV.

aiperf 0.13 (`SlimRecord` in its common/models/server_metrics_models.py) writes one line per scrape of an endpoint,
without the types of metrics, without those named `*_info`, and counters without their `_total`. Grafana (`toCSV` in its
packages/grafana-data/src/utils/csv.ts) writes a row per time and a column per series, named as the panel shows it.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlsplit

from kvpressure.model.record import record
from kvpressure.printable import brief
from kvpressure.runtimes.registry import TABLES

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*+")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*+)\s*+=\s*+"((?:[^"\\]|\\.)*+)"')
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})

_KNOWN: Final = frozenset(name.decode() for table in TABLES for name in table.wanted())
_COUNTER: Final = "_total"

_TIME_COLUMN = re.compile(r'\ufeff?"?time"? *+([,;\t])', re.IGNORECASE)
_SEPARATOR = re.compile(r'\ufeff?"?sep=([,;\t])"?\s*')
_MILLISECONDS: Final = 1e11
"""Larger times are milliseconds since 1970, of which so many seconds are the year 5138."""


@record
class ExportedPage:
    """The metrics of one server at one time (unix seconds). `source` names the server, "" where the file does not."""

    t: float
    source: str
    page: str


def is_aiperf(line: Mapping[str, Any]) -> bool:
    """Return whether a line of JSON is a scrape that aiperf recorded."""
    return "timestamp_ns" in line and isinstance(line.get("metrics"), dict)


def aiperf_page(line: Mapping[str, Any]) -> ExportedPage:
    """Return the page of a scrape. Raises ValueError, TypeError, KeyError or AttributeError where it is none."""
    series = [
        labelled
        for name, samples in line["metrics"].items()
        for sample in samples
        for labelled in _series(name, sample)
    ]
    return ExportedPage(float(line["timestamp_ns"]) / 1e9, _address(str(line.get("endpoint_url", ""))), "".join(series))


def _address(url: str) -> str:
    """Return the host and port of a metrics page, and its path where that is not the usual one."""
    parts = urlsplit(url)
    return brief(parts.netloc.rpartition("@")[2] + parts.path.removesuffix("/metrics"))


def _series(name: str, sample: Mapping[str, Any]) -> Iterator[str]:
    labels = sample.get("labels") or {}
    buckets = sample.get("buckets")
    if buckets is None:
        counted = name not in _KNOWN and name + _COUNTER in _KNOWN
        yield _line(name + _COUNTER if counted else name, labels, sample["value"])
        return
    for bound, count in buckets.items():
        yield _line(f"{name}_bucket", {**labels, "le": bound}, count)
    for end in ("sum", "count"):
        if sample.get(end) is not None:
            yield _line(f"{name}_{end}", labels, sample[end])


def _line(name: str, labels: Mapping[str, Any], value: Any) -> str:
    return f"{_head(name, labels)} {float(value)!r}\n"


def _head(name: str, labels: Mapping[str, Any]) -> str:
    for part in (name, *labels):
        if not _NAME.fullmatch(part):
            raise ValueError(f"{brief(part)} is not a name of a metric or label")
    inside = ",".join(f'{key}="{str(value).translate(_ESCAPES)}"' for key, value in labels.items())
    return f"{name}{{{inside}}}" if inside else name


def csv_separator(line: str) -> str:
    """Return the separator that a CSV's first line names (`sep=,`, for Excel) or shows after Time, "" where none is."""
    match = _SEPARATOR.fullmatch(line) or _TIME_COLUMN.match(line)
    return match[1] if match else ""


def names_separator(line: str) -> bool:
    """Return whether the line is no header yet, but names the separator."""
    return _SEPARATOR.fullmatch(line) is not None


class GrafanaTable:
    """The columns of a CSV with times and series, by server, and each of its rows as pages.

    Raises ValueError, which says what to export, where no column is a metric of an engine.
    """

    def __init__(self, header: str, separator: str) -> None:
        self._separator = separator
        self._columns: dict[str, list[tuple[int, str]]] = {}
        names = self._cells(header.removeprefix("\ufeff"))
        for position, title in enumerate(names[1:], 1):
            name, labels = _titled(title.strip())
            if name in _KNOWN:
                source = labels.pop("instance", "") or labels.get("pod", "")
                self._columns.setdefault(brief(source), []).append((position, _head(name, labels)))
        if not self._columns:
            shown = f", but {brief(names[1], 60)}" if len(names) > 1 else ""
            raise ValueError(
                f"none of its columns is named by a metric of an engine{shown}: query all metrics of the engine in "
                "Grafana's Explore, and download Inspector, Data, Series joined by time"
            )

    def pages(self, line: str) -> Iterator[ExportedPage]:
        """Yield the page of each server that has a value in the row. Raises ValueError where the row is none."""
        cells = self._cells(line)
        t = _seconds(cells[0].strip())
        for source, columns in self._columns.items():
            values = ((head, cells[at].strip()) for at, head in columns if at < len(cells))
            series = [f"{head} {number!r}\n" for head, cell in values if cell and math.isfinite(number := _value(cell))]
            if series:
                yield ExportedPage(t, source, "".join(series))

    def _cells(self, line: str) -> list[str]:
        try:
            return next(csv.reader((line,), delimiter=self._separator), [""])
        except csv.Error as error:
            raise ValueError(f"{error}") from error


def _titled(title: str) -> tuple[str, dict[str, str]]:
    """Return the metric and the labels of a column: `name{labels}`, or with the name among the labels."""
    name, _, inside = title.partition("{")
    labels = {key: value.replace(r"\"", '"').replace(r"\\", "\\") for key, value in _LABEL.findall(inside)}
    return name.strip() or labels.pop("__name__", ""), labels


def _seconds(cell: str) -> float:
    try:
        number = float(cell)
    except ValueError:
        moment = datetime.fromisoformat(cell)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return number / 1000 if number > _MILLISECONDS else number


def _value(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        raise ValueError(f"{brief(cell, 40)} is not a number: switch off Formatted data before the download") from None

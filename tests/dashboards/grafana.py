"""Asks Prometheus what Grafana would ask: variables in their order, then the queries of every panel."""

import asyncio
import json
import math
import re
import statistics
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.dashboards.boards import ALL, BoardQuery, filled, seconds, variables
from tests.support.processes import PATIENCE_SECONDS

POINTS = 1000
"""Of a line at most, about the width of a panel: Grafana makes the step of a query longer for longer times."""

_LABEL_VALUES = re.compile(r"label_values\((.+), (\w+)\)", re.DOTALL)
_RESULT = re.compile(r"query_result\((.+)\)", re.DOTALL)
Values = dict[str, str | list[str]]


@dataclass(frozen=True, slots=True)
class Series:
    """Labels, and values with their times (unix seconds)."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What one query gave, how long it took to come, and how many samples Prometheus read for it."""

    series: tuple[Series, ...]
    took_seconds: float
    samples: int = 0


@dataclass
class Prometheus:
    """A running server, scraping every `scrape_seconds`; `read` is the samples that each variable's query read last."""

    url: str
    scrape_seconds: float
    read: dict[str, int] = field(default_factory=dict)
    _variables: dict[str, list[float]] = field(default_factory=dict)

    async def values(self, board: Mapping[str, Any], start: float, end: float, chosen: Mapping[str, str]) -> Values:
        """Every variable: what is `chosen`, All otherwise. A hidden one with one value takes the first."""
        found: Values = {"__range": f"{int(end - start)}s"}
        for variable in variables(board):
            name = variable["name"]
            began = time.perf_counter()
            options = await self._options(variable, found, start, end)
            took = time.perf_counter() - began
            self._variables.setdefault(f"{board['uid'].removeprefix('kvpressure-')} / ${name}", []).append(took)
            if name in chosen:
                found[name] = [chosen[name]]
            elif not variable["includeAll"]:
                found[name] = options[0] if options else ""
            else:
                assert variable["current"]["value"] == ALL
                found[name] = variable.get("allValue") or options
        return found

    async def ask(self, query: BoardQuery, values: Values, start: float, end: float) -> Answer:
        """The newest value of an instant query, else the values from `start` to `end`."""
        least = seconds(query.interval) if query.interval else 0.0
        step = float(math.ceil(max(self.scrape_seconds, least, (end - start) / POINTS)))
        rate = max(step + self.scrape_seconds, 4 * self.scrape_seconds)
        intervals = {"__rate_interval": f"{int(rate)}s", "__interval": f"{int(step)}s"}
        asked = {"query": filled(query.expr, {**values, **intervals}), "stats": "all"}
        if query.instant:
            asked["time"] = f"{end:.3f}"
        else:
            # The newest point is the one people look at, so steps are counted back from it.
            start = end - (end - start) // step * step
            asked |= {"start": f"{start:.3f}", "end": f"{end:.3f}", "step": f"{step:.3f}"}
        began = time.perf_counter()
        text = await self._get("query" if query.instant else "query_range", asked)
        took = time.perf_counter() - began
        data = json.loads(text)["data"]
        return Answer(tuple(map(_series, data["result"])), took, data["stats"]["samples"]["totalQueryableSamples"])

    async def typical_seconds(
        self, query: BoardQuery, values: Values, start: float, end: float, runs: int = 5
    ) -> float:
        """The median of several runs: this machine does other things as well."""
        return statistics.median([(await self.ask(query, values, start, end)).took_seconds for _ in range(runs)])

    def variables_took(self) -> dict[str, float]:
        """Seconds that asking for each variable took, the median of all times it was asked for."""
        return {name: statistics.median(took) for name, took in self._variables.items()}

    async def _options(self, variable: Mapping[str, Any], found: Values, start: float, end: float) -> list[str]:
        text = filled(variable["query"], found)
        if match := _LABEL_VALUES.fullmatch(text):
            asked = {"match[]": match[1], "start": f"{start:.3f}", "end": f"{end:.3f}"}
            return list(json.loads(await self._get(f"label/{match[2]}/values", asked))["data"])
        match = _RESULT.fullmatch(text)
        assert match, text
        data = json.loads(await self._get("query", {"query": match[1], "time": f"{end:.3f}", "stats": "all"}))["data"]
        self.read[variable["name"]] = data["stats"]["samples"]["totalQueryableSamples"]
        regex = re.compile(variable["regex"].strip("/"))
        rows = ("{" + ",".join(f'{k}="{v}"' for k, v in one["metric"].items()) + "}" for one in data["result"])
        return [hit[1] for row in rows if (hit := regex.search(row))]

    async def _get(self, what: str, asked: Mapping[str, str]) -> str:
        url = f"{self.url}/api/v1/{what}?{urllib.parse.urlencode(asked)}"

        def fetch() -> str:
            # Longer than `processes.get` waits: a slow answer is a figure to print here, no failure.
            with urllib.request.urlopen(url, timeout=PATIENCE_SECONDS) as response:
                return str(response.read().decode())

        return await asyncio.to_thread(fetch)


def _series(result: Mapping[str, Any]) -> Series:
    points = result.get("values") or [result["value"]]
    return Series(result["metric"], tuple((float(t), float(value)) for t, value in points))

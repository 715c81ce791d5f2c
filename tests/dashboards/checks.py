"""What is asked of every query, collected over a whole run."""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from tests.dashboards.boards import panels, queries, seconds
from tests.dashboards.expected import phases as expected_phases
from tests.dashboards.grafana import Answer, Prometheus, Values
from tests.dashboards.stand import Phase

LIMIT_SECONDS = 0.2
HOUR = 3600.0


class Checks:
    """Collects what is wrong, so that one run tells everything."""

    def __init__(self, server: Prometheus, phases: list[Phase]) -> None:
        self.server = server
        self.phases = phases
        self.start, self.end = phases[0].start, phases[-1].end
        self.wrong: list[str] = []
        self.took: dict[str, float] = {}

    async def demo_has_data_in_its_phases(self, board: Mapping[str, Any], demo: Mapping[str, str]) -> None:
        """Each query has data in the phases named for it, and a panel without any says why."""
        values = await self._values(board, demo)
        for phase in self.phases:
            answers = {query: await self.server.ask(query, values, phase.start, phase.end) for query in queries(board)}
            for query, answer in answers.items():
                if phase.name in expected_phases(query) and not has_data(answer):
                    self.wrong.append(f"{query} has no data while {phase.name}")
            filled = {query.panel for query, answer in answers.items() if has_data(answer)}
            for panel in panels(board):
                told = panel.get("fieldConfig", {}).get("defaults", {}).get("noValue")
                if panel.get("targets") and panel["title"] not in filled and not told and phase.name != "idle":
                    self.wrong.append(f"{board['uid']} / {panel['title']} would say No data while {phase.name}")

    async def fleet_has_data(self, board: Mapping[str, Any], chosen: Mapping[str, str]) -> None:
        """Each query has data sometime in the run, with these variables."""
        values = await self._values(board, chosen)
        for query in queries(board):
            answer = await self.server.ask(query, values, self.start, self.end)
            if not has_data(answer):
                self.wrong.append(f"{query} has no data at all with {chosen or 'All'}")

    async def answers_come_in_time(self, board: Mapping[str, Any], chosen: Mapping[str, str]) -> None:
        """An hour of each query, as the dashboard opens, or two weeks: the median of several runs."""
        values = await self._values(board, chosen)
        for query in queries(board):
            back = seconds(query.since) if query.since else HOUR
            took = await self.server.typical_seconds(query, values, self.end - back, self.end)
            self.took[str(query)] = max(took, self.took.get(str(query), 0.0))

    async def _values(self, board: Mapping[str, Any], chosen: Mapping[str, str]) -> Values:
        values = await self.server.values(board, self.start, self.end, chosen)
        known = {name: value for name, value in chosen.items() if name in values}
        for name, value in known.items():
            assert values[name] == [value]
        if not values["shown"]:
            self.wrong.append(f"{board['uid']} shows nothing with {chosen or 'All'}")
        return values


def has_data(answer: Answer) -> bool:
    """Whether there is a number in it."""
    return any(not math.isnan(value) for series in answer.series for _, value in series.points)


def slowest(took: Mapping[str, float], count: int) -> Iterator[str]:
    """Lines to print."""
    for name, value in sorted(took.items(), key=lambda item: -item[1])[:count]:
        yield f"{value * 1000:7.1f} ms  {name}"


def say_to(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Print through pytest: the figures are what this test is run for."""

    def say(line: str) -> None:
        with capsys.disabled():
            print(line, flush=True)  # noqa: T201 -- see above

    return say

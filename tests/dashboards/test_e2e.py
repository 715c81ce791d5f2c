"""Every query of every dashboard, asked of a real Prometheus that has seen an incident (`make e2e-dashboards`)."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.dashboards import pictures
from tests.dashboards.boards import UIDS, load, queries
from tests.dashboards.checks import LIMIT_SECONDS, Checks, say_to, slowest
from tests.dashboards.grafana import Prometheus
from tests.dashboards.stand import Phase, incident

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
DEMO = {"target": "demo"}
PRESSED = {
    "cluster": "west",
    "namespace": "chat",
    "model_name": "llama-3.1-8b",
    "target": "chat/vllm-0:8000",
    "engine": "0",
}
"""The engine of the fleet beside the demo that comes under pressure: every variable with one value."""

DRAWN = {
    "kvpressure-engine": (
        ("Now", "Cause and symptoms", "The KV cache", "The batch", "Latency", "The GPU", "Prompt and output lengths"),
        DEMO,
    ),
    "kvpressure-fleet": (("Now", "By cause", "By namespace and model", "Throughput"), {}),
}


async def draw(server: Prometheus, phases: list[Phase], folder: Path) -> None:
    """Pictures for the documentation, from this run: the incident, ending where it is at its worst."""
    start, end = phases[0].start, phases[-1].end
    worst = next(phase for phase in phases if phase.name == "collapsed")
    for uid, (rows, chosen) in DRAWN.items():
        board = load(uid)
        values = await server.values(board, start, worst.end, chosen)
        answers = {}
        for query in queries(board):
            until = worst.end - 1 if query.instant or uid == "kvpressure-fleet" else end
            answers[query.panel, query.ref] = await server.ask(query, values, start, until)
        until = worst.end - 1 if uid == "kvpressure-fleet" else end
        figure = pictures.picture(board, rows, answers, start, until)
        pictures.save(figure, folder / f"dashboard-{uid.removeprefix('kvpressure-')}.png")


async def test_every_query_of_every_dashboard_has_the_data_it_should_and_none_is_slow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    say = say_to(capsys)
    async with incident(tmp_path) as (server, phases):
        checks = Checks(server, phases)
        for uid in UIDS:
            board = load(uid)
            choices: tuple[Mapping[str, str], ...] = ({}, PRESSED)
            if uid == "kvpressure-exporter":
                choices = ({},)
            else:
                await checks.demo_has_data_in_its_phases(board, DEMO)
            for chosen in choices:
                await checks.fleet_has_data(board, chosen)
                await checks.answers_come_in_time(board, chosen)
            say(f"{uid}: {sum(1 for _ in queries(board))} queries")
        say("slowest, median of 5 runs over an hour:")
        took = checks.took | server.variables_took()
        for line in slowest(took, 8):
            say(line)
        if folder := os.environ.get("PICTURES"):
            await draw(server, phases, Path(folder))
    slow = {name: value for name, value in took.items() if value > LIMIT_SECONDS}
    assert not checks.wrong, "\n".join(checks.wrong)
    assert slow == {}

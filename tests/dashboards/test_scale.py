"""What a dashboard costs a Prometheus that holds an hour of 10 000 engines (`make e2e-dashboards`)."""

import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

import pytest

from kvpressure.model.catalogue import CATALOGUE as CAUSES
from tests.dashboards.boards import load, queries
from tests.dashboards.checks import say_to, slowest
from tests.dashboards.grafana import Prometheus
from tests.dashboards.stand import PATIENCE_SECONDS, prometheus
from tests.support.tools import need

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
ENGINES = 10_000
HOUR, EVERY_SECONDS = 3600, 120
LIMIT_SAMPLES = 1_000_000
"""A fiftieth of what Prometheus reads at most for one query, and what a busy machine does not change."""

BOARDS = {"kvpressure-fleet": 50, "kvpressure-engine": 10, "kvpressure-capacity": 20}
"""How many engines each draws at most."""


def identity(number: int) -> str:
    """Labels of one engine: eight on a node, in forty namespaces."""
    namespace, node = f"team-{number % 40}", number // 8
    return (
        f'job="kvpressure",instance="10.0.{node // 250}.{node % 250}:10405",namespace="{namespace}",'
        f'pod="vllm-{number}",target="{namespace}/vllm-{number}:8000",model_name="model-{number % 7}",engine="0"'
    )


def write(file: TextIO, name: str, times: Iterable[int], values: Iterable[tuple[str, float]]) -> None:
    """A family in OpenMetrics; `values` are labels and a value that stays."""
    file.write(f"# TYPE {name} gauge\n")
    stamps = list(times)
    for labels, value in values:
        file.writelines(f"{name}{{{labels}}} {value} {t}\n" for t in stamps)


def fleet() -> Iterator[tuple[str, list[tuple[str, float]]]]:
    """What dashboards ask of all engines; one in fifty is under pressure."""
    engines = [(identity(number), number % 50 == 0, number) for number in range(ENGINES)]
    yield "kvpressure_score_ratio", [(who, 0.5 + number / 20_000 if sick else 0.0) for who, sick, number in engines]
    yield "kvpressure_bottleneck_confidence_ratio", [(who, 1.0) for who, _, _ in engines]
    yield "kvpressure_memory_high_compute_low_ratio", [(who, float(sick)) for who, sick, _ in engines]
    causes = [(f'{who},cause="{cause}"', sick, cause) for who, sick, _ in engines for cause in CAUSES]
    holds = {True: "kv_cache_pressure", False: "healthy"}
    yield "kvpressure_bottleneck", [(labels, float(cause == holds[sick])) for labels, sick, cause in causes]
    tokens = [(f'{who},kind="generation"', 900.0) for who, _, _ in engines]
    yield "kvpressure_tokens_total", tokens


def backfill(directory: Path, end: int) -> None:
    """An hour of the fleet up to `end`, as blocks of Prometheus' database."""
    text = directory / "fleet.om"
    with text.open("w") as file:
        for name, values in fleet():
            write(file, name, range(end - HOUR, end + 1, EVERY_SECONDS), values)
        file.write("# EOF\n")
    command = [need("promtool", "prometheus"), "tsdb", "create-blocks-from", "openmetrics", text, directory / "tsdb"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    text.unlink()


async def test_a_dashboard_of_ten_thousand_engines_reads_few_samples_and_draws_the_worst(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    say = say_to(capsys)
    end = int(time.time()) // 60 * 60
    backfill(tmp_path, end)
    async with prometheus(tmp_path, {}) as running:
        server = Prometheus(running.url, scrape_seconds=15)
        took: dict[str, float] = {}
        read: dict[str, int] = {}
        for uid, count in BOARDS.items():
            board = load(uid)
            values = await server.values(board, end - HOUR, end, {})
            # The highest scores are those of the highest numbers among the sick.
            worst = [f"team-{n % 40}/vllm-{n}:8000" for n in range(ENGINES - 50, 0, -50)][:count]
            assert sorted(values["shown"]) == sorted(worst)
            read |= {f"{uid} / ${name}": samples for name, samples in server.read.items()}
            for query in queries(board):
                read[str(query)] = (await server.ask(query, values, end - HOUR, end)).samples
                took[str(query)] = await server.typical_seconds(query, values, end - HOUR, end, runs=3)
    took |= server.variables_took()
    say(f"slowest with {ENGINES} engines, an hour in steps of 15 s, median of 3 runs:")
    for line in slowest(took, 8):
        say(line)
    say(f"most samples read by one query: {max(read.values()):,}, {max(read, key=lambda name: read[name])}")
    assert {name: samples for name, samples in read.items() if samples > LIMIT_SAMPLES} == {}

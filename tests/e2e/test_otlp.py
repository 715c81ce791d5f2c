"""What receivers of OTLP make of a push: a current Prometheus has the same series as if it had scraped, and a collector
of OpenTelemetry the same metrics (`make tools-go`)."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import time
import urllib.parse
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kvpressure.config.settings.model import OtlpSettings
from kvpressure.daemon.otlp import sender
from kvpressure.exposition import Snapshot, text
from tests.support.processes import eventually, free_port, get, running
from tests.support.snapshots import collapsed
from tests.support.tools import built

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
OF_THE_PUSH = ("__name__", "job", "instance")
Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def key(name: str, labels: dict[str, str]) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Without empty labels, which Prometheus has none of; a bound is a number, written one way or another."""
    numbers = {"le": str(float(labels["le"]))} if "le" in labels else {}
    return name, tuple(sorted((label, text) for label, text in (labels | numbers).items() if text))


def shown(snapshot: Snapshot) -> Series:
    page = text.render(snapshot, openmetrics=False).decode()
    return {
        key(sample.name, sample.labels): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


async def received(snapshot: Snapshot, folder: Path) -> Series:
    """By name and labels, but those that say who pushed."""
    address, config = f"127.0.0.1:{free_port()}", folder / "prometheus.yml"
    config.write_text("global: {}\n")
    words = [f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}", f"--web.listen-address={address}"]
    command = [built("prometheus"), *words, "--web.enable-otlp-receiver"]
    async with running(command, folder / "prometheus.log") as process:
        await eventually(lambda: get(f"http://{address}/-/ready"), process)
        settings = OtlpSettings(endpoint=f"http://{address}/api/v1/otlp")
        assert sender(settings)(snapshot) == ""
        query = urllib.parse.quote('{__name__=~"kvpressure_.+"}')
        answer = json.loads(await get(f"http://{address}/api/v1/query?query={query}&time={snapshot.t}"))
        found: Series = {}
        for one in answer["data"]["result"]:
            labels = {label: text for label, text in one["metric"].items() if label not in OF_THE_PUSH}
            assert one["metric"]["job"] == "kvpressure"
            found[key(one["metric"]["__name__"], labels)] = float(one["value"][1])
        return found


def test_prometheus_has_the_series_of_the_page(tmp_path: Path) -> None:
    snapshot = dataclasses.replace(collapsed(), t=time.time())
    found, page = asyncio.run(received(snapshot, tmp_path)), shown(snapshot)
    assert found.keys() == page.keys()
    assert [one for one, value in found.items() if value != pytest.approx(page[one])] == []


async def printed(snapshot: Snapshot, folder: Path) -> str:
    """What the collector's exporter for people prints of the push."""
    address, config = f"127.0.0.1:{free_port()}", folder / "collector.json"
    parts = {
        "receivers": {"otlp": {"protocols": {"http": {"endpoint": address}}}},
        "exporters": {"debug": {"verbosity": "detailed"}},
        "service": {
            "pipelines": {"metrics": {"receivers": ["otlp"], "exporters": ["debug"]}},
            "telemetry": {"metrics": {"level": "none"}},
        },
    }
    config.write_text(json.dumps(parts))
    async with running([built("collector"), f"--config=file:{config}"], folder / "collector.log") as process:

        async def ready() -> bool:
            return "Everything is ready" in process.output()

        await eventually(ready, process)
        assert sender(OtlpSettings(endpoint=f"http://{address}"))(snapshot) == ""

        async def told() -> bool:
            return "kvpressure_build_info" in process.output()

        await eventually(told, process)
        return process.output()


def test_a_collector_has_the_metrics_of_the_page(tmp_path: Path) -> None:
    snapshot = dataclasses.replace(collapsed(), t=time.time())
    out = asyncio.run(printed(snapshot, tmp_path))
    names = set(re.findall(r"-> Name: (\S+)", out))
    assert names == {re.sub(r"_(bucket|sum|count)$", "", name) for name, _ in shown(snapshot)}
    (of_lost,) = re.findall(r"-> Name: kvpressure_preemptions_total\n(?:.*\n){1,12}", out)
    assert re.search(r"IsMonotonic: true\n\s+-> AggregationTemporality: Cumulative", of_lost)
    assert "service.name: Str(kvpressure)" in out

"""What a real Prometheus makes of the page: every sample with its value, every family with its type."""

import json
import math
import re
from pathlib import Path

from aiohttp import web
from aiohttp.test_utils import TestServer
from prometheus_client.parser import text_string_to_metric_families

from kvpressure.exposition import EngineView, Snapshot, text
from kvpressure.exposition.families import FAMILIES
from kvpressure.web.site import Handler, Site
from tests.support.exporting import prometheus
from tests.support.processes import eventually, get, query
from tests.support.snapshots import collapsed

Sample = tuple[tuple[str, str], ...]
NOT_OURS = re.compile(r"up|scrape_.*|process_.*|python_.*")


class FixedExporter:
    """Always shows one snapshot."""

    def __init__(self) -> None:
        self._snapshot = collapsed()

    def snapshot(self) -> Snapshot:
        return self._snapshot

    def advice(self, view: EngineView) -> tuple[()]:
        return ()

    def not_ready(self) -> list[str]:
        return []


async def anyone(header: str | None, client: str) -> bool:
    return True


def written(snapshot: Snapshot) -> dict[Sample, float]:
    """The page's samples as labels to value; Prometheus knows no empty labels."""
    page = text.render(snapshot, openmetrics=False).decode()
    samples = (sample for family in text_string_to_metric_families(page) for sample in family.samples)
    return {
        tuple(sorted(({k: v for k, v in one.labels.items() if v} | {"__name__": one.name}).items())): one.value
        for one in samples
    }


async def test_a_real_prometheus_keeps_every_sample_and_type_of_the_page(tmp_path: Path) -> None:
    exporter = FixedExporter()
    asked: list[tuple[str, str]] = []

    @web.middleware
    async def note(request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await handler(request)
        if request.path == "/metrics":
            asked.append((request.headers["Accept"], response.headers["Content-Type"]))
        return response

    app = Site(exporter, "/metrics", anyone).app()
    app.middlewares.append(note)
    async with TestServer(app) as server, prometheus(tmp_path, f"127.0.0.1:{server.port}") as (process, url):
        here = f'instance="127.0.0.1:{server.port}"'

        async def scraped() -> bool:
            return (await query(url, f"up{{{here}}}")).get((("__name__", "up"),)) == 1

        await eventually(scraped, process)
        found = await query(url, f'{{{here},__name__!~"{NOT_OURS.pattern}"}}')
        own = await query(url, f'{{{here},__name__=~"(process|python)_.*"}}')
        types = json.loads(await get(f"{url}/api/v1/metadata"))["data"]
    expected = written(exporter.snapshot())
    assert found.keys() == expected.keys()
    assert {key for key, value in expected.items() if found[key] != value and not math.isnan(value)} == set()
    assert {dict(key)["__name__"] for key in own} >= {"process_cpu_seconds_total", "python_info"}
    shown = {dict(key)["__name__"] for key in expected}
    for family in FAMILIES:
        if shown & {family.name, family.name + "_bucket"}:
            # OpenMetrics names a counter's family without the suffix.
            (meta,) = types[family.name.removesuffix("_total")]
            assert (meta["type"], meta["help"]) == (family.type, family.help)
    assert asked, "no scrape was seen"
    for accept, content_type in asked:
        assert "application/openmetrics-text;version=1.0.0" in accept
        assert content_type.startswith("application/openmetrics-text; version=1.0.0; charset=utf-8")

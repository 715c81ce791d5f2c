"""`incidents` finds the same in Prometheus and in the stores that speak its API: VictoriaMetrics and Thanos Query
(`make tools-stores`), each a real one that holds the same past."""

import asyncio
import contextlib
import json
import re
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bench.simulator.scenarios import episode
from kvpressure.cli import main
from tests.support.past import START, Scrape, make_blocks, openmetrics, simulated
from tests.support.past import prometheus as past_prometheus
from tests.support.processes import PATIENCE_SECONDS, eventually, free_port, get, running
from tests.support.tools import built

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
SPAN = ("--since", f"{START - 3600:.0f}", "--until", f"{START + 7200:.0f}", "--workers", "1")
TRUE = {"prod/kv": "kv_cache_pressure", "prod/host": "host_bound", "prod/stuck": "stuck"}
PIECE = 20_000
"""Lines of one import."""


def scrapes() -> Iterator[Scrape]:
    for number, (pod, cause, seed) in enumerate(
        (("kv", "kv_cache_pressure", 2), ("host", "host_bound", 5), ("stuck", "stuck", 6), ("well", "healthy", 1))
    ):
        labels = {"namespace": "prod", "pod": pod, "instance": f"{pod}:8000", "job": "vllm"}
        yield from simulated(episode(cause, seed), seed, labels, 15.0, START + 300 * number)


def looked(url: str, *words: str) -> Any:
    answer = CliRunner().invoke(main, ["incidents", "--prometheus", url, *SPAN, "--json", *words])
    assert answer.exit_code == 1, answer.output
    return json.loads(answer.stdout)


def told(document: Any) -> dict[str, tuple[str, float, float]]:
    """By target: cause, begin and end; what Prometheus itself says is the measure."""
    return {one["target"]: (one["cause"], one["began"], one["ended"]) for one in document["incidents"]}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_blocks(tmp_path_factory.mktemp("blocks"), scrapes())


@pytest.fixture(scope="module")
def of_prometheus(tmp_path_factory: pytest.TempPathFactory, data: Path) -> Any:
    with past_prometheus(tmp_path_factory.mktemp("prometheus"), data) as url:
        document = looked(url)
    assert {one["target"]: one["cause"] for one in document["incidents"]} == TRUE
    return document


def millis() -> Iterator[bytes]:
    """The samples as VictoriaMetrics imports them: OpenMetrics, but for times in milliseconds."""
    for block in openmetrics(scrapes()):
        if not block.startswith(b"#"):
            yield re.sub(rb" (\d+)\.(\d{3})\n$", rb" \1\2\n", block)


@contextlib.asynccontextmanager
async def victoria(folder: Path, *more: str) -> AsyncIterator[str]:
    address = f"127.0.0.1:{free_port()}"
    flags = [f"-httpListenAddr={address}", f"-storageDataPath={folder / 'vm'}", "-retentionPeriod=100y", *more]
    async with running([built("victoria-metrics"), *flags], folder / "vm.log") as process:
        url = f"http://{address}"
        await eventually(lambda: get(f"{url}/health"), process)
        lines = list(millis())
        for place in range(0, len(lines), PIECE):
            await asyncio.to_thread(post, f"{url}/api/v1/import/prometheus", b"".join(lines[place : place + PIECE]))
        await get(f"{url}/internal/force_flush")
        yield url


def post(url: str, body: bytes) -> None:
    with urllib.request.urlopen(urllib.request.Request(url, data=body), timeout=PATIENCE_SECONDS):
        return


@contextlib.asynccontextmanager
async def thanos(folder: Path, data: Path) -> AsyncIterator[str]:
    """A sidecar beside a Prometheus, and a querier that knows of it."""
    program, (grpc, http, query, own) = built("thanos"), (free_port() for _ in range(4))
    with past_prometheus(folder, data) as url:
        sidecar = [program, "sidecar", f"--prometheus.url={url}", f"--tsdb.path={data}"]
        sidecar += [f"--grpc-address=127.0.0.1:{grpc}", f"--http-address=127.0.0.1:{http}"]
        querier = [program, "query", f"--endpoint=127.0.0.1:{grpc}", f"--http-address=127.0.0.1:{query}"]
        querier += [f"--grpc-address=127.0.0.1:{own}"]
        async with running(sidecar, folder / "sidecar.log") as one, running(querier, folder / "query.log") as other:
            await eventually(lambda: get(f"http://127.0.0.1:{http}/-/ready"), one)
            found = f"http://127.0.0.1:{query}"

            async def there() -> bool:
                return "prod" in await get(f"{found}/api/v1/label/namespace/values")

            await eventually(there, other)
            yield found


def test_victoria_metrics_tells_the_same(tmp_path: Path, of_prometheus: Any) -> None:
    async def ask() -> Any:
        async with victoria(tmp_path, "-maxLabelsPerTimeseries=60") as url:
            return await asyncio.to_thread(looked, url), await asyncio.to_thread(looked, f"{url}/prometheus")

    for document in asyncio.run(ask()):
        assert told(document) == told(of_prometheus)
        assert document["targets"] == of_prometheus["targets"]


def test_without_the_size_of_the_cache_it_tells_the_same_causes(tmp_path: Path, of_prometheus: Any) -> None:
    """By default it drops series of more than 40 labels; vllm:cache_config_info has 37 before the target's come."""

    async def ask() -> Any:
        async with victoria(tmp_path) as url:
            assert "vllm:cache_config_info" not in await get(f"{url}/api/v1/label/__name__/values")
            return await asyncio.to_thread(looked, url)

    document = asyncio.run(ask())
    assert {one["target"]: one["cause"] for one in document["incidents"]} == TRUE
    (kv,) = [one for one in document["incidents"] if one["target"] == "prod/kv"]
    assert "how many tokens the KV cache holds" in [missing["what"] for missing in kv["missing"]]
    assert kv["limits"]["kv_capacity_tokens"] is None


def test_thanos_tells_the_same(tmp_path: Path, data: Path, of_prometheus: Any) -> None:
    async def ask() -> Any:
        async with thanos(tmp_path, data) as url:
            return await asyncio.to_thread(looked, url)

    document = asyncio.run(ask())
    assert told(document) == told(of_prometheus)
    assert document["targets"] == of_prometheus["targets"]

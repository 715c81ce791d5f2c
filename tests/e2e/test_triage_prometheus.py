"""`kvpressure triage --prometheus` at a real Prometheus that scrapes four engines, of which one is hot."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.commands import kvpressure, serving
from tests.support.exporting import prometheus
from tests.support.processes import PATIENCE_SECONDS, free_port

pytestmark = pytest.mark.e2e

FLEET = ("light-load", "long-context-collapse", "light-load", "idle")
HOT = 1


def address(url: str) -> str:
    return url.removeprefix("http://")


async def said(url: str, *words: str, until: Callable[[str, str], bool]) -> tuple[int, str, str]:
    """Exit code, output and errors of the first run that says what is waited for."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while True:
            code, out, err = await kvpressure("triage", "--prometheus", url, *words)
            if until(out, err):
                return code, out, err
            await asyncio.sleep(2)


def are_named(out: str, _: str) -> bool:
    engines = json.loads(out)["engines"] if out else []
    judged = all(engine["cause"] != "unknown" for engine in engines)  # it waits before there is a verdict
    return judged and [engine["state"] for engine in engines] == ["waits", "serves", "serves", "serves"]


async def test_the_hot_one_of_four_replicas_stands_first_and_one_that_is_gone_is_not_forgotten(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(serving(trace)) for trace in FLEET[:-1]]
        gone = contextlib.AsyncExitStack()
        servers.append(await gone.enter_async_context(serving(FLEET[-1])))
        addresses = [address(server.url) for server in servers]
        _, url = await stack.enter_async_context(prometheus(tmp_path, *addresses))
        async with gone:
            code, out, _ = await said(url, "--json", until=are_named)
            _, text, _ = await kvpressure("triage", "--prometheus", url, "--model", "tiny")
        found = json.loads(out)
        (workload,) = found["workloads"]
        assert (code, workload["replicas"][0], workload["model_name"]) == (1, addresses[HOT], "tiny")
        assert workload["states"] == {"serves": 3, "waits": 1, "stuck": 0, "unreadable": 0, "gone": 0}
        assert found["engines"][0]["actions"]
        lines = text.splitlines()
        rows = [line for line in lines if line.startswith(tuple(addresses))]
        assert next(row.split()[0] for row in rows) == addresses[HOT]
        assert len(rows) == len(addresses)
        assert max(map(len, rows)) <= 100
        assert any(line.startswith("workload: ") for line in lines)

        lost = addresses[-1]
        _, text, _ = await said(url, until=lambda out, _: f"{lost}: the Prometheus cannot scrape it" in out)
        (row,) = (line for line in text.splitlines() if line.startswith(f"{lost} "))
        assert row.split()[1] == "unreadable"

        other = await kvpressure("triage", "--prometheus", url, "--model", "llama")
        assert (other[0], "no engine of model llama; its models are tiny" in other[2]) == (2, True), other


async def test_a_prometheus_without_engines_is_told_with_what_it_scrapes(tmp_path: Path) -> None:
    async with prometheus(tmp_path, f"127.0.0.1:{free_port()}") as (_, url):
        code, _, err = await said(url, until=lambda _, err: "its jobs are" in err)
    assert (code, "no series of an engine" in err, "its jobs are kvpressure" in err) == (2, True, True), err

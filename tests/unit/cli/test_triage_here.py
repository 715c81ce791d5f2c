"""`kvpressure triage` without an address: the engines of this machine are found by their pages."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click
import pytest

from kvpressure.cli.triage import here, run
from tests.support import servers
from tests.support.servers import FaultServer, read_trace
from tests.support.tools import FIXTURES

PAGE = read_trace(FIXTURES / "traces" / "light-load.jsonl.xz")[-1][1]
OTHER = b"# TYPE node_load1 gauge\nnode_load1 1\n"


def listening(proc: Path, *ports: int) -> Path:
    """A /proc on which these ports, and one that nothing answers on, listen."""
    (proc / "net").mkdir(parents=True)
    rows = [f"{n}: 0100007F:{port:04X} 00000000:0000 0A 0:0 0:0 0 1000 0 {n}" for n, port in enumerate((1, *ports))]
    (proc / "net" / "tcp").write_text("head\n" + "\n".join(rows) + "\n")
    return proc


@pytest.mark.process
async def test_only_a_port_with_an_engines_page_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(here, "ANSWERS_WITHIN_SECONDS", 1.0)
    async with (
        FaultServer(servers.page(PAGE)) as engine,
        FaultServer(servers.page(OTHER)) as other,
        FaultServer(servers.html()) as site,
        FaultServer(servers.hangs) as hung,
    ):
        proc = listening(tmp_path, engine.port, other.port, site.port, hung.port)
        models, asked = await asyncio.to_thread(here.engines_here, proc)
    assert (list(models), asked) == ([f":{engine.port}"], 5)
    assert all(models.values())


def test_without_one_it_says_what_to_give(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(here, "engines_here", lambda: ({}, 3))
    with pytest.raises(click.UsageError, match=r"of 3 ports\): give HOST:PORT, or --trace FILE; in a cluster kubectl"):
        run._here()


def test_a_machine_without_proc_has_none(tmp_path: Path) -> None:
    assert here.engines_here(tmp_path) == ({}, 0)

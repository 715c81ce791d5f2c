"""`kvpressure triage` without an address: the engines of this machine are found by their pages."""

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvpressure.cli import main
from kvpressure.cli.triage import run
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
    monkeypatch.setattr(run, "ANSWERS_WITHIN_SECONDS", 1.0)
    async with (
        FaultServer(servers.page(PAGE)) as engine,
        FaultServer(servers.page(OTHER)) as other,
        FaultServer(servers.html()) as site,
        FaultServer(servers.hangs) as hung,
    ):
        proc = listening(tmp_path, engine.port, other.port, site.port, hung.port)
        models, asked = await asyncio.to_thread(run.engines_here, proc)
    assert (list(models), asked) == ([f":{engine.port}"], 5)
    assert all(models.values())


def test_without_one_it_says_what_to_type(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(run, "engines_here", lambda: ({}, 3))
    config = tmp_path / "config"
    monkeypatch.setenv("KUBECONFIG", str(config))
    for words in ((), ("triage",), ("triage", "--json")):
        answer = CliRunner().invoke(main, words, prog_name="kubectl kvpressure")
        assert (answer.exit_code, answer.stdout) == (2, "")
        assert "/metrics of 3 listening ports\n" in answer.stderr
        assert "  kubectl kvpressure triage -n NAMESPACE deploy/NAME  a workload, where kubectl" in answer.stderr
    config.touch()
    answer = CliRunner().invoke(main, prog_name="kvpressure")
    assert f"kvpressure triage -n NAMESPACE deploy/NAME  a workload, with {config}\n" in answer.stderr


@pytest.mark.process
def test_the_name_of_the_program_alone_triages_what_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "engines_here", lambda: ({":1": "llama"}, 3))
    alone, named = (CliRunner().invoke(main, words) for words in ((), ("triage",)))
    assert (alone.exit_code, alone.stdout) == (named.exit_code, named.stdout)
    assert "localhost:1" in alone.stdout
    assert alone.stderr.startswith("on this machine: :1 (llama)\n")


def test_a_machine_without_proc_has_none(tmp_path: Path) -> None:
    assert run.engines_here(tmp_path) == ({}, 0)

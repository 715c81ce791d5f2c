"""The README's blocks for a GPU server and without an exporter, pasted whole, beside a server of recorded pages."""

import asyncio
import os
import re
import stat
import sys
from pathlib import Path

import pytest

from tests.support.alerting import clean
from tests.support.processes import free_port, running
from tests.support.servers import FaultServer, Replay, read_trace
from tests.support.tools import FIXTURES, ROOT, need

TRACE = FIXTURES / "traces" / "long-context-collapse.jsonl.xz"
BLOCKS = re.findall(r"^```\w*\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)


def block_of(word: str) -> str:
    (found,) = (block for block in BLOCKS if word in block)
    return found


def shell(folder: Path, environment: dict[str, str]) -> dict[str, str]:
    """An environment in which `kvpressure` is this checkout's."""
    program = folder / "bin" / "kvpressure"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m kvpressure "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return {"PATH": f"{program.parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "exporter"), **environment}


@pytest.mark.e2e
async def test_on_a_gpu_server_the_block_ends_in_the_verdicts_and_prometheus_takes_the_other(tmp_path: Path) -> None:
    async with FaultServer(Replay(read_trace(TRACE), clock=asyncio.get_running_loop().time)) as engine:
        port = free_port()
        environment = {
            "KVPRESSURE_ENGINES__TARGETS": f'[{{"url": "{engine.url}"}}]',
            "KVPRESSURE_WEB__LISTEN_ADDRESS": f"127.0.0.1:{port}",
        }
        # Ports are this test's; pip has installed, and other tests' servers are not asked.
        lines = block_of("kvpressure run &").replace("10405", str(port)).splitlines()
        (tmp_path / "paste").write_text("\n".join(line for line in lines if not re.match(r"pip |kvpressure +#", line)))
        assert len(lines) == 5
        command = ["bash", "-c", f"cd {tmp_path} && . ./paste; kill %1; wait"]
        async with running(command, tmp_path / "log", shell(tmp_path, environment)) as pasted:
            assert await asyncio.wait_for(pasted.process.wait(), 300) == 0, pasted.output()
        assert "kvpressure_bottleneck{" in pasted.output()
    (tmp_path / "prometheus.yml").write_text(block_of("scrape_configs"))
    clean(need("promtool", "prometheus"), "check", "config", tmp_path / "prometheus.yml")


async def test_without_an_exporter_the_bundle_is_written(tmp_path: Path) -> None:
    generate, incidents = block_of("vllm-only").splitlines()
    assert incidents.startswith("kvpressure incidents --prometheus http://localhost:9090 ")  # tests/e2e/test_stores.py
    async with running(["bash", "-c", f"cd {tmp_path} && {generate}"], tmp_path / "log", shell(tmp_path, {})) as pasted:
        assert await asyncio.wait_for(pasted.process.wait(), 300) == 0, pasted.output()
    assert (tmp_path / "bundle" / "prometheus" / "alerts" / "vllm-cache-too-small.yaml").is_file()


def test_every_block_is_of_a_test_or_needs_what_no_test_has() -> None:
    """What triage prints is compared by tests/promises/test_figures.py; a registry and a cluster are missing here."""
    words = ("kvpressure triage localhost:8000", "make demo", "kvpressure run &", "scrape_configs", "helm", "vllm-only")
    assert [block_of(word) for word in words] == BLOCKS
    targets = (ROOT / "Makefile").read_text()
    assert all(f"\n{name}:" in targets for name in re.findall(r"^make (\w+)", block_of("make demo"), re.MULTILINE))

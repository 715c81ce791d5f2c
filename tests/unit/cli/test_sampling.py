"""Targets of URLs that somebody types."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvpressure.cli.access import Access
from kvpressure.cli.sampling import targets_of

pytestmark = pytest.mark.process

LISTENS = """
import socket, sys
server = socket.create_server(("127.0.0.1", 0))
print(server.getsockname()[1], flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not Path("/proc/net/tcp").exists() and not os.environ.get("CI"), reason="needs Linux's /proc")
def test_the_flags_of_an_engine_on_this_machine_are_read_from_its_process(tmp_path: Path):
    """A watermark is on no page: without it, a batch that it holds back looks like one at a cap."""
    program = tmp_path / "vllm"
    program.write_text(LISTENS)
    command = [sys.executable, str(program), "serve", "m", "--max-num-seqs", "32", "--watermark", "0.05"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        port = int(process.stdout.readline())
        (target,) = targets_of([f"127.0.0.1:{port}"], Access(), gpus=False)
        process.communicate("")
    assert target.limits is not None
    assert {one.name: one.value for one in target.limits} == {"max_num_seqs": 32.0, "kv_watermark_ratio": 0.05}


def test_of_an_engine_elsewhere_nobody_says_how_it_was_started():
    assert [target.limits for target in targets_of(["gpu-7:8000", "localhost:1"], Access(), gpus=False)] == [None, None]

"""Commands at the prompt that ask an engine whose page is a million series, or one line without an end."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers import Behaviour, FaultServer, Request

# VmHWM begins anew with a program; ru_maxrss would be that of whoever started it, where that was more.
SAYS_MEMORY = """import atexit, re, sys
atexit.register(lambda: print("MIB", int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) // 1024))
from kvpressure.cli import main
sys.argv[0] = "kvpressure"
main()
"""
COMMANDS = {
    "triage": ("triage", "URL", "--duration", "10"),
    "whatif": ("whatif", "URL", "--duration", "10", "--set", "max-num-seqs=8"),
    "record": ("record", "URL", "-o", "FILE", "--duration", "3"),
}


def chunked(first: bytes, *, of_series: bool) -> Behaviour:
    """Blocks without an end, or till a million series."""

    async def behave(_: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for number in range(1000):
            block = b"m" * 65_536
            if of_series:
                block = b"".join(first % (number * 1000 + one) for one in range(1000))
            elif not number:
                block = first + block
            writer.write(b"%x\r\n%b\r\n" % (len(block), block))
            await writer.drain()
        writer.write(b"0\r\n\r\n")

    return behave


PAGES = {
    "a million series": chunked(b'vllm:num_requests_running{engine="%d",model_name="m"} 1.0\n', of_series=True),
    "one endless line": chunked(b'vllm:num_requests_running{engine="0",model_name="', of_series=False),
}


@pytest.mark.fault(
    "one of `triage`, `whatif` and `record` reads a page of a million series, or an endless line",
    "it ends with an error message and at most 8 MiB of the page in memory",
)
@pytest.mark.parametrize("behaviour", PAGES.values(), ids=PAGES)
@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
async def test_a_command_ends_with_a_sentence(words: tuple[str, ...], behaviour: Behaviour, tmp_path: Path) -> None:
    async with FaultServer(behaviour) as engine:
        given = [
            engine.url if word == "URL" else str(tmp_path / "r.jsonl") if word == "FILE" else word for word in words
        ]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", SAYS_MEMORY, *given), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        async with asyncio.timeout(300):
            out, _ = await process.communicate()
    said = " ".join(out.decode().split())
    assert process.returncode == (1 if words[0] == "record" else 2), said
    assert "answered with more than 8 MiB; is this a metrics page?" in said
    assert "Traceback" not in said
    assert int(said.rpartition("MIB ")[2]) < 120

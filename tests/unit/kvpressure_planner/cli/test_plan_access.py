"""`plan` reads an engine that demands a token and a client's certificate, with the options of every other command."""

import asyncio
from pathlib import Path

import pytest

from kvpressure.engines.recordings import TraceLine, read_trace
from kvpressure.model.errors import SourceError
from kvpressure_planner.cli.plan.engine import read_engine
from tests.support import certificates, servers
from tests.support.certificates import server_context
from tests.support.servers import FaultServer
from tests.support.tools import FIXTURES

pytestmark = [pytest.mark.recorded, pytest.mark.process]


async def test_a_server_that_demands_token_and_client_certificate_is_read(tmp_path: Path) -> None:
    ca = certificates.authority(tmp_path)
    cert, key = ca.issue("client")
    token = tmp_path / "token"
    token.write_text("s3cret\n")
    line = next(read_trace(FIXTURES / "traces" / "full-batch.jsonl.xz"))
    assert isinstance(line, TraceLine)
    tls = f"{{ca_file: {ca.ca_file}, cert_file: {cert}, key_file: {key}}}"
    file = tmp_path / "kvpressure.yaml"
    file.write_text(f"poll: {{bearer_token_file: {token}, tls: {tls}}}\n")
    async with FaultServer(
        servers.page(line.page), server_context(*ca.issue("engine"), client_ca=ca.ca_file)
    ) as server:
        engine = await asyncio.to_thread(read_engine, server.url, {"config": file})
        assert engine.running.pool.capacity_tokens == 8192 - 32
        assert {request.headers["authorization"] for request in server.requests} == {"Bearer s3cret"}
        with pytest.raises(SourceError, match=f"^TLS with {server.url}/metrics failed: self-signed certificate"):
            await asyncio.to_thread(read_engine, server.url, {"config": None})

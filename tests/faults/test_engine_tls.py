import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kvpressure.config.settings import PollSettings
from kvpressure.engines.engine import EngineSource
from kvpressure.model.samples import SourceHealth
from tests.support import certificates, servers
from tests.support.certificates import Authority, server_context
from tests.support.engine_kit import GOOD_PAGE, Tls, source_for
from tests.support.servers import FaultServer

PATIENT = PollSettings(interval_seconds=10.0, timeout_seconds=8.0)
GOOD = servers.page(GOOD_PAGE)


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return certificates.authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return certificates.authority(tmp_path_factory.mktemp("stranger"), "stranger")


@asynccontextmanager
async def polling(server: FaultServer | str, tls: Tls | None) -> AsyncIterator[EngineSource]:
    source = source_for(server, PATIENT, tls=tls)
    try:
        yield source
    finally:
        await source.aclose()


async def health_after_one_poll(server: FaultServer | str, tls: Tls | None) -> SourceHealth:
    async with polling(server, tls) as source:
        await source.poll()
        return source.health()


async def test_a_server_of_a_given_ca_is_trusted(ca: Authority):
    async with FaultServer(GOOD, server_context(*ca.issue("engine"))) as server:
        health = await health_after_one_poll(server, Tls(ca.ca_file))
    assert health.up, health.error


async def test_a_server_of_an_unknown_ca_is_refused_and_gets_no_request(ca: Authority):
    async with FaultServer(GOOD, server_context(*ca.issue("engine"))) as server:
        health = await health_after_one_poll(server, None)
        assert server.requests == []
    assert health.reason == "tls"
    assert "unable to get local issuer certificate" in health.error


async def test_the_server_name_of_the_settings_is_what_the_certificate_must_carry(ca: Authority):
    async with FaultServer(GOOD, server_context(*ca.issue("engine"))) as server:
        right = await health_after_one_poll(server, Tls(ca.ca_file, server_name="engine.test"))
        wrong = await health_after_one_poll(server, Tls(ca.ca_file, server_name="other.test"))
    assert right.up, right.error
    assert wrong.reason == "tls"
    assert "other.test" in wrong.error


async def test_skipping_verification_trusts_anybody(ca: Authority):
    async with FaultServer(GOOD, server_context(*ca.issue("engine"))) as server:
        health = await health_after_one_poll(server, Tls(insecure_skip_verify=True))
    assert health.up, health.error


async def test_a_client_certificate_is_shown_and_its_absence_is_named(ca: Authority):
    mine = Tls(ca.ca_file, *ca.issue("client"))
    async with FaultServer(GOOD, server_context(*ca.issue("engine"), client_ca=ca.ca_file)) as server:
        with_it = await health_after_one_poll(server, mine)
        without = await health_after_one_poll(server, Tls(ca.ca_file))
    assert with_it.up, with_it.error
    assert without.reason in {"tls", "disconnected"}  # which of the two depends on what arrives first
    assert "certificate" in without.error.lower()


async def test_a_changed_ca_file_is_read_again_and_the_old_connection_given_up(
    ca: Authority, stranger: Authority, tmp_path: Path
):
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(ca.ca_file.read_bytes())
    async with (
        FaultServer(GOOD, server_context(*ca.issue("engine"))) as server,
        polling(server, Tls(trusted)) as source,
    ):
        assert await source.poll() is not None
        trusted.write_bytes(stranger.ca_file.read_bytes() + b"\n")
        assert await source.poll() is None
        assert source.health().reason == "tls"
        trusted.write_bytes(ca.ca_file.read_bytes() + b"\n\n")
        assert await source.poll() is not None
        assert server.connections >= 2


BROKEN = {"missing": None, "empty": b"", "no certificate": b"hello\n"}


@pytest.mark.parametrize("content", BROKEN.values(), ids=BROKEN)
async def test_a_ca_file_that_cannot_be_used_is_named_and_nothing_is_sent(
    ca: Authority, tmp_path: Path, content: bytes | None
):
    broken = tmp_path / "broken.pem"
    if content is not None:
        broken.write_bytes(content)
    async with FaultServer(GOOD, server_context(*ca.issue("engine"))) as server:
        health = await health_after_one_poll(server, Tls(broken))
        assert server.connections == 0
    assert health.reason == "tls"
    assert str(broken) in health.error
    assert "nothing was sent" in health.error


async def test_an_encrypted_key_fails_instead_of_asking_for_its_passphrase(ca: Authority, tmp_path: Path):
    certificate, key = ca.issue("client")
    locked = tmp_path / "locked.key"
    certificates.openssl("ec", "-in", key, "-aes128", "-passout", "pass:secret", "-out", locked)
    health = await asyncio.wait_for(
        health_after_one_poll("https://127.0.0.1:1", Tls(ca.ca_file, certificate, locked)), 5
    )
    assert health.reason == "tls"
    assert str(locked) in health.error


async def test_https_asked_of_a_plain_server_is_a_tls_error():
    async with FaultServer(GOOD) as server:
        health = await health_after_one_poll(server.url.replace("http:", "https:"), None)
    assert health.reason == "tls"


async def test_http_asked_of_a_tls_server_is_named(ca: Authority):
    async with FaultServer(GOOD, server_context(*ca.issue("engine"))) as server:
        health = await health_after_one_poll(server.url.replace("https:", "http:"), None)
    assert health.reason in {"disconnected", "bad_http"}

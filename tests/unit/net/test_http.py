"""What is said of a connection that failed: each in its own words, with what to look at."""

import errno
import ssl

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey

from kvpressure.net.http import explain

KEY = ConnectionKey("chat", 8000, is_ssl=False, ssl=True, proxy=None, proxy_auth=None, proxy_headers_hash=None)
URL = "http://chat:8000/metrics"
# What aiohttp raises for a name with two addresses of which only one has a route here.
BOTH = OSError("Multiple exceptions: [Errno 99] Cannot assign requested address, [Errno 111] Connect call failed")


@pytest.mark.parametrize(
    ("error", "reason", "sentence"),
    [
        (
            aiohttp.ClientConnectorError(KEY, ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed")),
            "refused",
            f"connection refused by {URL}; is the server running and the port right?",
        ),
        (
            aiohttp.ClientConnectorError(KEY, BOTH),
            "refused",
            f"connection refused by {URL}; is the server running and the port right?",
        ),
        (
            aiohttp.ClientConnectorError(KEY, OSError(errno.ENETUNREACH, "Network is unreachable")),
            "unreachable",
            f"cannot connect to {URL}: Network is unreachable",
        ),
        (
            aiohttp.ClientConnectorDNSError(KEY, OSError(-2, "Name or service not known")),
            "dns",
            f"the name in {URL} does not resolve (Name or service not known); check the address",
        ),
        (
            ssl.SSLError(1, "[SSL] record layer failure"),
            "tls",
            f"TLS with {URL} failed: [SSL] record layer failure; check scheme, CA and certificates",
        ),
    ],
)
def test_every_way_not_to_connect_has_its_own_words(error: Exception, reason: str, sentence: str) -> None:
    said = explain(error, URL)
    assert (said.reason, said.sentence) == (reason, sentence)

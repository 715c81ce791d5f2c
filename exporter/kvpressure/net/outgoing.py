"""What clients of API servers share: the environment's proxy, and a sentence for a request that failed."""

from __future__ import annotations

import errno
import re
import ssl
import urllib.request
from typing import Final

import aiohttp

from kvpressure.model.errors import BrokenConnectionError, SourceError, TlsError, UnreachableError
from kvpressure.printable import brief

FAILURES: Final = (aiohttp.ClientError, OSError, ValueError)
"""What a request may raise."""

_UNCONNECTED: Final = (aiohttp.ClientConnectorError, aiohttp.ClientHttpProxyError, aiohttp.ConnectionTimeoutError)
_REFUSED: Final = f"[Errno {errno.ECONNREFUSED}]"


class UnusableAddressError(SourceError, reason="config"):
    """The address that was set cannot be requested."""


def environment_proxy(scheme: str, host: str) -> str:
    """Return the proxy that the environment sets for a host, "" for none."""
    if urllib.request.proxy_bypass_environment(host):  # type: ignore[attr-defined]
        return ""
    return urllib.request.getproxies_environment().get(scheme, "")


def is_supported(proxy: str) -> bool:
    """Return whether there is no proxy, or an HTTP one."""
    return not proxy or proxy.startswith(("http://", "https://"))


def request_failure(error: BaseException, where: str, tls_hint: str, refused_hint: str = "") -> SourceError:
    """Return the error for one of aiohttp, ssl or the system in a request to `where`; hints say what to check."""
    causes = [error]
    while (cause := causes[-1].__cause__ or causes[-1].__context__) is not None and len(causes) < 8:
        causes.append(cause)
    if ssl_error := next((chained for chained in reversed(causes) if isinstance(chained, ssl.SSLError)), None):
        todo = f"check the scheme, {tls_hint} and the server's name"
        return TlsError(f"TLS with {where} failed: {brief(ssl_error, 120)}; {todo}")
    # With several addresses the text names the error of each.
    if any(isinstance(chained, ConnectionRefusedError) or _REFUSED in str(chained) for chained in causes):
        return UnreachableError(f"connection refused by {where}; is it up and the port right?{refused_hint}")
    text = next(
        (str(chained) for chained in reversed(causes) if isinstance(chained, OSError) and str(chained)),
        str(error),
    )
    plain = brief(re.sub(r"^\[Errno -?\d+\] ", "", text) or type(error).__name__)
    if isinstance(error, _UNCONNECTED) or not isinstance(error, aiohttp.ClientError | ValueError):
        return UnreachableError(f"no connection to {where}: {plain}")
    if isinstance(error, ValueError):
        return UnusableAddressError(f"{where} cannot be used: {plain}")
    return BrokenConnectionError(f"the connection to {where} broke: {plain}")

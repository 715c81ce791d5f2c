"""Name lookups that do not block each other.

The loop's default executor has few threads for the whole process: some targets with a dead name server would occupy
them all, and every other lookup would wait.
"""

from __future__ import annotations

import socket
from functools import partial
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

from kvpressure.net.addresses import refusal
from kvpressure.net.threads import in_own_thread


class RefusedAddressError(OSError):
    """A name that resolves only to addresses that must not be requested; the text has them and the reasons."""


class ThreadPerLookup(AbstractResolver):
    """Resolves with `getaddrinfo` in a daemon thread of its own; one instance per target.

    The connector never starts a second lookup while one is in flight, so a target uses at most one thread, and a
    daemon thread that hangs does not keep the process from ending. `pending` is true while one is in flight. Addresses
    that `refusal` names are left out.
    """

    def __init__(self) -> None:
        self.pending = False

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of `host`; raises `socket.gaierror` or `RefusedAddressError` (OSErrors) without any."""
        self.pending = True
        try:
            look_up = partial(socket.getaddrinfo, host, port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
            infos = await in_own_thread(look_up, "lookup")
        finally:
            self.pending = False
        addresses = [_result(host, port, info) for info in infos]
        hosts = dict.fromkeys(result["host"] for result in addresses)
        refused = {host: reason for host in hosts if (reason := refusal(host, link_local=False))}
        if addresses and len(refused) == len(hosts):
            raise RefusedAddressError("; ".join(f"{address}, {reason}" for address, reason in refused.items()))
        return [result for result in addresses if result["host"] not in refused]

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""


def _result(host: str, port: int, info: tuple[int, int, int, str, tuple[Any, ...]]) -> ResolveResult:
    family, _, proto, _, address = info
    numeric = str(address[0])
    if family == socket.AF_INET6 and len(address) > 3 and address[3]:
        numeric = f"{numeric.partition('%')[0]}%{address[3]}"
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    return ResolveResult(hostname=host, host=numeric, port=port, family=family, proto=proto, flags=flags)

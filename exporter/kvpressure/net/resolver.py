"""Name lookups that cannot hold up anybody else.

The loop's default executor has a handful of threads for the whole process: a few targets with a dead name server
would fill it, and every other lookup would queue behind them.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import partial
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

from kvpressure.net.threads import in_own_thread


class RefusedAddressError(OSError):
    """A name that leads nowhere but to addresses that must not be requested; the text says which and why."""


class ThreadPerLookup(AbstractResolver):
    """Resolves with `getaddrinfo` in a daemon thread of its own; one instance per target.

    The connector never starts a second lookup while one is in flight, so a target holds at most one thread, and
    a daemon thread that hangs does not keep the process from ending. `pending` says whether one is in flight.
    Addresses are left out for which `refused` gives a reason.
    """

    def __init__(self, refused: Callable[[str], str] = lambda _: "") -> None:
        self._refused = refused
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
        found = [_result(host, port, info) for info in infos]
        refused = {one["host"]: reason for one in found if (reason := self._refused(one["host"]))}
        if found and len(refused) == len({one["host"] for one in found}):
            raise RefusedAddressError("; ".join(f"{address}, {reason}" for address, reason in refused.items()))
        return [one for one in found if one["host"] not in refused]

    async def close(self) -> None:
        """Do nothing: no resource is kept open."""


def _result(host: str, port: int, info: tuple[int, int, int, str, tuple[Any, ...]]) -> ResolveResult:
    family, _, proto, _, address = info
    numeric = str(address[0])
    if family == socket.AF_INET6 and len(address) > 3 and address[3]:
        numeric = f"{numeric.partition('%')[0]}%{address[3]}"
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    return ResolveResult(hostname=host, host=numeric, port=port, family=family, proto=proto, flags=flags)

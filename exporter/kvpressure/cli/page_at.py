"""The page of one engine, at an address or in a pod, for every command that takes one engine."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

from yarl import URL

from kvpressure.cli.access import access_of, page_url
from kvpressure.kubernetes.objects.references import is_reference
from kvpressure.net.credentials import Authorization
from kvpressure.net.http import Answer, HttpClient
from kvpressure.net.schedule import SystemClock

DEADLINE_SECONDS: Final = 10.0
"""How long a page may take, at any interval: engines in trouble answer slowly."""

Read = Callable[[], Awaitable[Answer]]
"""Reads the page. Raises SourceError."""


@contextlib.asynccontextmanager
async def page_at(address: str, options: Mapping[str, Any]) -> AsyncIterator[tuple[str, Read]]:
    """Yield the URL of an engine's metrics and what reads them; for KIND/NAME, of its only pod, through a port-forward.

    Raises ValueError for an invalid address, click.UsageError, and KubeError where no pod can be reached.
    """
    async with contextlib.AsyncExitStack() as stack:
        if is_reference(address):
            from kvpressure.cli.pods import forwarded  # noqa: PLC0415 - what addresses do without

            url, access = await stack.enter_async_context(forwarded(address, options))
        else:
            url, access = page_url(address), access_of(options)
        authorization = Authorization(access.bearer_token_file, access.basic_auth, setting="poll.bearer_token_file")
        client = HttpClient(SystemClock(), tls=access.tls, authorization=authorization)
        stack.push_async_callback(client.aclose)
        yield url, partial(client.get, URL(url), DEADLINE_SECONDS)

"""The metrics page of one engine, at an address or in a pod, for every command that takes one engine."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from kvpressure.cli.access import Access, access_of, page_url


@contextlib.asynccontextmanager
async def metrics_at(address: str, options: Mapping[str, Any]) -> AsyncIterator[tuple[str, Access]]:
    """Yield the URL of an engine's metrics and how to reach it; for KIND/NAME, of its only pod, through a port-forward.

    Raises ValueError for an invalid address, click.UsageError, and KubeError where no pod can be reached.
    """
    from kvpressure.kubernetes.objects.references import is_reference  # noqa: PLC0415 - not for URLs

    if not is_reference(address):
        yield page_url(address), access_of(options)
        return
    from kvpressure.cli.pods import forwarded  # noqa: PLC0415 - as above

    async with forwarded(address, options) as found:
        yield found

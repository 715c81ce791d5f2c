"""The metrics of one engine, at an address or in a pod: read the same way by every command that takes one engine."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from kvpressure.cli.access import Access, access_of, page_url


@contextlib.asynccontextmanager
async def metrics_at(address: str, options: Mapping[str, Any]) -> AsyncIterator[tuple[str, Access]]:
    """Yield the URL of an engine's metrics and how to reach it; of the one pod of KIND/NAME through a port-forward.

    Raises ValueError for an address that is none, click.UsageError, and KubeError where no pod can be reached.
    """
    from kvpressure.kubernetes.objects.references import is_reference  # noqa: PLC0415 - URLs do without it

    if not is_reference(address):
        yield page_url(address), access_of(options)
        return
    from kvpressure.cli.pods import forwarded  # noqa: PLC0415 - as above

    async with forwarded(address, options) as found:
        yield found

"""Fetches the pages that `plan --url` reads."""

from __future__ import annotations

import asyncio

from yarl import URL

from kvpressure.cli.access import Access
from kvpressure.cli.engine_address import split_engine_url
from kvpressure.cli.plan_page import LiveEngine, LiveError, engine_on
from kvpressure.engines.reader import PageError, PageReader
from kvpressure.model.record import SourceError
from kvpressure.net.http import Answer
from kvpressure.net.schedule import SystemClock

DEADLINE_SECONDS = 10.0


def read_engine(url: str, access: Access, seconds: float = 0.0) -> LiveEngine:
    """Fetch the engine's page, and another `seconds` later for the requests that finish between them.

    Without `seconds` the lengths are those of all requests since the server started. Raises `LiveError`.
    """
    try:
        base, path = split_engine_url(url)
        full = URL(f"{base}{path or '/metrics'}")
        reader = PageReader()
        pages = [reader.read(answer.body, answer.t) for answer in asyncio.run(_fetch(full, access, seconds))]
        return engine_on(pages[-1], str(full), pages[0] if seconds else None)
    except SourceError as error:  # which says where
        raise LiveError(f"{error}") from error
    except PageError as error:
        raise LiveError(f"{url}: {error}") from error
    except ValueError as error:
        raise LiveError(f"--url {error}") from error


async def _fetch(url: URL, access: Access, seconds: float) -> list[Answer]:
    clock = SystemClock()
    client = access.client(clock)
    try:
        answers = [await client.get(url, DEADLINE_SECONDS)]
        if seconds:
            await clock.sleep_until(clock.monotonic() + seconds)
            answers.append(await client.get(url, DEADLINE_SECONDS))
        return answers
    finally:
        await client.aclose()

"""Debian's Chromium under playwright, with everything a page did written down."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from tests.support.processes import PATIENCE_SECONDS
from tests.support.tools import missing, need

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
DESKTOP, PHONE = {"width": 1280, "height": 800}, {"width": 390, "height": 844}


@dataclass
class Watched:
    """A page, what it said on the console, what it threw, the dialogs it opened and the hosts it asked."""

    page: Any
    complaints: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)

    async def until(self, expression: str) -> None:
        """Wait until an expression is true. playwright's own waiting evaluates strings, which the page forbids."""
        for _ in range(int(PATIENCE_SECONDS / 0.1)):
            if await self.page.evaluate(expression):
                return
            await asyncio.sleep(0.1)
        raise AssertionError(f"still not so after {PATIENCE_SECONDS} s: {expression}")


class Browser:
    """Opens watched pages; each has a profile of its own."""

    def __init__(self, chromium: Any) -> None:
        self._chromium = chromium

    async def open(self, url: str, viewport: dict[str, int] | None = None, **options: Any) -> Watched:
        """A loaded page. `options` are playwright's for a context: color_scheme, java_script_enabled, ..."""
        context = await self._chromium.new_context(viewport=viewport or DESKTOP, **options)
        context.set_default_timeout(PATIENCE_SECONDS * 1000)
        watched = Watched(await context.new_page())
        page = watched.page
        page.on("console", lambda said: watched.complaints.append(f"{said.type}: {said.text}"))
        page.on("pageerror", lambda error: watched.complaints.append(f"thrown: {error}"))
        page.on("request", lambda request: watched.hosts.add(urlsplit(request.url).netloc))

        async def dismiss(dialog: Any) -> None:
            watched.complaints.append(f"dialog: {dialog.message}")
            await dialog.dismiss()

        page.on("dialog", dismiss)
        await page.goto(url)
        return watched


@contextlib.asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """A headless Chromium that ends with the block."""
    path = need("chromium", "chromium")
    async with _playwright()() as driver:
        # playwright makes a new user data directory for each launch and removes it.
        chromium = await driver.chromium.launch(executable_path=path, args=FLAGS, headless=True)
        try:
            yield Browser(chromium)
        finally:
            await chromium.close()


def _playwright() -> Any:
    try:
        from playwright.async_api import async_playwright  # noqa: PLC0415
    except ImportError:
        missing("playwright is not installed; `make test` installs requirements/dev.txt")
    return async_playwright

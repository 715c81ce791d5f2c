"""The addresses of engines as people type them."""

from __future__ import annotations

import click

from kvpressure.config.settings.types import split_url


def split_engine_url(text: str) -> tuple[str, str]:
    """Return what people type for an engine as its base and path: `host:port` will do. Raises ValueError."""
    return split_url(text if "://" in text else f"http://{text}")


def page_url(text: str) -> str:
    """Return the full address of the page of the engine at `text`. Raises UsageError for what is no address."""
    try:
        base, path = split_engine_url(text)
    except ValueError as error:
        raise click.UsageError(f"URL {error}") from None
    return f"{base}{path or '/metrics'}"

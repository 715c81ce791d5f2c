"""The pages' templates, styles and scripts, and their hashes for a Content-Security-Policy."""

from __future__ import annotations

import base64
import functools
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import jinja2


@functools.cache
def _environment() -> jinja2.Environment:
    # Imported with the first page for people: most exporters are only scraped.
    import jinja2  # noqa: PLC0415

    return jinja2.Environment(
        loader=jinja2.PackageLoader("kvpressure.exposition", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(template: str, **values: object) -> str:
    """Return a page; values are escaped."""
    return _environment().get_template(f"{template}.html.j2").render(**values)


@functools.cache
def source(name: str) -> str:
    """Return a style or script, as it stands in the page."""
    return (Path(__file__).with_name("templates") / name).read_text("utf-8")


def digest(text: str) -> str:
    """Return the source expression that allows a style or script of exactly this text."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

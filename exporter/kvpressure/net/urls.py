"""PURE: URLs of engines as people write them: base, path, and the target's name."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from kvpressure.net.addresses import refusal

HOST: Final = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.%A-Za-z0-9_-]+\]")


def split_url(text: str) -> tuple[str, str]:
    """Split an engine's URL into its base `scheme://host:port` and its path ("" when it has none).

    Raises ValueError; a URL with credentials is never part of the message.
    """
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"is not a URL: {error}") from None
    if parts.username is not None or parts.password is not None:
        raise ValueError("must not contain credentials: put them into a file and name it in basic_auth.password_file")
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"must start with http:// or https://, got {text!r}")
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else (parts.hostname or "")
    if not HOST.fullmatch(host) or port == 0:
        raise ValueError(f"must name a host and a port, such as http://localhost:8000, got {text!r}")
    if reason := refusal(host, link_local=True):
        raise ValueError(f"must not be {reason}, got {text!r}")
    if parts.query or parts.fragment or "?" in text or "#" in text:
        raise ValueError("must not contain a query or a fragment")
    base = f"{parts.scheme}://{host}" + (f":{port}" if port else "")
    return base, "" if parts.path == "/" else http_path(parts.path) if parts.path else ""


def default_name(url: str) -> str:
    """Name a target after its URL: `host:port`, with the scheme's port where the URL has none."""
    scheme, _, rest = url.partition("://")
    return rest if re.search(r":\d+$", rest) else f"{rest}:{443 if scheme == 'https' else 80}"


def target_name(base: str, path: str) -> str:
    """Name a target that is only given by its URL: `host:port`, with a path other than the usual one."""
    return default_name(base) + (path if path and path != "/metrics" else "")


def typed_address(url: str, path: str) -> str:
    """Return what to type to reach a target: `host:port`, or the whole URL where scheme or path are not the usual."""
    whole = url if path == "/metrics" else url + path
    return default_name(url) if whole == url and url.startswith("http://") else whole


def matching(pattern: str, must: str) -> Callable[[str], str]:
    """Return a check that a text matches, which raises ValueError with `must` ({text!r} in it is the text)."""
    known = re.compile(pattern)

    def check(text: str) -> str:
        if not known.fullmatch(text):
            raise ValueError(must.format(text=text))
        return text

    return check


http_path: Final = matching(
    r"/[^\s?#\x00-\x1f\x7f]*", "must be a path that starts with / and has no spaces, query or fragment, got {text!r}"
)


def refused_text(page: str) -> str:
    """Return the error where nothing listens at the address of a page."""
    return f"connection refused by {page}; is the server running and the port right?"

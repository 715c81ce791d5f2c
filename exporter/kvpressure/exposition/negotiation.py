"""Which format and encoding a scraper gets, from its Accept and Accept-Encoding headers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.exposition import ALLOWUTF8, UNDERSCORES

_OPENMETRICS: Final = "application/openmetrics-text"
_VERSIONS: Final = {_OPENMETRICS: ("", "1.0.0"), "text/plain": ("", "0.0.4", "1.0.0")}
"""What can be asked for, "" where no version is named."""


@dataclass(frozen=True, slots=True)
class Format:
    """How a page is written, and the Content-Type that says so."""

    openmetrics: bool
    content_type: str


def negotiate(accept: str) -> Format:
    """Return the format that the header prefers, OpenMetrics among equals; plain text where it names no known one.

    The library's `choose_encoder` gives the Content-Type of the best part. It gets that one alone and in our words: by
    itself it passes over weights, fails at versions that are no numbers, and repeats any number as the page's version.
    """
    liked = [found for part in accept.split(",") if (found := _requested(part)) is not None]
    _, media, wanted = max(liked, key=lambda one: (one[0], one[1] == _OPENMETRICS), default=(1.0, "", ""))
    return Format(media == _OPENMETRICS, choose_encoder(wanted)[1])


def accepts_gzip(accept_encoding: str) -> bool:
    """Return whether the Accept-Encoding header allows gzip."""
    for part in accept_encoding.split(","):
        coding, *parameters = part.split(";")
        if coding.strip().lower() == "gzip":
            return _weight(_named(parameters)) > 0
    return False


def _requested(part: str) -> tuple[float, str, str] | None:
    """Return weight, media type and `choose_encoder`'s argument of an Accept header's part; None if not available."""
    media, *parameters = part.split(";")
    media, named = media.strip().lower(), _named(parameters)
    weight, version = _weight(named), named.get("version", "")
    if not weight > 0 or version not in _VERSIONS.get(media, ()):
        return None
    escaping = ALLOWUTF8 if named.get("escaping") == ALLOWUTF8 else UNDERSCORES
    return weight, media, f"{media};version={version};escaping={escaping}" if version else media


def _named(parameters: list[str]) -> dict[str, str]:
    pairs = (parameter.partition("=") for parameter in parameters)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _weight(named: dict[str, str]) -> float:
    try:
        return float(named.get("q", "1"))
    except ValueError:
        return 0.0

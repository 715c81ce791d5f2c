"""Snapshot to a metrics page, in the Prometheus text format or OpenMetrics 1.0, written by prometheus_client.

Both formats carry the same samples; only the headers of counters and the end differ. A scraper's Accept and
Accept-Encoding headers say which it gets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Final

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, choose_encoder, generate_latest
from prometheus_client.openmetrics import exposition as openmetrics_exposition
from prometheus_client.openmetrics.exposition import ALLOWUTF8, UNDERSCORES
from prometheus_client.registry import Collector, CollectorRegistry

from kvpressure.exposition.collector import SnapshotCollector
from kvpressure.exposition.snapshot import Snapshot

TEXT = CONTENT_TYPE_PLAIN_0_0_4
_OPENMETRICS: Final = "application/openmetrics-text"
_VERSIONS: Final = {_OPENMETRICS: ("", "1.0.0"), "text/plain": ("", "0.0.4", "1.0.0")}
"""What can be asked for, "" where no version is named."""

AS_THEY_ARE = "none"
"""Not a name of one of the library's escaping schemes: it then writes the names of metrics and labels as they are.

All of ours are valid in the old character set, so every scheme that may be negotiated gives the same page (a test
compares them). But under a scheme the library examines every name of every sample: a third of its work, and of
OpenMetrics half. It escapes the values of labels in any case.
"""

_write_openmetrics: Callable[[Collector], bytes] = partial(openmetrics_exposition.generate_latest, escaping=AS_THEY_ARE)


def render(snapshot: Snapshot, *, openmetrics: bool, own: Iterable[Collector] = ()) -> bytes:
    """Return the page: the snapshot, then what `own` collectors export of this process. Called from any thread."""
    registry = CollectorRegistry(auto_describe=False)
    for collector in (SnapshotCollector(snapshot), *own):
        registry.register(collector)
    return _write_openmetrics(registry) if openmetrics else generate_latest(registry, AS_THEY_ARE)


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
    codings = (_split(part) for part in accept_encoding.split(","))
    return next((weight > 0 for coding, weight, _ in codings if coding == "gzip"), False)


def _requested(part: str) -> tuple[float, str, str] | None:
    """Return weight, media type and `choose_encoder`'s argument of an Accept header's part; None if not available."""
    media, weight, named = _split(part)
    version = named.get("version", "")
    if not weight > 0 or version not in _VERSIONS.get(media, ()):
        return None
    escaping = ALLOWUTF8 if named.get("escaping") == ALLOWUTF8 else UNDERSCORES
    return weight, media, f"{media};version={version};escaping={escaping}" if version else media


def _split(part: str) -> tuple[str, float, dict[str, str]]:
    """Return the name, the weight and the parameters of one part of a header."""
    name, *parameters = part.split(";")
    pairs = (parameter.partition("=") for parameter in parameters)
    named = {key.strip().lower(): value.strip() for key, _, value in pairs}
    try:
        weight = float(named.get("q", "1"))
    except ValueError:
        weight = 0.0
    return name.strip().lower(), weight, named

"""One page to poll and how to reach it, as the settings, a file or discovery say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kvpressure.config.settings import BasicAuthSettings, TlsSettings
from kvpressure.config.settings.kv_events import KvEventsSettings
from kvpressure.config.settings.types import BY_ITS_PAGE
from kvpressure.model.environment import DeclaredLimit


@dataclass(frozen=True, slots=True)
class Target:
    """One page to poll: `url` is the base `scheme://host:port`, `path` follows it, `name` is the `target` label.

    `gpus` is None when not known, ("all",), or uuids and indices. Secrets are referred to by file. `container` and
    `limits` (None: nobody could read how the engine was started) are those of discovery. Without `kv_events`, none are
    read.
    """

    name: str
    url: str
    path: str = "/metrics"
    namespace: str = ""
    pod: str = ""
    runtime: str = BY_ITS_PAGE
    gpus: tuple[str, ...] | None = None
    kv_bytes_per_token: float | None = None
    tls: TlsSettings | None = None
    bearer_token_file: Path | None = None
    basic_auth: BasicAuthSettings | None = None
    container: str = ""
    limits: tuple[DeclaredLimit, ...] | None = None
    kv_events: KvEventsSettings | None = None

"""One page to poll and how to reach it, as the settings, a file, discovery or a recording say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kvpressure.model.environment import ContainerId, DeclaredLimit

if TYPE_CHECKING:  # they take long to load, and recordings need none
    from kvpressure.config.settings.polling import BasicAuthSettings, KvEventsSettings, TlsSettings

ALL_GPUS: Final = "all"
BY_ITS_PAGE: Final = "auto"
"""The `runtime` of a target whose page says what it runs."""


@dataclass(frozen=True, slots=True)
class Target:
    """One page to poll: `url` is the base `scheme://host:port`, `path` follows it, `name` is the `target` label.

    `gpus` is None when not known, ("all",), or uuids and indices. Secrets are referred to by file. `container` and
    `limits` (None: how the engine was started could not be read) are those of discovery, as is `role`, what its pod's
    labels say that it does (`PREFILL`, `DECODE`, else ""), and `created` when the pod was made (unix seconds): one that
    replaces another under its name is not the same server. Without `kv_events`, none are read.
    """

    name: str
    url: str = ""
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
    role: str = ""
    created: float | None = None


def container_of(target: Target) -> ContainerId:
    """Return the id of a target's container in Kubernetes; an id of its name where discovery did not find it."""
    if target.pod and target.container:
        return ContainerId(target.namespace, target.pod, target.container)
    return ContainerId("", "", target.name)

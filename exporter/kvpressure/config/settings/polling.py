"""How engines are reached: intervals, TLS and authentication. Secrets are only ever named by the file they are in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from kvpressure.config.settings.section import Section, Within, derived
from kvpressure.config.settings.types import (
    BaseUrl,
    Gpus,
    HttpPath,
    Label,
    Runtime,
    SdPatterns,
    TargetName,
    Topic,
)
from kvpressure.config.target import BY_ITS_PAGE
from kvpressure.net.urls import default_name, split_url

Conflicts = Iterator[tuple[tuple[str, ...], str]]


def below(keys: tuple[str, ...], value: float, least: float, name: str) -> Conflicts:
    """Yield what is wrong where the value of the first of `keys` is less than `least`, which `name` describes."""
    if value < least:
        yield keys, f"must be at least {name} ({least:g}), got {value:g}"


class TlsSettings(Section):
    """TLS towards engines. The files are read again when they change."""

    ca_file: Path | None = None
    """CA certificates to trust instead of the system's."""
    cert_file: Path | None = None
    """Client certificate."""
    key_file: Path | None = None
    """Key of the client certificate."""
    server_name: Label = ""
    """Name expected in the server's certificate, if not the URL's host."""
    insecure_skip_verify: bool = False
    """Accept any server certificate."""

    def conflicts(self) -> Conflicts:
        """Yield a certificate without its key, or a key alone."""
        if (self.cert_file is None) != (self.key_file is None):
            yield ("", "cert_file", "key_file"), "needs cert_file and key_file together"


class BasicAuthSettings(Section):
    """Basic auth towards engines."""

    username: Label
    """User name."""
    password_file: Path
    """File that holds the password; read again when it changes."""


class ClientSettings(Section):
    """How to authenticate to engines."""

    tls: TlsSettings | None = None
    """TLS towards the engine."""
    bearer_token_file: Path | None = None
    """File that holds a bearer token; read again on change."""
    basic_auth: BasicAuthSettings | None = None
    """Basic auth; not together with a bearer token."""

    def conflicts(self) -> Conflicts:
        """Yield two ways to authenticate."""
        if self.basic_auth is not None and self.bearer_token_file is not None:
            keys = "basic_auth", "bearer_token_file"
            yield keys, "cannot be combined with bearer_token_file: keep one of the two"


class PollSettings(ClientSettings):
    """How engines are polled; its tls, bearer_token_file and basic_auth apply to every target without its own."""

    interval_seconds: Annotated[float, Within(0.2, 60)] = 1.0
    """Time between two polls of an engine."""
    timeout_seconds: Annotated[float, Within(0, 120, above=True)] = 10.0
    """Deadline of one request. It may be longer than the interval: polls that would begin meanwhile are skipped and
    counted."""
    histogram_interval_seconds: Annotated[float, Within(0.2, 60)] = derived(
        "6, or poll.interval_seconds when that is longer", lambda poll: max(6.0, poll.interval_seconds)
    )
    """Time between two polls that request histograms too."""
    max_page_bytes: Annotated[int, Within(64 << 10, 64 << 20)] = 8 << 20
    """Longest page that is read, after decompression."""
    filter: Literal["auto", "always", "never"] = "auto"
    """Request only the needed series from engines (`name[]`): where they honour it, always, or never."""

    def conflicts(self) -> Conflicts:
        """Yield histograms that would be polled more often than the rest."""
        yield from super().conflicts()
        keys = "histogram_interval_seconds", "interval_seconds"
        yield from below(keys, self.histogram_interval_seconds, self.interval_seconds, "poll.interval_seconds")


class KvEventsSettings(Section):
    """KV events that the engine publishes on its own host (`--kv-events-config`); data-parallel rank n at port + n."""

    port: Annotated[int, Within(1, 65535)] = 5557
    """Port of `endpoint` of the engine's `--kv-events-config`."""
    replay_port: Annotated[int, Within(1, 65535)] | None = None
    """Port of its `replay_endpoint`, from which missed events are requested; without it, evictions before them are
    discarded."""
    topic: Topic = ""
    """Only messages whose topic begins with this; its `topic`."""
    ranks: Annotated[int, Within(1, 64)] = 1
    """Data-parallel ranks that publish there."""


class TargetLabels(Section):
    """Labels for where an engine runs."""

    namespace: Label = ""
    """Kubernetes namespace."""
    pod: Label = ""
    """Kubernetes pod."""


class TargetSettings(ClientSettings):
    """One engine server to poll."""

    url: BaseUrl
    """`http://host:port` or `https://host:port`; may carry the path. Not a cloud's metadata service, nor a name that
    resolves to one or to a link-local address."""
    path: HttpPath = "/metrics"
    """Path of the metrics page."""
    name: TargetName = derived("the URL's host:port", lambda target: default_name(target.url))
    """The `target` label; must be unique."""
    runtime: Runtime = BY_ITS_PAGE
    """The runtime that serves the model: `auto`, or the one whose metrics are expected."""
    labels: TargetLabels = TargetLabels()
    """Where the engine runs."""
    gpus: Gpus | None = None
    """GPUs the engine uses: `all`, or a list of uuids or indices. Without it, none are joined to it."""
    kv_bytes_per_token: Annotated[float, Within(0, 1e9, above=True)] | None = None
    """KV cache bytes of one token over all layers of one rank, if the metrics do not report it."""
    kv_events: KvEventsSettings | None = None
    """Read the engine's KV events, which show exactly what was evicted and computed again; `{}` for the defaults.
    Unset: they are not read."""

    @classmethod
    def completed(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Return what was written with the path that the URL ends in."""
        if not isinstance(data.get("url"), str):
            return data
        try:
            _, path = split_url(data["url"])
        except ValueError:
            return data
        return {**data, "path": path} if path and "path" not in data else data


class FileSdSettings(ClientSettings):
    """Targets listed in files, in Prometheus's file_sd format."""

    files: SdPatterns
    """Files or globs ending in .json, .yml or .yaml."""
    refresh_seconds: Annotated[float, Within(1, 3600)] = 5.0
    """Time between two checks of the files."""
    kv_events: KvEventsSettings | None = None
    """Read the KV events of every engine in these files, at the engine's own host; the label
    `kvpressure_kv_events_port` names another port. Unset: of none."""


class EngineSettings(Section):
    """The engines to poll."""

    targets: tuple[TargetSettings, ...] | None = None
    """Engines at fixed addresses."""
    file_sd: tuple[FileSdSettings, ...] | None = None
    """Engines listed in files that may change."""

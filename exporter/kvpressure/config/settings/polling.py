"""How engines are reached: intervals, TLS and authentication. Secrets are only ever named by the file they are in."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from kvpressure.config.settings.types import (
    BaseUrl,
    Boolean,
    Gpus,
    HttpPath,
    Integer,
    Label,
    Number,
    Runtime,
    SdPatterns,
    TargetName,
)
from kvpressure.config.target import BY_ITS_PAGE
from kvpressure.net.urls import default_name, split_url

DERIVED: Final = "derived"
"""Key under which a field whose default depends on another one says how."""


class Section(BaseModel):
    """A frozen group of settings; unknown keys are errors."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=False, use_attribute_docstrings=True
    )


def at_least(value: float, least: float, name: str) -> float:
    """Return the value. Raises ValueError where it is less than `least`, which `name` describes."""
    if value < least:
        raise ValueError(f"must be at least {name} ({least:g}), got {value:g}")
    return value


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
    insecure_skip_verify: Boolean = False
    """Accept any server certificate."""

    @model_validator(mode="after")
    def _pair(self) -> TlsSettings:
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("needs cert_file and key_file together")
        return self


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

    @field_validator("basic_auth")
    @classmethod
    def _one_auth(cls, value: BasicAuthSettings | None, info: ValidationInfo) -> BasicAuthSettings | None:
        if value is not None and info.data.get("bearer_token_file") is not None:
            raise ValueError("cannot be combined with bearer_token_file: keep one of the two")
        return value


class PollSettings(ClientSettings):
    """How engines are polled; its tls, bearer_token_file and basic_auth apply to every target without its own."""

    interval_seconds: Number = Field(default=1.0, ge=0.2, le=60)
    """Time between two polls of an engine."""
    timeout_seconds: Number = Field(default=10.0, gt=0, le=120)
    """Deadline of one request. It may be longer than the interval: polls that would begin meanwhile are skipped and
    counted."""
    histogram_interval_seconds: Number = Field(
        default_factory=lambda data: max(6.0, data.get("interval_seconds", 1.0)),
        ge=0.2,
        le=60,
        json_schema_extra={DERIVED: "6, or poll.interval_seconds when that is longer"},
    )
    """Time between two polls that request histograms too."""
    max_page_bytes: Integer = Field(default=8 << 20, ge=64 << 10, le=64 << 20)
    """Longest page that is read, after decompression."""
    filter: Literal["auto", "always", "never"] = "auto"
    """Request only the needed series from engines (`name[]`): where they honour it, always, or never."""

    @field_validator("histogram_interval_seconds")
    @classmethod
    def _not_below_interval(cls, value: float, info: ValidationInfo) -> float:
        return at_least(value, info.data.get("interval_seconds", value), "poll.interval_seconds")


class KvEventsSettings(Section):
    """KV events that the engine publishes on its own host (`--kv-events-config`); data-parallel rank n at port + n."""

    port: Integer = Field(default=5557, ge=1, le=65535)
    """Port of `endpoint` of the engine's `--kv-events-config`."""
    replay_port: Integer | None = Field(default=None, ge=1, le=65535)
    """Port of its `replay_endpoint`, from which missed events are requested; without it, evictions before them are
    discarded."""
    topic: Label = Field(default="", max_length=200)
    """Only messages whose topic begins with this; its `topic`."""
    ranks: Integer = Field(default=1, ge=1, le=64)
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
    name: TargetName = Field(
        default_factory=lambda data: default_name(data.get("url", "")),
        json_schema_extra={DERIVED: "the URL's host:port"},
    )
    """The `target` label; must be unique."""
    runtime: Runtime = BY_ITS_PAGE
    """The runtime that serves the model: `auto`, or the one whose metrics are expected."""
    labels: TargetLabels = TargetLabels()
    """Where the engine runs."""
    gpus: Gpus | None = None
    """GPUs the engine uses: `all`, or a list of uuids or indices. Without it, none are joined to it."""
    kv_bytes_per_token: Number | None = Field(default=None, gt=0, le=1e9)
    """KV cache bytes of one token over all layers of one rank, if the metrics do not report it."""
    kv_events: KvEventsSettings | None = None
    """Read the engine's KV events, which show exactly what was evicted and computed again; `{}` for the defaults.
    Unset: they are not read."""

    @model_validator(mode="before")
    @classmethod
    def _path_in_url(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not isinstance(data.get("url"), str):
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
    refresh_seconds: Number = Field(default=5.0, ge=1, le=3600)
    """Time between two checks of the files."""
    kv_events: KvEventsSettings | None = None
    """Read the KV events of every engine in these files, at the engine's own host; the label
    `kvpressure_kv_events_port` names another port. Unset: of none."""


class EngineSettings(Section):
    """The engines to poll."""

    targets: tuple[TargetSettings, ...] = ()
    """Engines at fixed addresses."""
    file_sd: tuple[FileSdSettings, ...] = ()
    """Engines listed in files that may change."""
